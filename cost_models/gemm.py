"""Sizes of a blocked GEMM that follow from its workload and its config."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm_blislike.config import Config
from tvm_blislike.workload import GemmWorkload


@dataclass(frozen=True)
class GemmGeometry:
    """Sizes that follow from a workload and a config.

    C is cut into tiles of mr x nr; `mc` and `nc` count whole tiles, `kc` single steps. A size of
    0 means no blocking along that dimension.
    """

    workload: GemmWorkload
    config: Config

    def packs(self, steps: int) -> bool:
        """Whether A is copied into panels; otherwise micro-kernels read it in place.

        A single step of k is always copied: a column of A has no unit stride.
        """
        return self.config.data_layout == "packed" or steps == 1

    @property
    def tiles_m(self) -> int:
        return math.ceil(self.workload.m / self.config.mr)

    @property
    def tiles_n(self) -> int:
        return math.ceil(self.workload.n / self.config.nr)

    @property
    def block_m(self) -> int:
        """Tiles of mr rows in a block of mc rows."""
        return min(
            self.tiles_m,
            max(1, self.config.mc // self.config.mr) if self.config.mc else self.tiles_m,
        )

    @property
    def block_n(self) -> int:
        """Tiles of nr columns in a block of nc columns."""
        return min(
            self.tiles_n,
            max(1, self.config.nc // self.config.nr) if self.config.nc else self.tiles_n,
        )

    @property
    def blocks_m(self) -> int:
        return math.ceil(self.tiles_m / self.block_m)

    @property
    def blocks_n(self) -> int:
        return math.ceil(self.tiles_n / self.block_n)

    @property
    def kc(self) -> int:
        return min(self.config.kc or self.workload.k, self.workload.k)

    @property
    def blocks_k(self) -> int:
        return math.ceil(self.workload.k / self.kc)

    @property
    def last_k(self) -> int:
        """Steps of k in the last block, which runs with C in registers up to the final store."""
        return self.workload.k - (self.blocks_k - 1) * self.kc

    def parallel_loop(self, threads: int) -> str:
        """Return the loop that threads divide: "b", "ic", "jc", or "" for none."""
        if threads == 1:
            return ""
        counts = {"b": self.workload.batch, "ic": self.blocks_m, "jc": self.blocks_n}
        return max(counts, key=lambda loop: _balance(counts[loop], threads))


def _balance(iterations: int, threads: int) -> float:
    """Share of the threads' time that is work when each takes a run of equal iterations."""
    return iterations / (threads * math.ceil(iterations / threads))
