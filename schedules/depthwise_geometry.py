"""A depthwise convolution's tiles: vectors, borders, copies of code; its packed weights.

Groups of few channels (`conv2d_grouped`) have the same, with `ci_group` sums one after another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.config import Config
from tvm_blislike.workload import Conv2dWorkload

# Machine code of one function: beyond this, borders are not split off.
CODE_BYTES = 60_000
# Of one FMA with its share of loads, and of one output's epilogue and store.
FMA_BYTES, OUTPUT_BYTES = 9, 40


@dataclass(frozen=True)
class DepthwiseGeometry:
    """Sizes that follow from a workload and a config."""

    workload: Conv2dWorkload
    config: Config

    @property
    def multiplier(self) -> int:
        """Output channels of one input channel."""
        return self.workload.co // self.workload.ci

    @property
    def ci_group(self) -> int:
        """Input channels of one group: 1 where the convolution is depthwise."""
        return self.workload.ci // self.workload.groups

    @property
    def co_group(self) -> int:
        """Output channels of one group."""
        return self.workload.co // self.workload.groups

    @property
    def ci_vector(self) -> int:
        """Input channels that one vector of output channels reads."""
        return self.config.nr // self.co_group * self.ci_group

    @property
    def vectors(self) -> int:
        """Vectors of output channels, the last one perhaps cut."""
        return math.ceil(self.workload.co / self.config.nr)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of rows and of columns."""
        w, c = self.workload, self.config
        return math.ceil(w.oh / c.tile_h), math.ceil(w.ow / c.tile_w)

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        sums = (self.ci_group,) if self.ci_group > 1 else ()
        return (self.vectors, *sums, self.workload.kh, self.workload.kw, self.config.nr)

    @property
    def padded_size(self) -> tuple[int, int]:
        """Height and width of the padded input, without rows and columns that no output reads."""
        w = self.workload
        return (
            (w.oh - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1,
            (w.ow - 1) * w.stride[1] + (w.kw - 1) * w.dilation[1] + 1,
        )

    def borders(self, axis: int) -> list[int]:
        """Return how many first and last tiles of rows (0) or columns (1) touch padding."""
        w, tile = self.workload, (self.config.tile_h, self.config.tile_w)[axis]
        size, out = ((w.h, w.oh), (w.w, w.ow))[axis]
        reach = ((w.kh, w.kw)[axis] - 1) * w.dilation[axis]
        starts = range(0, out, tile)
        before = w.padding[axis]
        first = sum(start * w.stride[axis] < before for start in starts)
        ends = [(min(start + tile, out) - 1) * w.stride[axis] - before + reach for start in starts]
        return [first, sum(end >= size for end in ends)]

    def variants(self, borders: bool) -> int:
        """Return the copies of the tile's code: interior, cut edges, and borders if asked for."""
        w, c = self.workload, self.config
        count = 1 + (w.co % c.nr).bit_count()
        for axis, cut in enumerate((w.oh % c.tile_h, w.ow % c.tile_w)):
            first, last = self.borders(axis) if borders else (0, 0)
            count *= min(self.tiles[axis], first + max(last, cut > 0) + 1)
        return count

    @property
    def copies(self) -> bool:
        """Whether the padded image is made first: split borders would take too much code."""
        return any(self.workload.padding) and self.variants(True) * self.tile_bytes > CODE_BYTES

    @property
    def code_bytes(self) -> int:
        """Approximate machine code of the function."""
        return self.variants(not self.copies) * self.tile_bytes

    @property
    def tile_bytes(self) -> int:
        """Approximate machine code of one tile."""
        taps = self.workload.kh * self.workload.kw * self.ci_group
        return self.config.tile_h * self.config.tile_w * (taps * FMA_BYTES + OUTPUT_BYTES)


def pack_weights(workload: Conv2dWorkload, config: Config, weights: np.ndarray) -> np.ndarray:
    """Pack OIHW weights vector by vector; lanes without a channel hold zeros.

    Parameters
    ----------
    weights : numpy.ndarray
        (co, ci / groups, kh, kw).

    Returns
    -------
    numpy.ndarray
        `DepthwiseGeometry.packed_shape`: (vectors, kh, kw, nr), or (vectors, ci / groups, kh, kw,
        nr) where groups have several input channels.
    """
    geo = DepthwiseGeometry(workload, config)
    missing = geo.vectors * config.nr - workload.co
    filled = np.pad(weights, ((0, missing), (0, 0), (0, 0), (0, 0)))
    by_vector = filled.reshape(geo.vectors, config.nr, *weights.shape[1:])
    packed = by_vector.transpose(0, 2, 3, 4, 1)
    return np.ascontiguousarray(packed).reshape(geo.packed_shape)


def pack_weights_te(workload: Conv2dWorkload, config: Config, weights: te.Tensor) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = DepthwiseGeometry(workload, config)

    def value(ov: Any, *index: Any) -> Any:
        *inner, ry, rx, lane = index
        o, i = ov * config.nr + lane, inner[0] if inner else 0
        if workload.co % config.nr == 0:
            return weights[o, i, ry, rx]
        zero = tirx.const(0, workload.dtype)
        return tirx.if_then_else(o < workload.co, weights[o, i, ry, rx], zero)

    return te.compute(geo.packed_shape, value, name="packed_weights")
