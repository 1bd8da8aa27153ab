"""A depthwise convolution's tiles: vectors, borders, copies of code.

Groups of few channels (`conv2d_grouped`) have the same, with `ci_group` sums one after another, and
volumes (`conv3d_depthwise`), with one for each slice of the kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_blislike.cost_models.conv_geometry import ConvGeometry
from tvm_blislike.microkernels.products import groups
from tvm_blislike.model.derived import derived

# Machine code of one function: beyond this, borders are not split off.
CODE_BYTES = 60_000
# Rows of tiles at the upper and lower border that have code of their own; more of them share it. So
# 5x5 layers, of four such rows, are 1.00 to 1.25 times as fast and compile in half of the time; 3x3
# layers, of two, would be 0.98 to 1.04 times as fast (Zen 3).
OWN_BORDERS = 2
# Of one FMA with its share of loads, and of one output's epilogue and store.
FMA_BYTES, OUTPUT_BYTES = 9, 40


@dataclass(frozen=True)
class DepthwiseGeometry(ConvGeometry):
    """Sizes that follow from a workload and a config."""

    @derived
    def multiplier(self) -> int:
        """Output channels of one input channel."""
        return self.workload.co // self.workload.ci

    @derived
    def ci_vector(self) -> int:
        """Input channels that one vector of output channels reads."""
        return self.config.nr // self.co_group * self.ci_group

    @derived
    def sums(self) -> int:
        """Windows that a result is summed over: of input channels, or of slices of a volume."""
        return self.ci_group * self.workload.kd

    @derived
    def vectors(self) -> int:
        """Vectors of output channels, the last one perhaps cut."""
        return math.ceil(self.workload.co / self.config.nr)

    @derived
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        sums = (self.sums,) if self.sums > 1 else ()
        lanes = self.config.nr * self.config.ks
        return (self.vectors, *sums, self.row_groups, self.workload.kw, lanes)

    @derived
    def row_groups(self) -> int:
        """Groups of ks rows of the kernel, the last one perhaps filled up with zeros."""
        return groups(self.workload.kh, self.config.ks)

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

    @derived
    def depth_borders(self) -> tuple[int, int]:
        """Return how many first and last output slices of a volume touch padding."""
        w = self.workload
        first = sum(w.image_met(image, 0) < 0 for image in range(w.od))
        last = sum(w.image_met(image, w.kd - 1) >= w.n for image in range(w.od))
        return first, last

    @derived
    def shares_border(self) -> bool:
        """Whether rows of tiles at the upper and lower border share code, a row of the kernel's."""
        return self.config.ks == 1 and sum(self.borders(0)) > OWN_BORDERS

    def variants(self, borders: bool) -> int:
        """Return the copies of the tile's code: interior, cut edges, and borders if asked for.

        Rows that share theirs count as if each had its own: an upper bound.
        """
        w, c = self.workload, self.config
        count = 1 + (w.co % c.nr).bit_count()
        count *= min(w.od, sum(self.depth_borders) + 1)
        cuts = (self.tiles_h, w.oh % c.tile_h), (self.tiles_w, w.ow % c.tile_w)
        for axis, (tiles, cut) in enumerate(cuts):
            first, last = self.borders(axis) if borders else (0, 0)
            count *= min(tiles, first + max(last, cut > 0) + 1)
        return count

    @derived
    def copies(self) -> bool:
        """Whether the padded image is made first: split borders would take too much code."""
        return any(self.workload.padding) and self.variants(True) * self.tile_bytes > CODE_BYTES

    @derived
    def code_bytes(self) -> int:
        """Approximate machine code of the function."""
        return self.variants(not self.copies) * self.tile_bytes

    @derived
    def tile_bytes(self) -> int:
        """Approximate machine code of one tile."""
        taps = self.row_groups * self.workload.kw * self.sums
        return self.config.tile_h * self.config.tile_w * (taps * FMA_BYTES + OUTPUT_BYTES)
