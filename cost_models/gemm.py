"""Blocked GEMM: its sizes, its configurations and their predicted time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tvm_blislike.config import Config
from tvm_blislike.cost_models.cache_blocking import cache_blocking
from tvm_blislike.cost_models.roofline import (
    CALL_CYCLES,
    FMA_EFFICIENCY,
    FORK_JOIN_CYCLES,
    Estimate,
    bytes_per_cycle,
    finish,
    level_holding,
    share_bytes,
    step_cycles,
)
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, get_kernel, kernel_name, kernels_for
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
        """Tiles of mr rows, the last one perhaps cut."""
        return math.ceil(self.workload.m / self.config.mr)

    @property
    def tiles_n(self) -> int:
        """Tiles of nr columns, the last one perhaps cut."""
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
        """Blocks of mc rows."""
        return math.ceil(self.tiles_m / self.block_m)

    @property
    def blocks_n(self) -> int:
        """Blocks of nc columns."""
        return math.ceil(self.tiles_n / self.block_n)

    @property
    def kc(self) -> int:
        """Steps of k in a block."""
        return min(self.config.kc or self.workload.k, self.workload.k)

    @property
    def blocks_k(self) -> int:
        """Blocks of k."""
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


ITEM_BYTES = 4
LOOP_ORDERS = ("B3A2C0", "A3B2C0")
# Rows up to which a product is one pass over B at the speed of memory: nothing is packed, all of
# k is one block, and every block of C is as wide as the registers allow.
FEW_ROWS = 4
# Steps of k that a block should have at least: below, loading and storing C in between shows
# (14x32: 56 accesses against 14 cycles a step). The cache model gives less for wide blocks, whose
# panels of B then do fit into L1; streaming them from L2 costs nothing (see `direct`).
MIN_KC = 384


def applies(workload: GemmWorkload, core: Core) -> str:
    """Return "" for what micro-kernels can compute, else the reason why not."""
    return "" if workload.dtype == "float32" else f"no {workload.dtype} micro-kernels"


def configs(workload: GemmWorkload, core: Core, threads: int) -> Iterator[Config]:
    """Yield the configurations worth estimating."""
    for kernel in kernels_for(core.isa, workload.dtype):
        widest = math.ceil(workload.n / kernel.lanes) * kernel.lanes
        if kernel.mr > workload.m or kernel.nr > widest:
            continue
        if workload.m <= FEW_ROWS:
            yield _few_rows(workload, kernel, threads)
        else:
            yield from _blocked(workload, kernel, core, threads)


def _few_rows(workload: GemmWorkload, kernel: Microkernel, threads: int) -> Config:
    tiles = math.ceil(workload.n / kernel.nr)
    nc = math.ceil(tiles / threads) * kernel.nr
    return Config(
        "gemm", mr=kernel.mr, nr=kernel.nr, nc=nc, loop_order="B3A2C0", kr=4, data_layout=""
    )


def _blocked(
    workload: GemmWorkload, kernel: Microkernel, core: Core, threads: int
) -> Iterator[Config]:
    for order in LOOP_ORDERS:
        kc = cache_blocking(
            core, kernel.mr, kernel.nr, loop_order=order, threads=threads, k=workload.k
        ).kc
        blocks = math.ceil(workload.k / max(kc, MIN_KC))
        kc = math.ceil(workload.k / blocks)
        blocking = cache_blocking(
            core,
            kernel.mr,
            kernel.nr,
            loop_order=order,
            threads=threads,
            m=workload.m,
            n=workload.n,
            k=workload.k,
            pinned={"kc": kc},
        )
        for data_layout in ("packed", ""):
            yield Config(
                "gemm",
                mr=kernel.mr,
                nr=kernel.nr,
                mc=_divided(blocking.mc, workload.m, kernel.mr, threads),
                nc=_divided(blocking.nc, workload.n, kernel.nr, threads),
                kc=kc,
                loop_order=order,
                data_layout=data_layout,
                prefetch=1,
            )


def _divided(block: int, size: int, tile: int, threads: int) -> int:
    """Cut a block so that every thread gets as many, where there are tiles enough."""
    tiles = math.ceil(size / tile)
    if threads == 1 or tiles < threads:
        return block
    return min(block, math.ceil(tiles / threads) * tile)


def estimate(workload: GemmWorkload, config: Config, core: Core, threads: int) -> Estimate:
    """Predict the time of one product.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of the blocks of A and B and of a panel of B.
    """
    geo = GemmGeometry(workload, config)
    kernel = get_kernel(kernel_name(core.isa, config.mr, config.nr, workload.dtype))
    share = _share(geo, threads)
    cycles = {name: value * share for name, value in _calls(geo, kernel, core).items()}
    packing = _packing_cycles(geo, core)
    cycles["packing"] = packing * share
    b_bytes = workload.k * workload.n * ITEM_BYTES
    stream = b_bytes * share / bytes_per_cycle(core, 0)
    cycles["B from memory"] = max(stream - sum(cycles.values()), 0.15 * stream)
    cycles["fork"] = FORK_JOIN_CYCLES if threads > 1 else 0.0
    panel = geo.kc * config.nr * ITEM_BYTES
    block = geo.block_m * config.mr * geo.kc * ITEM_BYTES
    panel_level = level_holding(core, 2 * panel, threads)
    block_level = level_holding(core, block, threads)
    footprint = (
        ("Br", panel_level, panel, _fraction(core, panel_level, panel, threads)),
        ("Ac", block_level, block, _fraction(core, block_level, block, threads)),
    )
    return finish(core, threads, workload.macs, cycles, footprint)


def workspace_bytes(workload: GemmWorkload, config: Config, threads: int) -> int:
    """Return the size of packed blocks of A, partial sums, and B packed at run time."""
    geo = GemmGeometry(workload, config)
    block = geo.block_m * config.mr * geo.kc if geo.packs(geo.kc) else 0
    partial = workload.m * workload.n * workload.batch if geo.blocks_k > 1 else 0
    b = 0 if workload.constant_b else workload.batch * workload.k * workload.n
    return ITEM_BYTES * (block * threads + partial + b)


def _fraction(core: Core, level: int, size: int, threads: int) -> float:
    share = share_bytes(core, level, threads)
    return size / share if share else 0.0


def _share(geo: GemmGeometry, threads: int) -> float:
    """Part of the work that the busiest thread has."""
    loop = geo.parallel_loop(threads)
    if not loop:
        return 1.0
    count = {"b": geo.workload.batch, "ic": geo.blocks_m, "jc": geo.blocks_n}[loop]
    return math.ceil(count / threads) / count


def _calls(geo: GemmGeometry, kernel: Microkernel, core: Core) -> dict[str, float]:
    """Cycles of all micro-kernel calls on one thread, by what limits them."""
    w, c = geo.workload, geo.config
    rows = [(geo.tiles_m - 1, c.mr), (1, w.m - (geo.tiles_m - 1) * c.mr)]
    columns = [(geo.tiles_n - 1, c.nr), (1, w.n - (geo.tiles_n - 1) * c.nr)]
    panel = geo.kc * c.nr * ITEM_BYTES
    streams = panel + geo.kc * c.mr * ITEM_BYTES > share_bytes(core, 1, 1)
    total = {"fma": 0.0, "loads and edges": 0.0, "L2": 0.0, "calls": 0.0}
    for count_m, height in rows:
        for count_n, width in columns:
            number = w.batch * count_m * count_n
            vectors = math.ceil(width / kernel.lanes)
            a_loads = height / kernel.lanes if kernel.a_by_lane else height
            issue = w.k * step_cycles(core, height, vectors, a_loads)
            useful = w.k * height * width / kernel.lanes / core.fma_per_cycle / FMA_EFFICIENCY
            arrival = w.k * vectors * kernel.lanes * ITEM_BYTES / bytes_per_cycle(core, 2)
            total["fma"] += number * useful
            total["loads and edges"] += number * max(0.0, issue - useful)
            total["L2"] += number * (max(0.0, arrival - issue) if streams else 0.0)
            visits = geo.blocks_k * (CALL_CYCLES + 2.0 * height * vectors / core.stores_per_cycle)
            total["calls"] += number * visits
    return total


def _packing_cycles(geo: GemmGeometry, core: Core) -> float:
    """Cycles of the copies: three a vector; in place, rows a page apart collide in L1 instead."""
    w, c = geo.workload, geo.config
    vectors = 0.0
    if geo.packs(geo.kc):
        times = geo.blocks_n if c.loop_order == "B3A2C0" else 1
        vectors += w.batch * w.m * w.k * times
    if not w.constant_b:
        vectors += w.batch * w.k * w.n
    cycles = 3.0 * vectors * ITEM_BYTES * 8 / core.vector_bits
    if not geo.packs(geo.kc) and w.m > FEW_ROWS:
        collide = 0.3 if w.k * ITEM_BYTES % 1024 == 0 else 0.05
        cycles += collide * w.macs / (core.lanes(w.dtype) * core.fma_per_cycle)
    return cycles
