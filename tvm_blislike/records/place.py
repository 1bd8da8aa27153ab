"""Where records are kept when no file is named: a module that imports nothing of the others."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def default_path() -> Path:
    """Return the file of records used when none is named, in the user's data directory.

    The environment variable TVM_BLISLIKE_RECORDS names another one.
    """
    chosen = os.environ.get("TVM_BLISLIKE_RECORDS")
    if chosen:
        return Path(chosen)
    return platformdirs.user_data_path("tvm-blislike", appauthor=False) / "records.jsonl"
