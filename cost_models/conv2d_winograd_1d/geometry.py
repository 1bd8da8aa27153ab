"""Sizes of a blocked one-dimensional Winograd convolution."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.conv2d_winograd_1d.config import Winograd1dConfig
from tvm_blislike.model.derived import derived


@dataclass(frozen=True)
class Winograd1dGeometry(WinogradGeometry):
    """Sizes where only the width is transformed: a tile is `tile_w` outputs of one row.

    A product sums over kernel rows and channels, so V holds kh - 1 rows of tiles more than the
    block has. With `Winograd1dConfig.ring`, that many blocks, one below the other, are a strip:
    their rows of V lie in a ring, and each is transformed once per strip.
    """

    config: Winograd1dConfig

    @derived
    def patch_h(self) -> int:
        """No points along the height."""
        return 1

    @derived
    def ring(self) -> bool:
        """Whether blocks find rows of V that the block above has transformed."""
        return self.config.ring > 0

    @derived
    def strip(self) -> int:
        """Blocks in a strip."""
        return max(1, self.config.ring)

    @derived
    def strips(self) -> int:
        """Strips along the height."""
        return math.ceil(self.tiles_h / (self.block_h * self.strip))

    @derived
    def blocks_h(self) -> int:
        """Blocks along the height; strips are whole."""
        return self.strips * self.strip

    @derived
    def parts_h(self) -> int:
        """Parts of the height that threads can compute independently."""
        return self.strips

    @derived
    def rows(self) -> int:
        """Rows of a block that products keep apart: in a ring, no block of C may cross its end."""
        return self.block_h if self.ring else 1

    @derived
    def steps(self) -> int:
        """Steps of k in a product: kernel rows times channels."""
        return self.workload.kh * self.workload.ci

    @derived
    def sums_rows(self) -> bool:
        """The kernel's rows, too."""
        return True

    @derived
    def v_rows(self) -> int:
        """Rows of the transformed input of a block, each `block_w` tiles, one per tile."""
        return (self.block_h + self.workload.kh - 1) * self.block_w

    @derived
    def input_work(self) -> float:
        """Vectors that a block's input transform loads, stores or computes, per vector of ci."""
        halo = (self.workload.kh - 1) / self.strip
        return 2.0 * (self.block_h + halo) * self.block_w * self.points

    @derived
    def output_work(self) -> float:
        """Vectors that a block's output transform loads, stores or computes, per vector of co."""
        return 1.5 * self.tiles * (self.points + self.config.tile_w)

    @derived
    def blocking(self) -> tuple[int | str, ...]:
        """Sizes that tell two configurations of a layer apart, but for chunks of channels."""
        return (self.config.ring, *super().blocking)

    @derived
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the transformed weights: (chunks, patch_w, panels, kh, ci, nr)."""
        w = self.workload
        return (self.chunks, self.patch_w, self.panels, w.kh, w.ci, self.config.nr)
