"""Weights of a kept model in a file, which is read at once to where the model runs on them.

They lie there one behind the other, aligned as kernels count on. All of them together are one piece
of memory, which comes from huge pages where there are any: moving 190 MB onto these later takes as
long as all else of a start. Threads read and check pieces of it, each with a checksum of its own.
"""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_blislike.errors import ModelError
from tvm_blislike.runtime.arrays import ALIGNMENT
from tvm_blislike.runtime.huge_pages import on_huge_pages
from tvm_blislike.side_by_side import code_threads, side_by_side

if TYPE_CHECKING:
    from tvm_blislike.tvm_seams.loaded import Weights

# Few enough for a list of checksums, small enough for threads to end together.
_PIECE_BYTES = 4 << 20


def write(weights: Weights, path: Path) -> dict[str, Any]:
    """Write weights into a file; return how they lie there, which JSON can hold.

    Raises
    ------
    OSError
        When it cannot be written.
    """
    from tvm_blislike.tvm_seams import loaded

    tensors = list({t.data_ptr(): t for each in weights.values() for t in each}.values())
    sizes = [_padded(loaded.bytes_of(tensor)) for tensor in tensors]
    numbers = {tensor.data_ptr(): number for number, tensor in enumerate(tensors)}
    with path.open("wb") as file:
        for tensor, size in zip(tensors, sizes, strict=True):
            memory = loaded.memory_of(tensor)
            file.write(memory)
            file.write(bytes(size - len(memory)))
    starts = [0, *accumulate(sizes)]
    return {
        "bytes": starts[-1],
        "pieces": _digests(path, starts[-1]),
        "tensors": [
            [str(tensor.dtype), list(map(int, tensor.shape)), start]
            for tensor, start in zip(tensors, starts[:-1], strict=True)
        ],
        "functions": {
            name: [numbers[tensor.data_ptr()] for tensor in each] for name, each in weights.items()
        },
    }


def read(path: Path, told: dict[str, Any]) -> Weights:
    """Return the weights that `write` wrote into a file.

    Parameters
    ----------
    path : Path
        The file.
    told : dict
        What `write` returned.

    Raises
    ------
    ModelError, OSError, KeyError
        When they are damaged.
    """
    from tvm_blislike.tvm_seams import loaded

    size = told["bytes"]
    if path.stat().st_size != size:
        raise ModelError(f"{path} is damaged: it is not as long as it was")
    whole = loaded.empty((size,), "uint8")
    on_huge_pages(whole)
    fill = partial(_fill, path, loaded.memory_of(whole))
    side_by_side(fill, enumerate(told["pieces"]), code_threads())
    tensors = [loaded.part_of(whole, start, shape, d) for d, shape, start in told["tensors"]]
    return {name: [tensors[n] for n in each] for name, each in told["functions"].items()}


def _fill(path: Path, memory: memoryview, piece: tuple[int, str]) -> None:
    """Read a piece of a file to its place in memory, and check it."""
    number, digest = piece
    start = number * _PIECE_BYTES
    part = memory[start : start + _PIECE_BYTES]
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        done = 0
        while done < len(part) and (count := file.readinto(part[done:])):
            done += count
    if hashlib.sha256(part).hexdigest() != digest:
        raise ModelError(f"{path} is damaged: its checksum does not fit its content")


def _digests(path: Path, size: int) -> list[str]:
    """Return the checksum of each piece of a file."""
    with path.open("rb") as file:
        pieces = range(0, size, _PIECE_BYTES)
        return [hashlib.sha256(file.read(_PIECE_BYTES)).hexdigest() for _ in pieces]


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
