"""One axis of a transposed convolution, its outputs sorted into phases.

A transposed convolution adds x[i] * w[k] to output o = stride * i + dilation * k - padding. A
phase is the outputs of equal remainder modulo the stride: they meet the same kernel elements, and
those at equal distances in the input. So each phase is a convolution of stride 1 of the input.

The windows of several phases may coincide after a shift: with kernel 4, stride 2, padding 1 the
phases of outputs (2t, 2t + 1) meet 3 inputs in all, those of (2t - 1, 2t) the same 2. Then one
output too many is computed at either end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class PhasedAxis:
    """One axis of a transposed convolution: outputs o = stride * t + u - skip, phases u.

    Parameters
    ----------
    size, out : int
        Inputs and outputs.
    kernel, stride, dilation, padding : int
        As of the operator; `padding` at the beginning.
    skip : int
        Outputs that are computed before the first one that is wanted.
    """

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    padding: int
    skip: int = 0

    @property
    def count(self) -> int:
        """Outputs of one phase."""
        return math.ceil((self.out + self.skip) / self.stride)

    @property
    def reach(self) -> int:
        """Kernel elements with the gaps between them."""
        return (self.kernel - 1) * self.dilation + 1

    def first(self, phase: int) -> int:
        """Return the first kernel element that a phase meets."""
        return (phase - self.skip + self.padding) % self.stride

    def met(self, phase: int) -> int:
        """Return how many kernel elements a phase meets, gaps included; 1 instead of none."""
        if self.stride == 1:
            return self.kernel
        return max(1, math.ceil((self.reach - self.first(phase)) / self.stride))

    def window(self, phase: int) -> tuple[int, int]:
        """Return the first and last input, relative to t, of a phase."""
        last = (phase - self.skip + self.padding) // self.stride
        step = self.dilation if self.stride == 1 else 1
        return last - (self.met(phase) - 1) * step, last

    def union(self, phases: range) -> tuple[int, int]:
        """Return the first and last input that any of the phases meets."""
        windows = [self.window(phase) for phase in phases]
        first, last = min(first for first, _ in windows), max(last for _, last in windows)
        if first >= self.size or last + self.count <= 0:
            # Large paddings: outputs that meet no input at all, so any window will do.
            return 0, 0
        return first, last

    def elements(self, phases: range) -> int:
        """Return the kernel elements of the union of windows."""
        first, last = self.union(phases)
        return (last - first) // (self.dilation if self.stride == 1 else 1) + 1

    def table(self, phases: range) -> np.ndarray:
        """Return the kernel element of each phase and input of the union; `kernel` for none.

        Shape (phases, elements), inputs ascending.
        """
        first, last = self.union(phases)
        inputs = np.arange(first, last + 1, self.dilation if self.stride == 1 else 1)
        # Output o = stride * t + phase - skip meets input i = t + input.
        distance = np.array(phases)[:, None] - self.skip + self.padding - self.stride * inputs
        element, rest = np.divmod(distance, self.dilation)
        meets = (rest == 0) & (element >= 0) & (element < self.kernel)
        return np.where(meets, element, self.kernel).astype("int32")

    def together(self) -> PhasedAxis:
        """Return the axis with the shift at which the union of all phases costs least."""
        shifted = [replace(self, skip=skip) for skip in range(self.stride)]
        return min(shifted, key=lambda axis: axis.count * axis.elements(range(axis.stride)))
