"""Sizes of a product by seven of half the size that follow from its workload and its config."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from tvm_blislike.cost_models.gemm_strassen.config import TILES, StrassenConfig
from tvm_blislike.model.derived import derived
from tvm_blislike.model.workload import GemmWorkload

_Index = TypeVar("_Index")
# Products of quarters.
PRODUCTS_OF_QUARTERS = 7


@dataclass(frozen=True)
class StrassenGeometry:
    """Sizes that follow from a workload and a config.

    Rows 2 i and 2 i + 1 are a pair, one of each half; of columns nr are of one half, the next nr of
    the other; k is cut in the middle. A tile is mr pairs by nr columns of both halves, a block `mc`
    pairs, whole tiles.
    """

    workload: GemmWorkload
    config: StrassenConfig

    @derived
    def pairs(self) -> int:
        """Pairs of rows; the last one of an odd number of rows has one."""
        return math.ceil(self.workload.m / 2)

    @derived
    def steps(self) -> int:
        """Steps of k of each product."""
        return self.workload.k // 2

    @derived
    def columns(self) -> int:
        """Columns of each product."""
        return self.workload.n // 2

    @derived
    def tiles_m(self) -> int:
        """Tiles of mr pairs, the last one perhaps cut."""
        return math.ceil(self.pairs / self.config.mr)

    @derived
    def tiles_n(self) -> int:
        """Tiles of nr columns, all of them whole."""
        return self.columns // self.config.nr

    @derived
    def block_m(self) -> int:
        """Tiles of a block."""
        wanted = self.config.mc // self.config.mr
        return min(self.tiles_m, max(1, wanted)) if self.config.mc else self.tiles_m

    @derived
    def least_calls_per_panel(self) -> int:
        """Micro-kernel calls in a row that share a panel of B, of the fewest rows that may come."""
        least = math.ceil(self.config.open_rows / self.config.tile_rows)
        return min(self.block_m, least) if least else self.block_m

    @derived
    def blocks_m(self) -> int:
        """Blocks of rows; the last one may have fewer tiles."""
        return math.ceil(self.tiles_m / self.block_m)

    @derived
    def block_n(self) -> int:
        """Panels of the columns of a block, all of them as many: `nc` or less."""
        wanted = self.config.nc // self.config.nr or 1 if self.config.nc else self.tiles_n
        return next(n for n in range(wanted, 0, -1) if self.tiles_n % n == 0)

    @derived
    def blocks_n(self) -> int:
        """Blocks of columns, which threads divide where there are several."""
        return self.tiles_n // self.block_n

    def shares(self, threads: int) -> tuple[float, float]:
        """Return the parts of the busiest thread of the rows and of the columns."""
        if self.blocks_n > 1:
            return 1.0, math.ceil(self.blocks_n / threads) / self.blocks_n
        if self.config.open_rows:
            return math.ceil(self.pairs / threads) / self.pairs, 1.0
        # The last block is smaller, the last tile of it cut: the first thread has neither.
        most = math.ceil(self.blocks_m / threads) * self.block_m * self.config.mr
        return min(1.0, most / self.pairs), 1.0

    @derived
    def last_tiles(self) -> int:
        """Tiles of the last block."""
        return self.tiles_m - (self.blocks_m - 1) * self.block_m

    @derived
    def last_pairs(self) -> int:
        """Pairs of the last tile."""
        return self.pairs - (self.tiles_m - 1) * self.config.mr

    @derived
    def by_tiles(self) -> bool:
        """Whether the products of a tile are computed one after the other."""
        return self.config.loop_order == TILES

    @derived
    def packed_shape(self) -> tuple[int, int, int, int]:
        """Shape of the sums of B: (tiles_n, 7, steps, nr); (7, tiles_n, ...) by products."""
        return (*self.in_order(self.tiles_n, PRODUCTS_OF_QUARTERS), self.steps, self.config.nr)

    def in_order(self, panel: _Index, product: _Index) -> tuple[_Index, _Index]:
        """Return a panel of the sums of B and its product as they follow each other in memory."""
        return (panel, product) if self.by_tiles else (product, panel)

    @derived
    def v_bytes(self) -> int:
        """Size of the sums of A that a block keeps, whose rows are an odd number of vectors."""
        sums = PRODUCTS_OF_QUARTERS if self.by_tiles else 1
        return sums * self.block_m * self.config.mr * self.steps * self.workload.types.a_bytes

    @derived
    def m_bytes(self) -> int:
        """Size of the products that a block keeps."""
        tiles = 1 if self.by_tiles else self.block_m * self.block_n
        elements = PRODUCTS_OF_QUARTERS * tiles * self.config.mr * self.config.nr
        return elements * self.workload.types.acc_bytes

    @derived
    def panel_bytes(self) -> int:
        """Size of what of B a row of calls shares: a panel of one product, or of all."""
        panels = PRODUCTS_OF_QUARTERS if self.by_tiles else 1
        return panels * self.steps * self.config.nr * self.workload.types.b_bytes
