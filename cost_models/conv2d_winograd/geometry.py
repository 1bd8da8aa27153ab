"""Sizes of a blocked Winograd convolution that follow from its workload and its config."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_blislike.cost_models import conv_geometry
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, FLAT, BlockedConfig
from tvm_blislike.cost_models.conv2d_winograd.integers import transformed
from tvm_blislike.cost_models.conv_geometry import ConvGeometry
from tvm_blislike.cost_models.parallel import share
from tvm_blislike.model.derived import derived
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.workload import Conv2dWorkload

# Channels of an NHWC image that are transformed together, whole vectors of any width.
NHWC_BLOCK = 16
# Work of the busiest thread, relative to equal parts, at which a finer division gains nothing.
EVEN_SHARE = 1.02


def matrices_elements(points: int, tiles: int, channels: int, lanes: int) -> int:
    """Return the elements of V or P: a matrix of tiles x channels for each point.

    A matrix takes an odd number of vectors: points a multiple of a page apart would share one
    cache set.
    """
    return points * lanes * (math.ceil(tiles * channels / lanes) | 1)


@dataclass(frozen=True)
class WinogradGeometry(ConvGeometry):
    """Sizes that follow from a workload and a config.

    The image is cut into tiles of `tile_h` x `tile_w` outputs. A block is `oh_block` rows of
    tiles, `mc` tiles altogether; its products are `mc` x `nc` matrices, one for each of the
    `points`. Tiles beyond the image, which make the last block whole, compute on zeros. With a
    stride, a point sums the products of all `phases` of the image.
    """

    config: BlockedConfig

    @derived
    def patch_h(self) -> int:
        """Input rows that a tile reads, and products along the height: the n of F(m, r)."""
        return self.workload.stride[0] * (self.config.tile_h - 1) + self.workload.kh

    @derived
    def patch_w(self) -> int:
        """Input columns that a tile reads."""
        return self.workload.stride[1] * (self.config.tile_w - 1) + self.workload.kw

    @derived
    def multiplications(self) -> int:
        """Products of a tile for each pair of channels."""
        return self.patch_h * self.patch_w

    @derived
    def points_hw(self) -> tuple[int, int]:
        """Points along height and width: products of all phases of the image are added in each."""
        height, width = self.workload.stride
        return math.ceil(self.patch_h / height), math.ceil(self.patch_w / width)

    @derived
    def points(self) -> int:
        """Sums of products of a tile for each output channel."""
        return math.prod(self.points_hw)

    @derived
    def phases(self) -> tuple[int, int]:
        """Phases of the image along height and width: rows 0, s, 2 s, ... are one."""
        (height, width), w = self.workload.stride, self.workload
        return min(height, w.kh), min(width, w.kw)

    @derived
    def last_phases(self) -> tuple[int, int]:
        """Phases along height and width that have a product at the last point."""
        (height, width), (down, across) = self.points_hw, self.phases
        return self.patch_h - (height - 1) * down, self.patch_w - (width - 1) * across

    @derived
    def phased(self) -> bool:
        """Whether products are sums over phases."""
        return self.phases != (1, 1)

    @derived
    def block_h(self) -> int:
        """Rows of tiles in a block."""
        return self.config.oh_block

    @derived
    def block_w(self) -> int:
        """Tiles per row in a block."""
        return self.config.mc // self.config.oh_block

    @derived
    def blocks_h(self) -> int:
        """Blocks along the height."""
        return math.ceil(self.tiles_h / self.block_h)

    @derived
    def parts_h(self) -> int:
        """Parts of the height that threads can compute independently."""
        return self.blocks_h

    @derived
    def parts(self) -> int:
        """What threads divide: blocks of tiles, in "channels" order those of every chunk."""
        return self.oc_parts * self.workload.n * self.parts_h * self.blocks_w

    @derived
    def oc_parts(self) -> int:
        """Parts of the output channels that may be computed by different threads."""
        c = self.config
        return self.chunks if c.loop_order == CHANNELS else math.gcd(c.oc_parts, self.chunks)

    def may_have_parts(self, parts: int) -> bool:
        """Whether so many parts of the output channels are possible.

        Each transforms the input channels that it reads. Those of several groups are whole groups,
        or blocks of channels would be cut.
        """
        w = self.workload
        in_groups = self.groups % parts == 0 and w.ci // parts % self.in_block == 0
        return self.chunks % parts == 0 and (not self.is_grouped or in_groups)

    @derived
    def part_channels(self) -> int:
        """Input channels that are transformed for a part of the output channels."""
        w = self.workload
        every = not self.is_grouped or self.config.loop_order == CHANNELS
        return w.ci if every else w.ci // self.oc_parts

    def divided_loops(self, threads: int) -> int:
        """Return how many loops of the input transform of "channels" order threads divide.

        Images, blocks along height and width, rows of tiles in a block; where that leaves a
        thread idle for long also tiles of a row, then blocks of channels (of which the last must
        be a whole one).
        """
        rows = self.blocks * self.block_h
        enough = [share(n, threads) <= EVEN_SHARE / threads for n in (rows, rows * self.block_w)]
        if enough[0]:
            return 4
        return 5 if enough[1] or self.workload.ci % self.in_block else 6

    def transform_share(self, threads: int) -> float:
        """Return the part of the busiest thread in an input transform by itself."""
        parts = self.blocks * self.block_h
        for size in (self.block_w, self.in_blocks)[: self.divided_loops(threads) - 4]:
            parts *= size
        return share(parts, threads)

    @derived
    def rows(self) -> int:
        """Rows of a block that products keep apart."""
        return 1

    @derived
    def row_tiles(self) -> int:
        """Tiles in such a row, cut into micro-kernel blocks."""
        return self.tiles // self.rows

    @derived
    def blocks_w(self) -> int:
        """Blocks along the width."""
        return math.ceil(self.tiles_w / self.block_w)

    @derived
    def tiles(self) -> int:
        """Tiles in a block."""
        return self.config.mc

    @derived
    def blocks(self) -> int:
        """Blocks in a batch of images."""
        return self.workload.n * self.blocks_h * self.blocks_w

    @derived
    def steps(self) -> int:
        """Steps of k in a product: what one micro-kernel call sums over."""
        return self.summed // self.config.ks

    @derived
    def summed(self) -> int:
        """Input channels that a product sums over: those of a group, or of joined ones."""
        return self.workload.ci // self.groups

    @derived
    def joined(self) -> int:
        """Groups that are multiplied as one, with zeros between them, since they fill no panel."""
        channels = self.workload.co // self.workload.groups
        return self.config.nr // math.gcd(self.config.nr, channels) if self.is_grouped else 1

    @derived
    def is_grouped(self) -> bool:
        """Whether there are several groups."""
        return self.workload.groups > 1

    @derived
    def groups(self) -> int:
        """Groups of channels with products of their own."""
        return self.workload.groups // self.joined

    @derived
    def group_panels(self) -> int:
        """Panels of the output channels of a group of products, which fill them if it is one."""
        return math.ceil(self.workload.co // self.groups / self.config.nr)

    @derived
    def sums_rows(self) -> bool:
        """Whether a product sums over kernel rows besides channels."""
        return False

    @derived
    def v_rows(self) -> int:
        """Rows of the transformed input of a block: one per tile."""
        return self.tiles

    @derived
    def flat(self) -> bool:
        """Whether patches are transformed in one pass."""
        return self.config.transform == FLAT

    @derived
    def half_shape(self) -> tuple[int, int]:
        """Rows and columns of a tile between the passes of the output transform."""
        return self.config.tile_h, self.config.tile_w if self.flat else self.points_hw[1]

    @derived
    def input_work(self) -> float:
        """Vectors that a block's input transform loads, stores or computes, per vector of ci."""
        return 4.0 * self.tiles * self.multiplications

    @derived
    def output_work(self) -> float:
        """Vectors that a block's output transform loads, stores or computes, per vector of co."""
        half = math.prod(self.half_shape)
        outputs = self.config.tile_h * self.config.tile_w
        return 1.5 * self.tiles * (self.points + 2 * half + outputs)

    @derived
    def v_bytes(self) -> int:
        """Size of the transformed input of a block."""
        channels, lanes = self.part_channels, self.lanes
        elements = matrices_elements(self.multiplications, self.v_rows, channels, lanes)
        return transformed(self.workload.types).a_bytes * elements

    @derived
    def p_bytes(self) -> int:
        """Size of the products of a block and a chunk."""
        elements = matrices_elements(self.points, self.tiles, self.config.nc, self.lanes)
        return self.workload.types.acc_bytes * elements

    @derived
    def lanes(self) -> int:
        """Elements that matrices are aligned to."""
        return Layout(self.config.out_layout).block or NHWC_BLOCK

    @derived
    def in_block(self) -> int:
        """Input channels that are transformed together; the last ones of NHWC may be fewer."""
        return Layout(self.config.data_layout).block or NHWC_BLOCK

    @derived
    def in_blocks(self) -> int:
        """Blocks of input channels, the last one perhaps cut."""
        return math.ceil(self.workload.ci / self.in_block)

    @derived
    def out_block(self) -> int:
        """Output channels that are transformed together; the last ones of NHWC may be fewer."""
        return Layout(self.config.out_layout).block or math.gcd(NHWC_BLOCK, self.config.nr)

    @derived
    def out_blocks(self) -> int:
        """Blocks of output channels, the last one perhaps cut."""
        return math.ceil(self.workload.co / self.out_block)

    @derived
    def chunks(self) -> int:
        """Chunks of nc output channels; the last one may reach beyond them."""
        return math.ceil(self.workload.co / self.config.nc)

    @derived
    def panels(self) -> int:
        """Panels of nr output channels in a chunk."""
        return self.config.nc // self.config.nr

    @derived
    def blocking(self) -> tuple[int | str, ...]:
        """Sizes that tell two configurations of a layer apart, but for chunks of channels."""
        c = self.config
        tile = (c.tile_h, c.tile_w, c.transform, c.mr, c.nr, c.ks)
        return (*tile, c.mc, c.oh_block, self.panels * self.chunks)

    @derived
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the transformed weights: (chunks, patch_h, patch_w, panels, steps, nr * ks).

        Along the patch: all points of the first phase, then those of the next.
        """
        inner = (self.panels, self.steps, self.config.nr * self.config.ks)
        return (self.chunks, self.patch_h, self.patch_w, *inner)


def read_beyond(workload: Conv2dWorkload, config: BlockedConfig) -> tuple[int, int]:
    """Return the rows and columns beyond an image that are in patches of its last tiles.

    A tile mixes all pixels of its patch, so they have to be zeros though no output needs them.
    """
    rows, columns = conv_geometry.read_beyond(workload, config)
    (sh, sw) = workload.stride
    return rows + config.tile_h * sh, columns + config.tile_w * sw
