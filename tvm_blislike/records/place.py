"""Where records are kept: a file, or a store with a local copy. It imports nothing of the others.

A store is a folder or a URL that several machines share; see `store.py`.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import platformdirs


def default_place() -> str:
    """Return the place used when none is named: a file in the user's data directory.

    The environment variable TVM_BLISLIKE_RECORDS names another one, or a store.
    """
    chosen = os.environ.get("TVM_BLISLIKE_RECORDS")
    return chosen or str(_data_folder() / "records.jsonl")


def default_path() -> Path:
    """Return the local file of the default place, which need not exist."""
    return local_file(default_place())


def is_store(place: str | os.PathLike[str]) -> bool:
    """Return whether a place is a store: a URL, a folder, or what ends as the name of one."""
    text = os.fspath(place)
    return "://" in text or text.endswith(("/", os.sep)) or (text != "none" and os.path.isdir(text))


def local_file(place: str | os.PathLike[str]) -> Path:
    """Return the file itself, or the local copy of a store, which need not exist."""
    if not is_store(place):
        return Path(place)
    text = os.fspath(place)
    name = text if "://" in text else os.path.abspath(text)
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[-40:]
    digest = hashlib.sha256(name.rstrip("/").encode()).hexdigest()[:12]
    return _data_folder() / "stores" / f"{readable}-{digest}" / "records.jsonl"


def _data_folder() -> Path:
    return platformdirs.user_data_path("tvm-blislike", appauthor=False)
