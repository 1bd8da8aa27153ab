"""Files of records: JSON lines that several processes append to, and any may be killed.

Each append is one write of whole lines under a lock; what a failed write left behind is cut off
again, and what a killed one left is ended by a newline before the next line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tvm_blislike.errors import InputError, OutputError
from tvm_blislike.files import atomic_path
from tvm_blislike.records.place import default_path as default_path
from tvm_blislike.records.record import BadRecordError, Record

HOW_TO_START = "`tvm-blislike tune MODEL.onnx` measures the layers of a model and keeps the times"
_LOCK_SECONDS = 60.0


@dataclass(frozen=True)
class BadLine:
    """A line that was skipped.

    Parameters
    ----------
    path : Path
        The file.
    number : int
        Of the line, from 1.
    reason : str
        Why it is no record.
    """

    path: Path
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}: {self.reason}"


def read(path: str | os.PathLike[str]) -> tuple[list[Record], list[BadLine]]:
    """Return the records of a file in order, and the lines that are none.

    Raises
    ------
    InputError
        When the file is missing or cannot be read.
    """
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise InputError(f"cannot read the records: {path} does not exist", HOW_TO_START) from error
    except OSError as error:
        raise InputError(f"cannot read the records {path}: {error.strerror}") from error
    records, bad = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(Record.from_json(line.decode("utf-8", errors="replace")))
        except BadRecordError as error:
            bad.append(BadLine(path, number, str(error)))
    return records, bad


def append(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Add records at the end of a file, all or none; the file and its folder may be missing.

    Raises
    ------
    OutputError
        When they cannot be written; the file then ends as before.
    """
    append_lines(path, [record.to_json().encode() for record in records])


def append_lines(path: str | os.PathLike[str], lines: Iterable[bytes]) -> None:
    """Add lines at the end of a file as `append` does.

    Raises
    ------
    OutputError
        When they cannot be written; the file then ends as before.
    """
    path, text = Path(path), b"".join(line + b"\n" for line in lines)
    if not text:
        return
    with _errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path), open(path, "a+b", buffering=0) as file:
            _append(file.fileno(), text)


def rewrite(path: str | os.PathLike[str], records: Sequence[Record]) -> None:
    """Replace the records of a file; nobody sees a part of them.

    Raises
    ------
    OutputError
        When they cannot be written; the file is then as before.
    """
    path = Path(path)
    with _errors(path), locked(path), atomic_path(path) as fresh:
        fresh.write_bytes(_lines(records))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing a file; may be nested.

    Raises
    ------
    OutputError
        When another process keeps the lock for a minute.
    """
    with _errors(path), _locked(path):
        yield


def _locked(path: Path) -> FileLock:
    return FileLock(f"{path}.lock", timeout=_LOCK_SECONDS, is_singleton=True)


def _append(file: int, text: bytes) -> None:
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        text = b"\n" + text
    try:
        if os.write(file, text) < len(text):
            raise OSError(28, "no space left on the device")
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size)
        raise


def _lines(records: Iterable[Record]) -> bytes:
    return "".join(f"{record.to_json()}\n" for record in records).encode()


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except Timeout as error:
        raise OutputError(
            f"cannot write {path}: another process keeps {path}.lock for {_LOCK_SECONDS:.0f} s"
        ) from error
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
