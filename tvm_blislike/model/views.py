"""Tensors in other axes than they lie in memory: transposed, split, merged, repeated, not moved."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Elements of a part of an axis, and how far they lie apart: 0 where one is repeated.
Part = tuple[int, int]
Axis = tuple[Part, ...]


@dataclass(frozen=True)
class View:
    """Elements of a tensor by the axes of another one.

    Parameters
    ----------
    axes : tuple of tuple of (int, int)
        The parts of each axis, the outermost first: elements and stride, in elements of the tensor.
        An axis of several parts is a product of axes whose strides do not fit together. Parts of
        one element are left out.
    offset : int
        The first element.
    """

    axes: tuple[Axis, ...]
    offset: int = 0

    @classmethod
    def of(cls, shape: Sequence[int]) -> View:
        """Return a tensor as it lies in memory, row by row."""
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return cls(tuple(_axis([part]) for part in zip(shape, strides, strict=True)))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> View:
        """Return the view of data of JSON; its numbers may be expressions of TIR."""
        axes = (tuple((size, stride) for size, stride in axis) for axis in data["axes"])
        return cls(tuple(axes), data["offset"])

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements of each axis."""
        return tuple(math.prod(size for size, _ in axis) for axis in self.axes)

    def stride(self, axis: int) -> int | None:
        """Return the stride of an axis of one part at most, None for one of several."""
        parts = self.axes[axis]
        if len(parts) > 1:
            return None
        return parts[0][1] if parts else 0

    def permuted(self, order: Sequence[int]) -> View:
        """Return the view with its axes in another order."""
        return View(tuple(self.axes[axis] for axis in order), self.offset)

    def sliced(self, axis: int, begin: int, size: int, step: int = 1) -> View | None:
        """Return `size` elements of an axis, every `step`th; None where it has several parts."""
        stride = self.stride(axis)
        if stride is None:
            return None
        axes = list(self.axes)
        axes[axis] = _axis([(size, stride * step)])
        return View(tuple(axes), self.offset + begin * stride)

    def broadcast(self, shape: Sequence[int]) -> View:
        """Return the view with axes of one element repeated, and new ones in front."""
        missing = len(shape) - len(self.axes)
        axes = ((),) * missing + self.axes
        pairs = zip(axes, shape, strict=True)
        grown = (axis or _axis([(size, 0)]) for axis, size in pairs)
        return View(tuple(grown), self.offset)

    def repeated(self, axis: int, times: int) -> View:
        """Return the view with each element of an axis several times in a row."""
        axes = list(self.axes)
        axes[axis] = _axis([*axes[axis], (times, 0)])
        return View(tuple(axes), self.offset)

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Return the elements in the same order by other axes, None where a part cannot be cut."""
        parts = [part for axis in self.axes for part in axis]
        axes: list[Axis] = []
        for size in reversed(shape):
            axis = _taken(parts, size)
            if axis is None:
                return None
            axes.append(_axis(axis))
        return View(tuple(reversed(axes)), self.offset)

    def at(self, *index: Any) -> Any:
        """Return the place of an element in the tensor; indices may be expressions of TIR."""
        place: Any = self.offset
        for axis, i in zip(self.axes, index, strict=True):
            for term in _terms(axis, i):
                place = place + term
        return place


def _axis(parts: Sequence[Part]) -> Axis:
    """Return an axis in as few parts as possible."""
    kept: list[Part] = []
    for size, stride in parts:
        if size == 1:
            continue
        if kept and kept[-1][1] == size * stride:
            kept[-1] = (kept[-1][0] * size, stride)
        else:
            kept.append((size, stride))
    return tuple(kept)


def _taken(parts: list[Part], size: int) -> list[Part] | None:
    """Take so many elements from the innermost parts; None where one would have to be cut unevenly.

    What is left of a part stays.
    """
    axis: list[Part] = []
    while size > 1:
        elements, stride = parts.pop()
        taken = math.gcd(elements, size)
        if taken != min(elements, size):
            return None
        if taken < elements:
            parts.append((elements // taken, stride * taken))
        axis.insert(0, (taken, stride))
        size //= taken
    return axis


def _terms(axis: Axis, index: Any) -> Iterator[Any]:
    """Yield what each part of an axis adds to the place of an element."""
    if len(axis) == 1:
        yield index * axis[0][1]
        return
    inner = 1
    for place, (size, stride) in enumerate(reversed(axis)):
        of_part = index // inner if inner > 1 else index
        if stride:
            yield (of_part if place == len(axis) - 1 else of_part % size) * stride
        inner *= size
