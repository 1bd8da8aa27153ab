"""Slabs of a depthwise convolution's result: their rows, and the rows of the image that they read.

Slabs are equal but at the upper and lower border of the image, where padding is read, and where
the last one has fewer rows: each run of equal slabs is a convolution of its own.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from tvm_blislike.model.workload import Conv2dWorkload


@dataclass(frozen=True)
class Slabs:
    """A run of equal slabs.

    Parameters
    ----------
    first, last : int
        Numbers of the first and the last one.
    rows : int
        Rows of the result of each.
    above, below : int
        Rows of padding that it reads.
    """

    first: int
    last: int
    rows: int
    above: int
    below: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.last - self.first + 1

    def depthwise(self, whole: Conv2dWorkload) -> Conv2dWorkload:
        """Return the convolution of one of them, of a single image."""
        left, right = whole.padding[1], whole.padding[3]
        read = _reach(whole, self.rows) - self.above - self.below
        padding = (self.above, left, self.below, right)
        return dataclasses.replace(whole, n=1, h=read, padding=padding)

    def pointwise(self, whole: Conv2dWorkload) -> Conv2dWorkload:
        """Return the 1x1 convolution of one of them, of a single image."""
        return dataclasses.replace(whole, n=1, h=self.rows)


def slabs_of(depthwise: Conv2dWorkload, rows: int) -> list[Slabs]:
    """Return the runs of slabs of so many rows, from top to bottom."""
    w, found = depthwise, list[Slabs]()
    for number in range(math.ceil(w.oh / rows)):
        taken = min(rows, w.oh - number * rows)
        start = number * rows * w.stride[0] - w.padding[0]
        below = max(0, start + _reach(w, taken) - w.h)
        slab = Slabs(number, number, taken, max(0, -start), below)
        before = found[-1] if found else None
        if before and dataclasses.astuple(before)[2:] == dataclasses.astuple(slab)[2:]:
            found[-1] = dataclasses.replace(before, last=number)
        else:
            found.append(slab)
    return found


def _reach(workload: Conv2dWorkload, rows: int) -> int:
    """Return the rows of the padded image that some rows of the result read."""
    w = workload
    return (rows - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1
