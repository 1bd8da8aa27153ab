"""What a micro-kernel's code is made of while it is being built: its shape and its buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.update_shape import UpdateShape


class Operand:
    """A buffer declared without leading unit axes but indexed with all of them."""

    def __init__(self, shape: Sequence[int], dtype: str, contiguous: bool) -> None:
        self.shape = tuple(shape)
        self.kept = _squeeze(shape)
        handle = T.arg("p", T.handle())
        strides = None
        if not contiguous:
            strides = [T.int32() for _ in self.kept[:-1]] + [1]
        self.buffer = T.match_buffer(handle, self.kept, dtype, offset_factor=1, strides=strides)

    @classmethod
    def local(cls, shape: Sequence[int], dtype: str) -> Operand:
        """Return a buffer of the micro-kernel's own."""
        operand = cls.__new__(cls)
        operand.shape = tuple(shape)
        operand.kept = _squeeze(shape)
        operand.buffer = T.alloc_buffer(operand.kept, dtype)
        return operand

    def at(self, *index: Any) -> list[Any]:
        """Return the index of an element as the buffer counts its axes."""
        return list(index[-len(self.kept) :])

    def stride(self, axis: int) -> Any:
        """Return the elements from one index to the next of an axis that is counted from behind."""
        strides = self.buffer.strides
        return strides[axis] if len(strides) else math.prod(self.kept[axis:][1:])

    def address(self) -> Any:
        """Return the address of the first element."""
        return T.address_of(self.buffer[self.at(*[0] * len(self.shape))])

    def region(self) -> Any:
        """Return all of the buffer."""
        return self.buffer[tuple(slice(0, s) for s in self.kept)]


@dataclass(frozen=True)
class Update:
    """One use of a micro-kernel: C (mh, mw, nr) += A (`shape.a_shape`) x B (steps, nr * ks)."""

    kernel: Microkernel
    shape: UpdateShape
    a: Operand
    b: Operand
    c: Operand


def _squeeze(shape: Sequence[int]) -> tuple[int, ...]:
    """Drop leading axes of extent one; those further in are there in every buffer."""
    first = next((axis for axis, extent in enumerate(shape) if extent != 1), len(shape) - 1)
    return tuple(shape[first:])
