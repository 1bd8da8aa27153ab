"""Sizes of an im2col convolution that follow from its workload and its config."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.slicing import INPUT_STATIONARY
from tvm_blislike.cost_models.parallel import Divisible
from tvm_blislike.model.derived import derived
from tvm_blislike.model.workload import Conv2dWorkload

ITEM_BYTES = 4
PIXELS = "pixels"
FILTERS = "filters"
BATCH = "batch"
# `packing`: windows of stride 1 from two neighbouring vectors, shifted in registers.
SHIFT = "shift"
# `packing`: windows of one pixel are read where they are.
IN_PLACE = "in place"
# `packing`: a tile of windows of one pixel is packed when its first product needs it.
ON_DEMAND = "tile"
# `columns`: nr filters by mr pixels, in place of nr pixels by mr filters.
FILTER_COLUMNS = "filters"
# Lanes of the widest vector.
_WIDEST = 16
# Most bytes of padded rows to make before they are packed.
SLAB_BYTES = 16384


@dataclass(frozen=True)
class Im2colGeometry(Divisible):
    """Sizes that follow from a workload and a config.

    Filters are the rows of the product, cut into tiles of mr; the pixels of `oh_block` output rows
    are its columns, counted through from row to row and cut into tiles of nr; the other way round
    if `columns` says so. Each group of an image is a product of its own. `kc` counts whole
    channels, kh * kw steps each; `mc` whole tiles of filters. An `mc` of 0 means all filters.
    """

    workload: Conv2dWorkload
    config: Im2colConfig

    @derived
    def taps(self) -> int:
        """Steps of k per channel."""
        return self.workload.kh * self.workload.kw

    @derived
    def images(self) -> int:
        """Products, one for every group of every image."""
        return self.workload.n * self.workload.groups

    @derived
    def ci(self) -> int:
        """Input channels of a group."""
        return self.workload.ci // self.workload.groups

    @derived
    def co(self) -> int:
        """Filters of a group."""
        return self.workload.co // self.workload.groups

    @derived
    def k(self) -> int:
        """Steps of k in all."""
        return self.ci * self.taps

    @derived
    def channels(self) -> int:
        """Channels in a set: N_c."""
        return min(self.config.kc // self.taps or self.ci, self.ci)

    @derived
    def sets(self) -> int:
        """Sets of channels, all alike."""
        return self.ci // self.channels

    @derived
    def filters_across(self) -> bool:
        """Whether the lanes of a vector are filters, not pixels."""
        return self.config.columns == FILTER_COLUMNS

    @derived
    def filters(self) -> int:
        """Filters of a tile: mr, or nr."""
        return self.config.nr if self.filters_across else self.config.mr

    @derived
    def windows(self) -> int:
        """Pixels of a tile: nr, or mr."""
        return self.config.mr if self.filters_across else self.config.nr

    @derived
    def filter_tiles(self) -> int:
        """Tiles of filters, the last one perhaps cut."""
        return math.ceil(self.co / self.filters)

    @derived
    def block_tiles(self) -> int:
        """Tiles of filters in a set of mc filters."""
        tiles = self.config.mc // self.filters
        return min(tiles, self.filter_tiles) if tiles else self.filter_tiles

    @derived
    def filter_blocks(self) -> int:
        """Sets of mc filters."""
        return math.ceil(self.filter_tiles / self.block_tiles)

    @derived
    def rows(self) -> int:
        """Output rows of a block."""
        return min(self.config.oh_block, self.workload.oh)

    @derived
    def blocks_h(self) -> int:
        """Blocks of rows of an image, all alike."""
        return self.workload.oh // self.rows

    @derived
    def pixels(self) -> int:
        """Pixels of a block."""
        return self.rows * self.workload.ow

    @derived
    def pixel_tiles(self) -> int:
        """Tiles of pixels in a block of rows, the last one perhaps cut."""
        return math.ceil(self.pixels / self.windows)

    @derived
    def is_plain(self) -> bool:
        """Whether windows lie in the image as they do in a panel: a matrix product."""
        return self.taps == 1 and not self.has_slab and self.workload.stride[0] == 1

    @derived
    def in_place(self) -> bool:
        """Whether windows are read in the image, never packed: no vector of them is cut."""
        exact = self.filters_across or self.pixels % _WIDEST == 0
        return self.is_plain and exact and self.config.packing == IN_PLACE

    @derived
    def on_demand(self) -> bool:
        """Whether a tile of windows is packed right before the filters pass by it."""
        stays = self.config.loop_order == INPUT_STATIONARY and self.sets == 1
        return self.is_plain and stays and self.config.packing == ON_DEMAND

    @derived
    def has_slab(self) -> bool:
        """Whether rows are copied first: to pad them, to part or to append columns."""
        return any(self.workload.padding) or self.workload.stride[1] > 1 or self.shifts

    @derived
    def shifts(self) -> bool:
        """Whether windows are shifted in registers: the paper's vector-based packing."""
        w = self.workload
        return self.config.packing == SHIFT and w.stride[1] == 1 and w.kw > 1

    @derived
    def phases(self) -> int:
        """Parts of a row of the slab: columns 0, s, 2s, ... of stride s, then 1, s + 1, ..."""
        return self.workload.stride[1] if self.workload.kw > 1 else 1

    @derived
    def row_step(self) -> int:
        """Rows of the image between two rows of the slab: no row that no window reads."""
        return 1 if self.workload.kh > 1 else self.workload.stride[0]

    @derived
    def slab_size(self) -> tuple[int, int, int]:
        """Rows, phases and columns of a channel of the slab."""
        w = self.workload
        rows = (self.rows - 1) * (w.stride[0] // self.row_step) + (w.kh - 1) * w.dilation[0] + 1
        columns = w.ow + (w.kw - 1) * w.dilation[1] // w.stride[1]
        # The last vector has a right-hand neighbour, too.
        return rows, self.phases, columns + _WIDEST * self.shifts

    @derived
    def slab_channels(self) -> int:
        """Channels that are padded together: their rows stay in L1 until they are packed."""
        most = max(1, SLAB_BYTES // (ITEM_BYTES * math.prod(self.slab_size)))
        return max(c for c in range(1, self.channels + 1) if self.channels % c == 0 and c <= most)

    @derived
    def slab_bytes(self) -> int:
        """Bytes of the padded rows of a thread."""
        return ITEM_BYTES * math.prod(self.slab_size) * self.slab_channels * self.has_slab

    @derived
    def packed_shape(self) -> tuple[int, int, int]:
        """Shape of the packed filters: (tiles of all groups, k, filters of a tile)."""
        return (self.workload.groups * self.group_tiles, self.k, self.filters)

    @derived
    def group_tiles(self) -> int:
        """Tiles of a group's filters, whole sets of them."""
        return self.filter_blocks * self.block_tiles

    @derived
    def windows_bytes(self) -> int:
        """Bytes of the windows of a block of rows and a set of channels."""
        windows = self.pixels if self.in_place else self.pixel_tiles * self.windows
        return ITEM_BYTES * windows * self.channels * self.taps

    @derived
    def panels_bytes(self) -> int:
        """Bytes of those that are packed."""
        if self.on_demand:
            return self.windows_bytes // self.pixel_tiles
        return 0 if self.in_place else self.windows_bytes

    @derived
    def sums_bytes(self) -> int:
        """Bytes of the partial sums of a block of rows; 0 where they stay in registers."""
        if self.sets == 1:
            return 0
        filters = self.filters * self.filter_tiles
        return ITEM_BYTES * self.pixel_tiles * self.windows * filters

    def copies(self, lanes: int) -> int:
        """Return the vectors that packing a step of k of a block of rows writes.

        Tiles of pixels and rows of the image both end pieces.
        """
        width = 0 if self.is_plain else self.workload.ow
        return _vectors(self.pixels, self.windows, width, lanes)

    def written(self, lanes: int) -> int:
        """Return what code packs a channel: copies of all taps, elements that are parted."""
        columns = self.slab_size[2]
        parted = math.ceil(columns / lanes) * lanes * self.phases if self.phases > 1 else 0
        return self.taps * self.copies(lanes) + parted

    @derived
    def divisible(self) -> dict[str, tuple[int, int, int]]:
        """See `Divisible`."""
        return {
            BATCH: (self.images, 1, self.images),
            PIXELS: (self.blocks_h, self.rows, self.workload.oh),
            FILTERS: (self.filter_blocks, self.block_tiles, self.filter_tiles),
        }


@functools.cache
def _vectors(pixels: int, windows: int, width: int, lanes: int) -> int:
    """Vectors, of powers of two, that cover pixels cut into tiles and into rows."""

    def vectors(size: int) -> int:
        return math.ceil(size / min(lanes, 1 << (size.bit_length() - 1))) if size else 0

    def in_row(start: int, size: int) -> int:
        first = min(size, -start % windows)
        tiles, last = divmod(size - first, windows)
        return vectors(first) + tiles * vectors(windows) + vectors(last)

    rows, rest = divmod(pixels, width or max(pixels, 1))
    width = width or pixels
    # Rows are cut alike again after so many.
    period = windows // math.gcd(windows, width)
    cycle = [in_row(row * width, width) for row in range(min(rows, period))]
    full, part = divmod(rows, period)
    return full * sum(cycle) + sum(cycle[:part]) + in_row(rows * width, rest)
