"""Sizes of an im2col convolution that follow from its workload and its config."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_blislike.config import Config
from tvm_blislike.workload import Conv2dWorkload

ITEM_BYTES = 4
PIXELS = "pixels"
FILTERS = "filters"
BATCH = "batch"
# `Config.packing`: windows of stride 1 from two neighbouring vectors, shifted in registers.
SHIFT = "shift"
# Columns that a row of the slab has for the last vector's right-hand neighbour: the widest vector.
_NEIGHBOUR = 16
# Most bytes of padded rows to make before they are packed.
SLAB_BYTES = 16384


@dataclass(frozen=True)
class Im2colGeometry:
    """Sizes that follow from a workload and a config.

    Filters are the rows of the product, cut into tiles of mr; the pixels of `oh_block` output rows
    are its columns, counted through from row to row and cut into tiles of nr. `kc` counts whole
    channels, kh * kw steps each; `mc` whole tiles of filters. An `mc` of 0 means all filters.
    """

    workload: Conv2dWorkload
    config: Config

    @property
    def taps(self) -> int:
        """Steps of k per channel."""
        return self.workload.kh * self.workload.kw

    @property
    def k(self) -> int:
        """Steps of k in all."""
        return self.workload.ci * self.taps

    @property
    def channels(self) -> int:
        """Channels in a set: N_c."""
        return min(self.config.kc // self.taps or self.workload.ci, self.workload.ci)

    @property
    def sets(self) -> int:
        """Sets of channels, all alike."""
        return self.workload.ci // self.channels

    @property
    def tiles_m(self) -> int:
        """Tiles of mr filters, the last one perhaps cut."""
        return math.ceil(self.workload.co / self.config.mr)

    @property
    def block_m(self) -> int:
        """Tiles of mr filters in a set of mc filters."""
        tiles = self.config.mc // self.config.mr
        return min(tiles, self.tiles_m) if tiles else self.tiles_m

    @property
    def blocks_m(self) -> int:
        """Sets of mc filters."""
        return math.ceil(self.tiles_m / self.block_m)

    @property
    def rows(self) -> int:
        """Output rows of a block."""
        return min(self.config.oh_block, self.workload.oh)

    @property
    def blocks_h(self) -> int:
        """Blocks of rows of an image, all alike."""
        return self.workload.oh // self.rows

    @property
    def pixels(self) -> int:
        """Pixels of a block."""
        return self.rows * self.workload.ow

    @property
    def tiles_n(self) -> int:
        """Tiles of nr pixels in a block of rows, the last one perhaps cut."""
        return math.ceil(self.pixels / self.config.nr)

    @property
    def is_plain(self) -> bool:
        """Whether windows lie in the image as they do in a panel: a matrix product."""
        return self.taps == 1 and not self.has_slab and self.workload.stride[0] == 1

    @property
    def has_slab(self) -> bool:
        """Whether rows are copied first: to pad them, to part or to append columns."""
        return any(self.workload.padding) or self.workload.stride[1] > 1 or self.shifts

    @property
    def shifts(self) -> bool:
        """Whether windows are shifted in registers: the paper's vector-based packing."""
        w = self.workload
        return self.config.packing == SHIFT and w.stride[1] == 1 and w.kw > 1

    @property
    def phases(self) -> int:
        """Parts of a row of the slab: columns 0, s, 2s, ... of stride s, then 1, s + 1, ..."""
        return self.workload.stride[1] if self.workload.kw > 1 else 1

    @property
    def row_step(self) -> int:
        """Rows of the image between two rows of the slab: no row that no window reads."""
        return 1 if self.workload.kh > 1 else self.workload.stride[0]

    @property
    def slab_size(self) -> tuple[int, int, int]:
        """Rows, phases and columns of a channel of the slab."""
        w = self.workload
        rows = (self.rows - 1) * (w.stride[0] // self.row_step) + (w.kh - 1) * w.dilation[0] + 1
        columns = w.ow + (w.kw - 1) * w.dilation[1] // w.stride[1]
        return rows, self.phases, columns + _NEIGHBOUR * self.shifts

    @property
    def slab_channels(self) -> int:
        """Channels that are padded together: their rows stay in L1 until they are packed."""
        most = max(1, SLAB_BYTES // (ITEM_BYTES * math.prod(self.slab_size)))
        return max(c for c in range(1, self.channels + 1) if self.channels % c == 0 and c <= most)

    @property
    def slab_bytes(self) -> int:
        """Bytes of the padded rows of a thread."""
        return ITEM_BYTES * math.prod(self.slab_size) * self.slab_channels * self.has_slab

    @property
    def packed_shape(self) -> tuple[int, int, int]:
        """Shape of the packed filters: (tiles of mr, k, mr), whole sets of tiles."""
        return (self.blocks_m * self.block_m, self.k, self.config.mr)

    @property
    def panels_bytes(self) -> int:
        """Bytes of the packed windows of a block of rows and a set of channels."""
        tiles = self.tiles_n
        return ITEM_BYTES * tiles * self.config.nr * self.channels * self.taps

    @property
    def sums_bytes(self) -> int:
        """Bytes of the partial sums of a block of rows; 0 where they stay in registers."""
        if self.sets == 1:
            return 0
        filters = self.config.mr * self.tiles_m
        return ITEM_BYTES * self.tiles_n * self.config.nr * filters

    def parallel_loop(self, threads: int) -> str:
        """Return what threads divide: `BATCH`, `PIXELS`, `FILTERS`, or "" for nothing."""
        if threads == 1:
            return ""
        return self.config.parallel or self._evenest(threads)

    def parallel_loops(self, threads: int) -> list[str]:
        """Return the values of `Config.parallel` that divide the work differently."""
        if threads == 1:
            return [""]
        blocks = {BATCH: self.workload.n, PIXELS: self.blocks_h, FILTERS: self.blocks_m}
        others = [loop for loop, count in blocks.items() if count > 1]
        return ["", *(loop for loop in others if loop != self._evenest(threads))]

    def _evenest(self, threads: int) -> str:
        return min((BATCH, PIXELS, FILTERS), key=lambda loop: self.share(loop, threads))

    def share(self, loop: str, threads: int) -> float:
        """Return the part of the work of the busiest thread when `loop` is divided."""
        blocks, size, whole = {
            BATCH: (self.workload.n, 1, self.workload.n),
            PIXELS: (self.blocks_h, self.rows, self.workload.oh),
            FILTERS: (self.blocks_m, self.block_m, self.tiles_m),
        }[loop]
        return min(1.0, math.ceil(blocks / threads) * size / whole)
