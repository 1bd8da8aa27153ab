"""Writing results so that a failure leaves no partial file."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, BinaryIO

from tvm_blislike.errors import OutputError

if TYPE_CHECKING:
    import numpy as np

# What is written lies in a folder of such a name until it is complete.
_SCRATCH = ".tvm-blislike-new-"
# Opening these anew would cut off a file that the shell appends to.
_DESCRIPTOR = re.compile(r"/dev/(?:(stdout)|(stderr)|fd/(\d+))|/proc/self/fd/(\d+)")


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError when `path` cannot become a file; called before long work begins.

    Nothing is left behind: the attempt is made with a temporary file beside `path`.
    """
    with atomic_path(path, keep=False):
        pass


def require_folder(path: Path) -> None:
    """Check that a folder for results exists or can be made; called before long work begins.

    Nothing is left behind.

    Raises
    ------
    OutputError
        When it cannot be made, or nothing can be written into it.
    """
    try:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror}") from error
    if not there.is_dir():
        raise OutputError(f"cannot write to {path}: {there} is no directory")
    require_writable(there / "result")


def make_folder(path: Path) -> None:
    """Make a folder for results, unless it exists.

    Raises
    ------
    OutputError
        When it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror}") from error


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], keep: bool = True) -> Iterator[Path]:
    """Yield a fresh file name that takes the place of `path` when the block ends well.

    Where `path` is a symbolic link, it stays one, and what it leads to is replaced. A device, a
    pipe or an open file (/dev/stdout) is never replaced: what was written is copied into it.

    Parameters
    ----------
    path : path
        The file to write.
    keep : bool
        False drops what was written, which leaves `path` untouched.

    Raises
    ------
    OutputError
        When the directory is missing or not writable, `path` is a directory, or the block raises
        an OSError, such as for a full disk.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a directory")
        stream = is_stream(path)
        if stream and not os.access(path, os.W_OK):  # opening a pipe would wait for its reader
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        place = Path(os.path.realpath(path))
        with scratch_beside(None if stream else place) as folder:
            fresh = folder / path.name
            yield fresh
            if keep:
                _pour(fresh, path) if stream else os.replace(fresh, place)
    except OSError as error:
        raise _output_error(path, error) from error


@contextlib.contextmanager
def scratch_beside(path: Path | None) -> Iterator[Path]:
    """Yield a temporary folder on the file system of `path`, or the usual one for None."""
    parent = None if path is None else path.parent
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=parent) as folder:
        yield Path(folder)


def is_stream(path: Path) -> bool:
    """Return whether `path` is a device, a pipe or an open file, of which there is only one.

    Raises
    ------
    OSError
        When nobody can tell, such as for links in a circle.
    """
    try:
        return _DESCRIPTOR.fullmatch(str(path)) is not None or not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` (UTF-8) to `path`, all or nothing.

    Raises
    ------
    OutputError
        When it cannot be written.
    """
    with atomic_path(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def write_array(path: str | os.PathLike[str], array: np.ndarray) -> None:
    """Write an array to the .npy file `path`, all or nothing.

    Raises
    ------
    OutputError
        When it cannot be written.
    """
    import numpy as np

    with atomic_path(path) as fresh, fresh.open("wb") as file:
        # Given a file, NumPy writes in C and does not tell what went wrong.
        np.save(SimpleNamespace(write=file.write), array, allow_pickle=False)


def parse_size(text: str) -> int | None:
    """Return the bytes that a number with an optional K, M or G (powers of 1024) means, or None."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or unit not in ("", "K", "M", "G"):
        return None
    return int(number) << 10 * " KMG".index(unit or " ")


def space_hint(folder: Path) -> str:
    """Return the hint for a full disk, on which `folder` or the temporary files lie."""
    scratch = [part for part in (folder, *folder.parents) if part.name.startswith(_SCRATCH)]
    lasting = (scratch[-1].parent if scratch else folder).absolute()
    places = [lasting, Path(tempfile.gettempdir())]
    return f"free some space in {min(places, key=lambda place: shutil.disk_usage(place).free)}"


def _pour(source: Path, path: Path) -> None:
    """Copy a file into a device, a pipe or an open file."""
    with source.open("rb") as given, _opened(path) as stream:
        shutil.copyfileobj(given, stream)


def _opened(path: Path) -> BinaryIO:
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None:
        return path.open("wb")
    stdout, stderr, *numbers = found.groups()
    number = 1 if stdout else 2 if stderr else int(next(filter(None, numbers)))
    return os.fdopen(os.dup(number), "wb")


def _output_error(path: Path, error: OSError) -> OutputError:
    hint = None
    if error.errno == errno.ENOSPC and not is_stream(path):
        hint = space_hint(Path(os.path.realpath(path)).parent)
    elif not path.parent.is_dir():
        hint = f"the directory {path.parent} does not exist"
    return OutputError(f"cannot write {path}: {error.strerror or error}", hint)


def bytes_below(folder: Path) -> int:
    """Return the size of all files of a folder and of those in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
