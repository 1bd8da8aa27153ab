"""Configurations of a product by seven of half the size that are worth an estimate."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm_blislike.cost_models.cache_room import room_bytes
from tvm_blislike.cost_models.data_types import missing
from tvm_blislike.cost_models.gemm.nests import NEST
from tvm_blislike.cost_models.gemm_strassen.config import LOOP_ORDERS, StrassenConfig
from tvm_blislike.cost_models.gemm_strassen.geometry import PRODUCTS_OF_QUARTERS, StrassenGeometry
from tvm_blislike.cost_models.roofline import peak_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import GemmWorkload

# Pairs, steps and columns of a product, of which sums take longer than an eighth of the FMAs saves.
SMALLEST = 96
# Products whose result is the sum of the quarters.
_OF_PLAIN = 8


def applies(workload: GemmWorkload, core: Core) -> str:
    """Return "" for products whose operands have quarters, else why not."""
    w = workload
    if w.types != FLOAT32:
        return f"no sums of {w.types}: only fp32"
    if not w.constant_b:
        return "B is not constant: its sums are made at compile time"
    if w.batch > 1:
        return "only for a single product"
    if w.k % 2 or w.n % (2 * core.lanes(w.types.acc)):
        vectors = 2 * core.lanes(w.types.acc)
        return f"k = {w.k} is odd or n = {w.n} no multiple of {vectors}: no halves of whole vectors"
    return missing(w, core)


def configs(workload: GemmWorkload, core: Core, threads: int) -> Iterator[StrassenConfig]:
    """Yield the configurations worth estimating: blocks that fit into L2."""
    if min(workload.m, workload.k, workload.n) < 2 * SMALLEST:
        return
    for kernel in kernels(workload, core):
        for order in LOOP_ORDERS:
            start = StrassenConfig(
                mr=kernel.mr, nr=kernel.nr, ks=kernel.ks, loop_order=order, prefetch=1
            )
            most = _most_tiles(StrassenGeometry(workload, start), core, threads)
            if most >= 1:
                block = _block(StrassenGeometry(workload, start).tiles_m, int(most), threads)
                yield start.with_fields(mc=block * kernel.mr)


def kernels(workload: GemmWorkload, core: Core) -> Iterator[Microkernel]:
    """Yield the micro-kernels whose panels half of the columns fill."""
    for kernel in kernels_for(core, workload.types):
        whole = workload.n // 2 % kernel.nr == 0 and 2 * kernel.mr <= workload.m + 1
        if whole and kernel.tiles is None and keeps_registers(core, kernel, NEST):
            yield kernel


def _most_tiles(geo: StrassenGeometry, core: Core, threads: int) -> float:
    """Tiles of a block whose sums of A fit into L2, where panels of B pass through."""
    tile = geo.v_bytes / geo.block_m
    return room_bytes(core, 2 * geo.panel_bytes, threads) / tile


def _block(tiles: int, most: int, threads: int) -> int:
    """Tiles per block when `tiles` are cut into equal blocks, as many for every thread."""
    blocks = math.ceil(tiles / most)
    return math.ceil(tiles / (math.ceil(blocks / threads) * threads))


def derivation(
    workload: GemmWorkload, config: StrassenConfig, core: Core, threads: int
) -> tuple[str, ...]:
    """Say what bounds a block."""
    geo = StrassenGeometry(workload, config)
    room = room_bytes(core, 2 * geo.panel_bytes, threads)
    return (
        f"block of {config.mc} pairs of rows: sums of A take {geo.v_bytes:,} of {room:,.0f} bytes "
        "that L2 has beside two panels of B and a way for C",
    )


def least_seconds(workload: GemmWorkload, core: Core, threads: int) -> float:
    """Return the time of nothing but the FMAs of the products."""
    return PRODUCTS_OF_QUARTERS / _OF_PLAIN * peak_seconds(workload, core, threads)
