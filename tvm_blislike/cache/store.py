"""The folder of kept models: an entry is a folder of its own, named by its key.

An entry appears and goes by one renaming, so processes may read and write at the same time. When
all together take more than their share of the disk, those go first that were not used for longest.

`TVM_BLISLIKE_CACHE` in the environment names another folder, or turns keeping off when it is 0;
`TVM_BLISLIKE_CACHE_SIZE` says how many bytes the entries may take together (500M, 8G).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock

from tvm_blislike.errors import UsageError
from tvm_blislike.files import parse_size
from tvm_blislike.hardware.switches import is_on

_FOLDER, _SIZE = "TVM_BLISLIKE_CACHE", "TVM_BLISLIKE_CACHE_SIZE"
_DEFAULT_BYTES = 4 << 30
_LOCK_SECONDS = 30.0
# Of an entry that is being written, or removed.
_FRESH, _GONE = ".new-", ".gone-"


@dataclass(frozen=True)
class Kept:
    """An entry of the folder.

    Parameters
    ----------
    path : Path
        Its folder.
    bytes : int
        Of all its files.
    used : float
        When it was written or last used, in seconds since 1970.
    """

    path: Path
    bytes: int
    used: float


def folder() -> Path | None:
    """Return where models are kept; None when that is turned off."""
    if not is_on(_FOLDER):
        return None
    chosen = os.environ.get(_FOLDER)
    if chosen:
        return Path(chosen).absolute()
    return platformdirs.user_cache_path("tvm-blislike", appauthor=False) / "compiled"


def most_bytes() -> int:
    """Return how many bytes all entries together may take.

    Raises
    ------
    UsageError
        When the environment says something that is no size.
    """
    text = os.environ.get(_SIZE, "")
    if not text:
        return _DEFAULT_BYTES
    size = parse_size(text)
    if size is None:
        raise UsageError(f"{_SIZE}={text} is no size", "write 500000000, 500M or 8G")
    return size


def find(key: str) -> Path | None:
    """Return the entry of a key and note that it was used; None where there is none."""
    place = folder()
    if place is None:
        return None
    try:
        os.utime(place / key)
    except OSError:
        return None
    return place / key


def put(key: str, write: Callable[[Path], None]) -> Path | None:
    """Write an entry in place of one of the same key, and make room for it.

    Parameters
    ----------
    key : str
        Its name.
    write : callable
        Writes the files into a folder; when it raises, nothing is kept.

    Returns
    -------
    Path or None
        The entry; None when keeping is turned off, or it is larger than all may be together.

    Raises
    ------
    OSError
        When it cannot be written.
    UsageError
        As of `most_bytes`.
    """
    place = folder()
    if place is None:
        return None
    most = most_bytes()
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_FRESH, dir=place) as scratch:
        fresh = Path(scratch) / key
        fresh.mkdir()
        write(fresh)
        if _bytes_of(fresh) > most:
            return None
        with _locked(place):
            drop(place / key)
            fresh.rename(place / key)
            _make_room(place, most)
    return place / key


def drop(entry: Path) -> None:
    """Remove an entry, if it is there: at once for those who look for it."""
    with contextlib.suppress(FileNotFoundError):
        gone = Path(tempfile.mkdtemp(prefix=_GONE, dir=entry.parent))
        with contextlib.suppress(FileNotFoundError):
            entry.rename(gone / entry.name)
        shutil.rmtree(gone, ignore_errors=True)


def entries() -> list[Kept]:
    """Return all entries, those used last first."""
    place = folder()
    found = [] if place is None else [k for k in map(_kept, _entries_in(place)) if k is not None]
    return sorted(found, key=lambda kept: -kept.used)


def clear() -> list[Kept]:
    """Remove all entries, with what killed writers left behind; return what they were."""
    found, place = entries(), folder()
    if place is None or not place.is_dir():
        return []
    with _locked(place):
        for kept in found:
            drop(kept.path)
        for rest in (*place.glob(f"{_FRESH}*"), *place.glob(f"{_GONE}*")):
            shutil.rmtree(rest, ignore_errors=True)
    return found


def _locked(place: Path) -> FileLock:
    return FileLock(place / ".lock", timeout=_LOCK_SECONDS)


def _make_room(place: Path, most: int) -> None:
    """Remove the entries that were not used for longest until the others fit."""
    left = most
    for kept in entries():
        left -= kept.bytes
        if left < 0:
            drop(kept.path)


def _entries_in(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [path for path in place.iterdir() if path.is_dir() and not path.name.startswith(".")]


def _kept(path: Path) -> Kept | None:
    """Return what is known of an entry, None when it has just gone."""
    with contextlib.suppress(OSError):
        return Kept(path, _bytes_of(path), path.stat().st_mtime)
    return None


def _bytes_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())
