"""What programs of dataflows are made of: variables in registers, and loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm.script.ir_builder import tirx as T


class Registers:
    """Variables that stay in vector registers, a buffer each."""

    def __init__(self, length: int, dtype: str) -> None:
        self._length, self._dtype = length, dtype
        self._buffers: dict[int, Any] = {}

    def declare(self, number: int) -> None:
        """Make a buffer of a variable, once; of a negative number none."""
        if number >= 0 and number not in self._buffers:
            self._buffers[number] = T.alloc_buffer((self._length,), self._dtype)

    def put(self, number: int, value: Any, at: Any) -> None:
        """Fill a variable, or a vector of it."""
        T.buffer_store(self._buffers[number], value, [at])

    def get(self, number: int, at: Any) -> Any:
        """Return a variable, or a vector of it."""
        return self._buffers[number][at]


def iterations(first: int, count: int) -> Iterator[Any]:
    """Iterate in the code that is being built: no loop around a single iteration."""
    if count > 1:
        with T.serial(0, count) as index:
            yield index + first
    elif count:
        yield first
