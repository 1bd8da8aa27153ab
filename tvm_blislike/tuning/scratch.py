"""Temporary folders of sweeps: what a killed one leaves behind, a later one removes.

They lie in one folder of the user's own, and each says what it is; nothing else is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

_PREFIX, _LOCK, _MARKER = "sweep-", "lock", "README"
_TEXT = (
    "Temporary files of a sweep of tvm-blislike.\n"
    "They are removed when it ends, or if it was killed, when the next one begins.\n"
)


class Scratch:
    """A temporary folder, with those of dead processes removed.

    The system releases the lock in it when this process ends, however that happens.
    """

    def __init__(self) -> None:
        self.path = _new_folder()
        self._lock = FileLock(self.path / _LOCK, thread_local=False)
        self._lock.acquire()
        # Last: a folder with a marker and without a lock that is held is a dead process's.
        (self.path / _MARKER).write_text(_TEXT, encoding="utf-8")

    def make(self, name: str) -> str:
        """Return the path of a new folder in it."""
        (self.path / name).mkdir()
        return str(self.path / name)

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()
        if self.path.parent == _root():
            with contextlib.suppress(OSError):  # there are others in it
                self.path.parent.rmdir()


def _root() -> Path:
    return Path(tempfile.gettempdir()) / f"tvm-blislike-{os.getuid()}"


def _new_folder() -> Path:
    """Make a folder in that of this user; beside it where somebody else has that name."""
    root = _root()
    while True:
        with contextlib.suppress(FileExistsError):
            root.mkdir(mode=0o700)
        try:
            if not _is_private(root):
                return Path(tempfile.mkdtemp(prefix="tvm-blislike-"))
            _remove_orphans(root)
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        except FileNotFoundError:  # removed by the last process that had a folder in it
            continue


def _is_private(root: Path) -> bool:
    """Whether it is a folder that nobody but this user can write into."""
    found = root.lstat()
    closed = not stat.S_IMODE(found.st_mode) & 0o077
    return stat.S_ISDIR(found.st_mode) and closed and found.st_uid == os.getuid()


def _remove_orphans(root: Path) -> None:
    for folder in root.glob(f"{_PREFIX}*"):
        if _is_orphan(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_orphan(folder: Path) -> bool:
    """Whether a folder is a sweep's whose process has ended."""
    try:
        marked = (folder / _MARKER).read_bytes() == _TEXT.encode()
        if folder.is_symlink() or not marked or not (folder / _LOCK).is_file():
            return False
        with FileLock(folder / _LOCK, timeout=0):
            return True
    except (OSError, Timeout):
        return False
