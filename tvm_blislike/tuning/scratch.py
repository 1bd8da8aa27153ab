"""Temporary folders of sweeps: what a killed one leaves behind, a later one removes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX = "tvm-blislike-"
# Until its lock is held, nobody takes a folder for a dead process's.
_NEW_PREFIX = "new-tvm-blislike-"
_LOCK = "lock"
_MOST_NEW_SECONDS = 3600.0


class Scratch:
    """A temporary folder, with those of dead processes removed.

    The system releases the lock in it when this process ends, however that happens.
    """

    def __init__(self) -> None:
        remove_orphans()
        fresh = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX))
        self._lock = FileLock(fresh / _LOCK, thread_local=False)
        self._lock.acquire()
        self.path = fresh.rename(fresh.with_name(fresh.name.removeprefix("new-")))

    def make(self, name: str) -> str:
        """Return the path of a new folder in it."""
        (self.path / name).mkdir()
        return str(self.path / name)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def remove_orphans() -> None:
    """Remove the folders of this user's dead processes."""
    for folder in Path(tempfile.gettempdir()).glob(f"*{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_orphan(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_orphan(folder: Path) -> bool:
    if folder.name.startswith(_NEW_PREFIX):
        return time.time() - folder.stat().st_mtime > _MOST_NEW_SECONDS
    if not (folder / _LOCK).is_file():
        return False
    try:
        with FileLock(folder / _LOCK, timeout=0):
            return True
    except Timeout:
        return False
