"""Writing results so that a failure leaves no partial file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tvm_blislike.errors import OutputError


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise OutputError when `path` cannot become a file; called before long work begins.

    Nothing is left behind: the attempt is made with a temporary file beside `path`.
    """
    with atomic_path(path, keep=False):
        pass


def make_folder(path: Path) -> None:
    """Make a folder for results, unless it exists; called before long work begins.

    Raises
    ------
    OutputError
        When it cannot be made, or nothing can be written into it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write to {path}: {error.strerror}") from error
    require_writable(path / "result")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str], keep: bool = True) -> Iterator[Path]:
    """Yield a fresh file name that takes the place of `path` when the block ends well.

    Parameters
    ----------
    path : path
        The file to write.
    keep : bool
        False drops what was written, which leaves `path` untouched.

    Raises
    ------
    OutputError
        When the directory is missing or not writable, or `path` is a directory.
    """
    path = Path(path)
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a directory")
    try:
        scratch = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise _output_error(path, error) from error
    with scratch as folder:
        fresh = Path(folder) / path.name
        yield fresh
        try:
            if keep:
                os.replace(fresh, path)
        except OSError as error:
            raise _output_error(path, error) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` (UTF-8) to `path`, all or nothing.

    Raises
    ------
    OutputError
        When it cannot be written.
    """
    with atomic_path(path) as fresh:
        try:
            fresh.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _output_error(Path(path), error) from error


def _output_error(path: Path, error: OSError) -> OutputError:
    hint = None if path.parent.is_dir() else f"the directory {path.parent} does not exist"
    return OutputError(f"cannot write {path}: {error.strerror or error}", hint)
