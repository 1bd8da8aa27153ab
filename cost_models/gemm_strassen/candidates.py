"""Configurations of a product by seven of half the size that are worth an estimate."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm_blislike.cost_models.data_types import missing
from tvm_blislike.cost_models.gemm.candidates import FEW_ROWS
from tvm_blislike.cost_models.gemm.nests import NEST
from tvm_blislike.cost_models.gemm_strassen.config import (
    LOOP_ORDERS,
    PRODUCTS,
    TILES,
    StrassenConfig,
)
from tvm_blislike.cost_models.gemm_strassen.geometry import PRODUCTS_OF_QUARTERS, StrassenGeometry
from tvm_blislike.cost_models.moving import l2_bytes
from tvm_blislike.cost_models.parallel import equal_blocks
from tvm_blislike.cost_models.roofline import peak_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import GemmWorkload

# Steps and columns of a product, of which sums take longer than an eighth of the FMAs saves. Rows
# have no such bound, since sums of A and of products are as few as they are, but few rows wait for
# weights (`FEW_ROWS`), of which there are 7/4.
SMALLEST = 96
# Products of quarters that they stand for.
_OF_PLAIN = 8
# Part of L2 for the sums of A of a block and two rounds of panels of B ("tiles" order; 2 MiB, 1024
# and 768 steps of k, 0.94 and 0.97 of the FMA peak with 0.6 of it, 0.89 to 0.94 with 0.8), and for
# those of A alone where seven products of a block pass through it ("products" order: 0.97 to 0.99
# with 0.12 to 0.2 of it, 0.93 with a half).
PLANNED = {TILES: 0.65, PRODUCTS: 1 / 6}
# Part of it up to which those of A alone may be of all rows, so that B passes by once: 128x768x3072
# takes 0.92 of the time with 0.38 of 1 MiB as with 0.15, three blocks (Zen 4).
ALL_ROWS = 0.4


def applies(workload: GemmWorkload, core: Core) -> str:
    """Return "" for products whose operands have quarters, else why not."""
    w = workload
    if w.types != FLOAT32:
        return f"no sums of {w.types}: only fp32"
    if not w.constant_b:
        return "B is not constant: its sums are made at compile time"
    if w.batch > 1:
        return "only for a single product"
    if w.k == 2:
        return "half of k is a single step: a column of sums of A has no unit stride"
    if w.k % 2 or w.n % (2 * core.lanes(w.types.acc)):
        vectors = 2 * core.lanes(w.types.acc)
        return f"k = {w.k} is odd or n = {w.n} no multiple of {vectors}: no halves of whole vectors"
    return missing(w, core)


def configs(workload: GemmWorkload, core: Core, threads: int) -> Iterator[StrassenConfig]:
    """Yield the configurations worth estimating: blocks that fit into L2."""
    if min(workload.k, workload.n) < 2 * SMALLEST or workload.m <= FEW_ROWS:
        return
    for kernel in kernels(workload, core):
        for order in LOOP_ORDERS:
            start = StrassenConfig(
                mr=kernel.mr, nr=kernel.nr, ks=kernel.ks, loop_order=order, prefetch=1
            )
            yield from _blocks(StrassenGeometry(workload, start), core, threads)
            panels = workload.n // 2 // kernel.nr
            if threads > 1 and panels % threads == 0:
                # Each thread adds quarters of A by itself, but all have as much to do.
                part = start.with_fields(nc=panels // threads * kernel.nr)
                yield from _blocks(StrassenGeometry(workload, part), core, threads)


def _blocks(geo: StrassenGeometry, core: Core, threads: int) -> Iterator[StrassenConfig]:
    """Yield the blocks of rows worth estimating."""
    parts = 1 if geo.blocks_n > 1 else threads
    counts = (equal_blocks(geo.tiles_m, most, parts) for most in _most(geo, core, threads, parts))
    for tiles in dict.fromkeys(counts):
        yield geo.config.with_fields(mc=tiles * geo.config.mr)


def _most(geo: StrassenGeometry, core: Core, threads: int, parts: int) -> list[int]:
    """Return the tiles of the largest blocks: as many as planned, as leave room, and all of them.

    Room in L2 is for the products of a block ("products" order). All of them are offered where
    their sums of A leave L2 room for a round of panels of B ("tiles" order), or take a part of it.
    """
    of_tile, l2 = geo.v_bytes // geo.block_m, l2_bytes(core, threads)
    of_all = of_tile * math.ceil(geo.tiles_m / parts)
    if geo.by_tiles:
        most, all_fit = [], of_all + geo.panel_bytes <= l2
    else:
        most = [(l2 - 2 * geo.panel_bytes) / (of_tile + geo.m_bytes // geo.block_m)]
        all_fit = of_all <= ALL_ROWS * l2
    most += [room_bytes(geo, core, threads) / of_tile, geo.tiles_m * all_fit]
    return [int(tiles) for tiles in most if tiles >= 1]


def kernels(workload: GemmWorkload, core: Core) -> Iterator[Microkernel]:
    """Yield the micro-kernels whose panels half of the columns fill."""
    for kernel in kernels_for(core, workload.types):
        whole = workload.n // 2 % kernel.nr == 0 and 2 * kernel.mr <= workload.m + 1
        if whole and kernel.tiles is None and keeps_registers(core, kernel, NEST):
            yield kernel


def room_bytes(geo: StrassenGeometry, core: Core, threads: int) -> float:
    """Return what the sums of A of a block may take of L2."""
    room = PLANNED[geo.config.loop_order] * l2_bytes(core, threads)
    return room - 2 * geo.panel_bytes if geo.by_tiles else room


def derivation(
    workload: GemmWorkload, config: StrassenConfig, core: Core, threads: int
) -> tuple[str, ...]:
    """Say what bounds a block."""
    geo = StrassenGeometry(workload, config)
    room = room_bytes(geo, core, threads)
    block = f"{config.mc} pairs" + (f" by {config.nc} columns" if geo.blocks_n > 1 else "")
    return (f"block of {block}: sums of A take {geo.v_bytes:,} of {room:,.0f} bytes",)


def least_seconds(workload: GemmWorkload, core: Core, threads: int) -> float:
    """Return the time of nothing but the FMAs of the products."""
    return PRODUCTS_OF_QUARTERS / _OF_PLAIN * peak_seconds(workload, core, threads)
