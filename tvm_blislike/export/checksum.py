"""The checksum at the end of a library: what was changed or damaged is seen before it is loaded.

A line of text behind the last byte that the ELF format knows of, where loaders do not look:
`head -c -85 model.so | sha256sum` computes it again. Apple's libraries have none: their system
checks the signature that its linker writes, which a line behind it would make invalid.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from tvm_blislike.errors import ModelError

_LINE = "tvm-blislike sha256 {}\n"
_BYTES = len(_LINE.format("0" * 64))
_BLOCK = 1 << 20
_ADVICE = "compile the model again; --no-verify (in Python verify=False) loads it as it is"


def append(path: Path) -> None:
    """Write the checksum behind the end of a library."""
    line = _LINE.format(sha256(path))
    with path.open("ab") as file:
        file.write(line.encode())


def verify(path: Path) -> None:
    """Check that a library is, byte by byte, what `append` saw.

    Raises
    ------
    ModelError
        When it is not, or has no checksum.
    """
    size = path.stat().st_size - _BYTES
    with path.open("rb") as file:
        file.seek(max(size, 0))
        line = file.read().decode("latin-1")
    if not re.fullmatch(_LINE.format("[0-9a-f]{64}"), line):
        raise ModelError(
            f"{path} ends without a checksum: it was not written by this version of "
            "tvm-blislike compile, or was changed since",
            _ADVICE,
        )
    if line != _LINE.format(sha256(path, size)):
        raise ModelError(f"{path} is damaged: its checksum does not fit its content", _ADVICE)


def sha256(path: str | os.PathLike[str], size: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first `size` bytes, in hexadecimal digits."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        left = os.fstat(file.fileno()).st_size if size is None else size
        while block := file.read(min(left, _BLOCK)):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
