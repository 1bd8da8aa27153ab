"""What a micro-kernel's code is made of while it is being built: its shape and its buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
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

    @classmethod
    def part(cls, buffer: Any, shape: Sequence[int], *first: Any) -> Operand:
        """Return a part of a buffer, of its last axes, from the element `first` on."""
        operand = _Part.__new__(_Part)
        operand.shape, operand.kept = tuple(shape), tuple(buffer.shape)
        operand.buffer, operand.first = buffer, first
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


class _Part(Operand):
    """Elements from `first` on, an index of all axes of the buffer."""

    first: tuple[Any, ...]

    def at(self, *index: Any) -> list[Any]:
        own = index[-len(self.shape) :]
        outer = len(self.first) - len(own)
        return [*self.first[:outer], *map(_moved, own, self.first[outer:])]


def _moved(index: Any, by: Any) -> Any:
    """Return an index, or neighbouring ones as a ramp, further on."""
    if isinstance(index, tirx.Add) and isinstance(index.b, tirx.Ramp):
        # A step of k and a vector of steps behind it.
        return _moved(index.b, index.a.value + by)
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(index.base + by, index.stride, index.lanes)
    return index + by


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
