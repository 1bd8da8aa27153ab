"""Sizes of a convolution by slabs that follow from its workload and its config."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.cost_models.conv2d_dataflow.program import Sizes
from tvm_blislike.cost_models.conv_geometry import ConvGeometry
from tvm_blislike.model.derived import derived
from tvm_blislike.model.layouts import Layout


@dataclass(frozen=True)
class DataflowGeometry(ConvGeometry):
    """Sizes that follow from a workload and a config."""

    @derived
    def planar(self) -> bool:
        """Whether the image is NCHW, where the pixels of a channel lie side by side."""
        return self.config.data_layout == "NCHW"

    @derived
    def ci_block(self) -> int:
        """Input channels that lie side by side; planar: those of a pass."""
        step = self.config.channels * self.config.ks
        return step if self.planar else Layout(self.config.data_layout).block or self.workload.ci

    @derived
    def ci_blocks(self) -> int:
        """Blocks of input channels."""
        return self.workload.ci // self.ci_block

    @derived
    def passes_of_block(self) -> int:
        """Passes over a slab for one block of input channels."""
        return self.ci_block // (self.config.channels * self.config.ks)

    @derived
    def passes(self) -> int:
        """Passes over a slab, each for all taps of some input channels."""
        return self.ci_blocks * self.passes_of_block

    @derived
    def tiles(self) -> int:
        """Tiles of nr output channels, the last one perhaps cut."""
        return -(-self.workload.co // self.config.nr)

    @derived
    def co_block(self) -> int:
        """Output channels that lie side by side."""
        return Layout(self.config.out_layout).block or self.workload.co

    @derived
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        w, c = self.workload, self.config
        taps = (w.kh, w.kw, c.channels)
        return (self.tiles, self.ci_blocks, self.passes_of_block, *taps, c.nr * c.ks)

    @derived
    def sizes(self) -> Sizes:
        """What the program of a pass depends on beside the config."""
        w, c = self.workload, self.config
        return Sizes(c.tile_h, w.ow, w.kh, w.kw, c.channels, w.stride, w.dilation)
