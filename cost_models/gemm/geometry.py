"""Sizes of a blocked GEMM that follow from its workload and its config."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.parallel import Divisible
from tvm_blislike.microkernels import Microkernel
from tvm_blislike.microkernels.masks import closing_rows
from tvm_blislike.microkernels.products import groups
from tvm_blislike.model.derived import derived
from tvm_blislike.model.workload import GemmWorkload

B_OUTSIDE = "B3A2C0"
A_OUTSIDE = "A3B2C0"
# The orders that keep C in registers. Those that keep a block of A or B there instead load and
# store C for every vector FMA of each step: two memory accesses an FMA where these need half of
# one. No fp32 micro-kernel does that.
LOOP_ORDERS = (B_OUTSIDE, A_OUTSIDE)
PACKED = "packed"
IN_PLACE = "in place"


@dataclass(frozen=True)
class GemmGeometry(Divisible):
    """Sizes that follow from a workload and a config.

    C is cut into tiles of mr x nr; `mc` and `nc` count whole tiles, `kc` single steps. A size of
    0 means no blocking along that dimension.
    """

    workload: GemmWorkload
    config: GemmConfig

    @derived
    def tiles_m(self) -> int:
        """Tiles of mr rows, the last one perhaps cut."""
        return math.ceil(self.workload.m / self.config.mr)

    @derived
    def tiles_n(self) -> int:
        """Tiles of nr columns, the last one perhaps cut."""
        return math.ceil(self.workload.n / self.config.nr)

    @derived
    def block_m(self) -> int:
        """Tiles of mr rows in a block of mc rows."""
        return _tiles_in(self.config.mc, self.config.mr, self.tiles_m)

    @derived
    def block_n(self) -> int:
        """Tiles of nr columns in a block of nc columns."""
        return _tiles_in(self.config.nc, self.config.nr, self.tiles_n)

    @derived
    def blocks_m(self) -> int:
        """Blocks of mc rows."""
        return math.ceil(self.tiles_m / self.block_m)

    @derived
    def blocks_n(self) -> int:
        """Blocks of nc columns."""
        return math.ceil(self.tiles_n / self.block_n)

    @derived
    def kc(self) -> int:
        """Steps of k in a block, whole groups."""
        k, ks = self.workload.k, self.config.ks
        return groups(min(self.config.kc or k, k), ks) * ks

    @derived
    def blocks_k(self) -> int:
        """Blocks of k."""
        return math.ceil(self.workload.k / self.kc)

    @derived
    def last_k(self) -> int:
        """Steps of k in the last block, which runs with C in registers up to the final store.

        Whole groups: what fills the last one are zeros of packed panels.
        """
        ks = self.config.ks
        return groups(self.workload.k - (self.blocks_k - 1) * self.kc, ks) * ks

    @derived
    def packed_shape(self) -> tuple[int, int, int, int]:
        """Shape of packed B: (1, tiles, groups of k, nr * ks), the batch in front if B has one.

        Behind the groups of each block of k lie its closing rows.
        """
        ks, closing = self.config.ks, self.blocks_k * closing_rows(self.workload.types)
        return (1, self.tiles_n, groups(self.workload.k, ks) + closing, self.config.nr * ks)

    def row_of_b(self, block: Any, group: Any) -> Any:
        """Return the row of a panel of packed B where a group of a block of k lies."""
        return block * (self.kc // self.config.ks + closing_rows(self.workload.types)) + group

    def packs(self, steps: int) -> bool:
        """Whether A is copied into panels; otherwise micro-kernels read it in place.

        A single step of k is always copied: a column of A has no unit stride. So are rows that do
        not end with a whole group.
        """
        return self.config.packing == PACKED or steps == 1 or self.workload.k % self.config.ks > 0

    def calls_per_panel(self) -> int:
        """Micro-kernel calls in a row that share a panel of B (`B_OUTSIDE`) or of A."""
        return self.block_m if self.config.loop_order == B_OUTSIDE else self.block_n

    def least_calls_per_panel(self) -> int:
        """Return `calls_per_panel` of the fewest rows that may come, of those that are several.

        Of rows that only running tells, a single call asks for no other panel (`OpenRows`).
        """
        calls, least = self.calls_per_panel(), math.ceil(self.config.open_rows / self.config.mr)
        return min(calls, max(2, least)) if least and self.config.loop_order == B_OUTSIDE else calls

    def updated(self, parallel: str) -> tuple[int, int]:
        """Return the rows and columns of C that the loop over blocks of k runs over.

        Parameters
        ----------
        parallel : str
            The loop that threads divide, which goes outside, or "".
        """
        w, c = self.workload, self.config
        rows, columns = min(self.block_m * c.mr, w.m), min(self.block_n * c.nr, w.n)
        if c.loop_order == B_OUTSIDE:
            return (rows if parallel == "ic" else w.m), columns
        return rows, (columns if parallel == "jc" else w.n)

    @derived
    def divisible(self) -> dict[str, tuple[int, int, int]]:
        """See `Divisible`: products of the batch, blocks of rows and of columns."""
        return {
            "b": (self.workload.batch, 1, self.workload.batch),
            "ic": (self.blocks_m, self.block_m, self.tiles_m),
            "jc": (self.blocks_n, self.block_n, self.tiles_n),
        }


def packings(workload: GemmWorkload, mr: int, kc: int, ks: int) -> tuple[str, ...]:
    """Ways to read A: a single tile of rows is in use once, a single step of k copied anyhow."""
    if workload.k % ks:
        return (PACKED,)
    once = workload.m <= mr or kc == 1
    return (IN_PLACE,) if once else (IN_PLACE, PACKED)


def _tiles_in(block: int, tile: int, tiles: int) -> int:
    return min(tiles, max(1, block // tile)) if block else tiles


def asks_ahead(kernel: Microkernel) -> bool:
    """Return whether calls may ask for operands in advance, of panels that come from beyond L2.

    Bytes gain as fp32 does: squares of 1024 and 1536 take 0.97 of the time (Zen 4, 12x32, 14x32 and
    27x16). Products of several instructions have no registers left for it (AVX-512 in words), and
    nobody has measured it for signs, pairs of bfloat16 and boards.
    """
    product = kernel.product
    alone = product.instructions == 1 and not (product.is_bfloat16 or kernel.isa.lane_operand)
    return kernel.tiles is None and not kernel.types.is_bits and (kernel.ks == 1 or alone)
