"""Sizes of a blocked direct convolution that follow from its workload and its config."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_blislike.cost_models.conv_geometry import ConvGeometry
from tvm_blislike.cost_models.data_types import most_steps
from tvm_blislike.microkernels.masks import closing_rows
from tvm_blislike.microkernels.products import groups
from tvm_blislike.model.derived import derived
from tvm_blislike.model.layouts import Layout


@dataclass(frozen=True)
class DirectGeometry(ConvGeometry):
    """Sizes that follow from a workload and a config.

    A tile of nr channels holds `blocks` whole output blocks (NCHWc), or is one of `parts` pieces
    of the output channels of a group (NHWC).

    Where a multiply-add takes groups of ks elements of k, a call runs over a *run* of elements that
    lie side by side, the last group filled up: the channels of a pixel, or those of a whole row of
    the kernel (`by_row`). A filled group meets weights of zero, but must not end beyond the image:
    then the image is copied, as it is where there is padding.
    """

    @derived
    def window(self) -> bool:
        """Whether the input is NCHW: k runs over one kernel row instead of input channels."""
        return self.config.data_layout == "NCHW"

    @derived
    def ci_block(self) -> int:
        """Input channels that lie side by side: k steps of a micro-kernel call."""
        return 1 if self.window else Layout(self.config.data_layout).block or self.ci_group

    @derived
    def ci_blocks(self) -> int:
        """Input blocks of one group."""
        return self.ci_group // self.ci_block

    @derived
    def copies(self) -> bool:
        """Whether micro-kernels read a copy of the input: padded, or with room for whole groups."""
        return any(self.workload.padding) or self.ci_group % self.config.ks > 0

    @derived
    def by_row(self) -> bool:
        """Whether a run is a row of the kernel, whose pixels lie side by side in a copy in NHWC."""
        w = self.workload
        grouped = self.config.ks > 1 or w.types.is_bits
        plain = self.config.data_layout == "NHWC" and w.groups == 1 and w.dilation[1] == 1
        return grouped and plain and self.copies

    @derived
    def run(self) -> int:
        """Elements of k of a call, of a pixel or `by_row`."""
        return self.workload.kw * self.ci_group if self.by_row else self.ci_block

    @derived
    def run_groups(self) -> int:
        """Groups of ks that hold a run."""
        return groups(self.run, self.config.ks)

    @derived
    def k_groups(self) -> int:
        """Groups of all of k."""
        w = self.workload
        return self.ci_blocks * w.kh * (1 if self.by_row else w.kw) * self.run_groups

    @derived
    def copy_shape(self) -> tuple[int, ...]:
        """Shape of a copy of the whole input: a row has one axis `by_row`, else pixels do."""
        w, ks = self.workload, self.config.ks
        height, width = self.padded_size
        if self.by_row:
            return w.n, height, (w.ow - 1) * w.stride[1] * w.ci + self.run_groups * ks
        channels = w.groups * self.run_groups * ks if self.ci_group % ks else w.ci
        return Layout(self.config.data_layout).shape(w.n, channels, height, width)

    @derived
    def co_block(self) -> int:
        """Output channels of one group that lie side by side."""
        return Layout(self.config.out_layout).block or self.co_group

    @derived
    def co_blocks(self) -> int:
        """Output blocks of one group."""
        return self.co_group // self.co_block

    @derived
    def blocks(self) -> int:
        """Output blocks in a tile of nr channels."""
        return self.config.nr // self.co_block if self.is_blocked else 1

    @derived
    def is_blocked(self) -> bool:
        """Whether the output is NCHWc."""
        return Layout(self.config.out_layout).block > 0

    @derived
    def parts(self) -> int:
        """Tiles of nr channels in one output block."""
        return 1 if self.is_blocked else math.ceil(self.co_block / self.config.nr)

    @derived
    def tiles(self) -> int:
        """Tiles of nr channels in one group."""
        return math.ceil(self.co_blocks / self.blocks) * self.parts

    @derived
    def slabs(self) -> int:
        """Slabs of an image."""
        return math.ceil(self.tiles_h / self.config.oh_block)

    def busiest_share(self, threads: int) -> float:
        """Return the share of all calls that the busiest thread makes."""
        n, groups = self.workload.n, self.workload.groups
        if n % threads == 0:
            return 1 / threads
        if self.config.loop_order == "rows":
            return math.ceil(self.slabs / threads) / self.slabs
        outer = groups if groups > 1 else self.tiles
        return math.ceil(outer / threads) / outer

    @derived
    def sum_units(self) -> int:
        """Input blocks, or kernel rows where there is one block: whole ones make a chunk."""
        return self.ci_blocks if self.ci_blocks > 1 else self.workload.kh

    @derived
    def unit_steps(self) -> int:
        """Products per output in one of `sum_units`."""
        w = self.workload
        return w.kw * self.ci_block * (w.kh if self.ci_blocks > 1 else 1)

    @derived
    def chunks(self) -> int:
        """Equal parts of the sum of an output, each of about `most_steps` products."""
        most = most_steps(self.workload.types)
        if self.sum_units * self.unit_steps <= most:
            return 1
        parts = [c for c in range(1, self.sum_units + 1) if self.sum_units % c == 0]
        steps = self.sum_units * self.unit_steps
        return min(parts, key=lambda c: abs(math.log(steps / c / most)))

    @derived
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        w, ks = self.workload, self.config.ks
        taps = (w.kh,) if self.by_row else (w.kh, w.kw)
        run = () if self.window else (self.run_groups + closing_rows(w.types),)
        return (w.groups, self.tiles, self.ci_blocks, *taps, *run, self.config.nr * ks)
