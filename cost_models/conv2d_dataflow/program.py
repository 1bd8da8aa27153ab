"""What a pass over a slab does, step by step: which operands are in registers, and since when.

YFlows (Zhou et al., "YFlows: Systematic Dataflow Exploration and Code Generation for Efficient
Neural Network Inference using SIMD Architectures on CPUs", CC 2024), algorithms 1 to 7. Code and
predicted time are both made from these programs. Outputs are counted in the slab from (0, 0), taps
are (ry, rx, group of channels), and tap (ry, rx) of output (y, x) reads the input pixel
(y * sh + ry * dh, x * sw + rx * dw), which is always there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

Tap = tuple[int, int, int]
# (first, count, what is alike in all of them).
Run = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True)
class Sizes:
    """What a pass computes: rows and columns of outputs, taps, groups of channels."""

    rows: int
    columns: int
    kh: int
    kw: int
    channels: int
    stride: tuple[int, int]
    dilation: tuple[int, int]

    @property
    def taps(self) -> tuple[Tap, ...]:
        """All taps, in the order of the packed weights."""
        return tuple(itertools.product(*map(range, (self.kh, self.kw, self.channels))))

    @property
    def inputs(self) -> tuple[int, int]:
        """Rows and columns of inputs."""
        (sh, sw), (dh, dw) = self.stride, self.dilation
        return (
            (self.rows - 1) * sh + (self.kh - 1) * dh + 1,
            (self.columns - 1) * sw + (self.kw - 1) * dw + 1,
        )


@dataclass(frozen=True)
class Use:
    """One operand of a multiply-add: from memory, or from a register which may be filled first."""

    register: int = -1
    load: bool = False
    store: bool = False


MEMORY = Use()


@dataclass(frozen=True)
class Step:
    """A multiply-add: tap and output, relative to the first one of the iteration."""

    tap: Tap
    y: int
    x: int
    out: Use = MEMORY
    data: Use = MEMORY
    weight: Use = MEMORY


@dataclass(frozen=True)
class Columns:
    """`count` iterations along a row, from the `first` on."""

    first: int
    count: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Rows:
    """`count` rows of the slab, from the `first` on; variables to load before and store after.

    `weights` are taps, `inputs` and `outputs` places; the register is the position in the tuple.
    """

    first: int
    count: int
    columns: tuple[Columns, ...]
    weights: tuple[Tap, ...] = ()
    inputs: tuple[tuple[int, int, int], ...] = ()
    outputs: tuple[tuple[int, int], ...] = ()
    stored: tuple[tuple[int, int], ...] = ()


def runs(count: int, alike: Callable[[int], tuple[int, ...]]) -> Iterator[Run]:
    """Yield iterations side by side that are alike as (first, count, what is alike)."""
    for key, group in itertools.groupby(range(count), alike):
        first, *rest = group
        yield first, 1 + len(rest), key


def alike_columns(
    count: int,
    alike: Callable[[int], tuple[int, ...]],
    steps: Callable[..., Iterable[Step]],
) -> tuple[Columns, ...]:
    """Return `count` iterations along a row; `steps` makes those of each kind from its `alike`."""
    return tuple(Columns(first, n, tuple(steps(*key))) for first, n, key in runs(count, alike))
