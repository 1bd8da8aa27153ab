"""Sizes of a convolution by slabs that follow from its workload and its config."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tvm_blislike.cost_models.conv2d_dataflow.program import Sizes
from tvm_blislike.cost_models.conv_geometry import ConvGeometry
from tvm_blislike.model.layouts import Layout


@dataclass(frozen=True)
class DataflowGeometry(ConvGeometry):
    """Sizes that follow from a workload and a config."""

    @functools.cached_property
    def planar(self) -> bool:
        """Whether the image is NCHW, where the pixels of a channel lie side by side."""
        return self.config.data_layout == "NCHW"

    @functools.cached_property
    def ci_block(self) -> int:
        """Input channels that lie side by side; planar: those of a pass."""
        step = self.config.channels * self.config.ks
        return step if self.planar else Layout(self.config.data_layout).block or self.workload.ci

    @functools.cached_property
    def ci_blocks(self) -> int:
        """Blocks of input channels."""
        return self.workload.ci // self.ci_block

    @functools.cached_property
    def passes_of_block(self) -> int:
        """Passes over a slab for one block of input channels."""
        return self.ci_block // (self.config.channels * self.config.ks)

    @functools.cached_property
    def passes(self) -> int:
        """Passes over a slab, each for all taps of some input channels."""
        return self.ci_blocks * self.passes_of_block

    @functools.cached_property
    def tiles(self) -> int:
        """Tiles of nr output channels, the last one perhaps cut."""
        return -(-self.workload.co // self.config.nr)

    @functools.cached_property
    def co_block(self) -> int:
        """Output channels that lie side by side."""
        return Layout(self.config.out_layout).block or self.workload.co

    @functools.cached_property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        w, c = self.workload, self.config
        taps = (w.kh, w.kw, c.channels)
        return (self.tiles, self.ci_blocks, self.passes_of_block, *taps, c.nr * c.ks)

    @functools.cached_property
    def sizes(self) -> Sizes:
        """What the program of a pass depends on beside the config."""
        w, c = self.workload, self.config
        return Sizes(c.tile_h, w.ow, w.kh, w.kw, c.channels, w.stride, w.dilation)
