"""Predicted time of a product by seven of half the size.

Seven eighths of the FMAs, and what the sums take: per vector of a quarter of A seven sums, per
vector of a quarter of C seven products stored, read again and added to four results. Half the
steps of k of a call end twice as often. The sums of B pass by once per block of A, 7/4 of its
bytes, from memory the first time.
"""

from __future__ import annotations

import math

from tvm_blislike.cost_models.gemm_strassen.config import StrassenConfig
from tvm_blislike.cost_models.gemm_strassen.geometry import PRODUCTS_OF_QUARTERS, StrassenGeometry
from tvm_blislike.cost_models.issue import CALL_CYCLES, call_cycles
from tvm_blislike.cost_models.moving import (
    apart_cycles,
    beyond_l2,
    beyond_l2_cycles,
    bytes_per_cycle,
    l2_bytes,
    l2_cycles,
    level_holding,
    line_cycles,
    placed,
    share_bytes,
    vector_cycles,
    weights_cycles,
)
from tvm_blislike.cost_models.roofline import finish, fork_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import GemmWorkload

# Share of the arrival of B's sums that prefetching hides behind the products, and the part of their
# time that hides anything: of 16, 32 and 128 rows, 768x768, whose sums come from memory in 1.0, 0.5
# and 0.1 of it, 0.6, 0.2 and 0.15 of that shows (Zen 4).
HIDDEN = 0.85
HIDING = 0.5
# Share that shows besides of what comes from L2 in "tiles" order, both operands of each call, where
# it is more than a part of the time: products of 384 to 768 that were predicted to be 2 to 5 %
# faster and were as fast as plain ones, where L2 is busy for 0.38 of it (Emerald Rapids), but 1.05
# to 1.09 times as fast where it is for 0.22 (Zen 4).
EXPOSED_TILES = 0.36
UNSEEN_TILES = 0.22
# What sums take beyond what is counted for their loads and stores (squares of 256 to 512, whose
# products are as fast as plain ones: 1.5 to 2.4).
SUMS_LOSS = 1.6
# Part of the time that has to be gained at least: its weights take 7/4 of the memory.
LEAST_GAIN = 0.02
# Vectors that are read and stored for a vector of a quarter of C: products, and results.
_RESULT_VECTORS = PRODUCTS_OF_QUARTERS + 4


def estimate(
    workload: GemmWorkload,
    config: StrassenConfig,
    core: Core,
    threads: int,
    least_gain: float = LEAST_GAIN,
) -> Estimate:
    """Predict the time of one product.

    Parameters
    ----------
    least_gain : float
        Part of the time that has to be gained at least.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of the sums of A and B and of the products.
    """
    geo = StrassenGeometry(workload, config)
    kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
    rows, columns = geo.shares(threads)
    part = rows * columns
    cycles = {name: value * part for name, value in _calls(geo, kernel, core).items()}
    weights = math.prod(geo.packed_shape) * workload.types.b_bytes
    near = level_holding(core, weights + geo.v_bytes, threads)
    first = columns * weights * beyond_l2_cycles(core, 0)
    later = columns * weights * beyond_l2_cycles(core, near)
    passes = max(1.0, geo.blocks_m * rows)
    # While L2 gives panels to L1 it takes none from beyond.
    hiding = HIDING * (sum(cycles.values()) - 2 * cycles.pop("from L2")) / passes
    cycles["sums of B"] = weights_cycles(first, later, passes, HIDDEN, hiding)
    cycles["sums of A"] = _input_cycles(geo, core, threads) * rows
    cycles["sums of products"] = _output_cycles(geo, core, threads) * part
    cycles["least gain"] = least_gain * sum(cycles.values())
    cycles["fork"] = fork_cycles(core) if threads > 1 else 0.0
    sizes = (("V", geo.v_bytes), ("M", geo.m_bytes), ("weights", weights))
    footprint = tuple(placed(core, name, size, threads) for name, size in sizes)
    return finish(core, threads, workload, cycles, footprint)


def workspace_bytes(workload: GemmWorkload, config: StrassenConfig, threads: int) -> int:
    """Return the size of the sums of A and of the products of all threads' blocks."""
    geo = StrassenGeometry(workload, config)
    return threads * (geo.v_bytes + geo.m_bytes)


def _calls(geo: StrassenGeometry, kernel: Microkernel, core: Core) -> dict[str, float]:
    """Cycles of all micro-kernel calls on one thread, by what limits them.

    "from L2" is the time that L2 is busy with them, no part of the sum.
    """
    total = dict.fromkeys(("fma", "L2", "rows apart", "calls", "from L2"), 0.0)
    for number, rows in ((geo.tiles_m - 1, geo.config.mr), (1, geo.last_pairs)):
        count = number * geo.tiles_n * PRODUCTS_OF_QUARTERS
        issue = call_cycles(core, kernel, rows, kernel.vectors, geo.steps)
        arrival = geo.steps * _l2_bytes(geo, core, rows) / bytes_per_cycle(core, 2)
        total["fma"] += count * issue
        total["from L2"] += count * min(arrival, issue)
        shown = EXPOSED_TILES * max(0.0, arrival - UNSEEN_TILES * issue)
        total["L2"] += count * (l2_cycles(arrival, issue) + shown * geo.by_tiles)
        if geo.by_tiles:
            total["rows apart"] += count * geo.steps * _apart_cycles(geo, core, rows)
        stores = rows * kernel.vectors / core.stores_per_cycle
        total["calls"] += count * (CALL_CYCLES + 1.5 * stores)
    return total


def _apart_cycles(geo: StrassenGeometry, core: Core, rows: int) -> float:
    """Cycles per step that a call waits for rows of the sums of A, in "tiles" order.

    197x768x768 by tiles takes 1.09 times as long with 13x32 blocks as with 6x64 by products, which
    read their rows as often, but all of a product's one after the other (Emerald Rapids).
    """
    return apart_cycles(core, rows, geo.workload.types.a_bytes)


def _l2_bytes(geo: StrassenGeometry, core: Core, rows: int) -> float:
    """Bytes from L2 per step: rows of A, and the panel of B unless L1 keeps it between calls."""
    types, c = geo.workload.types, geo.config
    a, b = rows * types.a_bytes, c.nr * types.b_bytes
    keeps = not geo.by_tiles and (a + b) * geo.steps <= share_bytes(core, 1, 1)
    return a if keeps else a + b


def _input_cycles(geo: StrassenGeometry, core: Core, threads: int) -> float:
    """Cycles of adding quarters of A, and of their way from where A lies."""
    w = geo.workload
    elements = PRODUCTS_OF_QUARTERS * geo.pairs * geo.steps
    vectors = elements / core.lanes(w.types.a)
    lines = elements * w.types.a_bytes / core.line_bytes
    a_bytes = w.m * w.k * w.types.a_bytes
    beyond = a_bytes * beyond_l2_cycles(core, level_holding(core, a_bytes, threads))
    moving = vectors * vector_cycles(core) + lines * line_cycles(core, 2)
    return SUMS_LOSS * moving + beyond


def _output_cycles(geo: StrassenGeometry, core: Core, threads: int) -> float:
    """Cycles of adding products, and of C.

    In "products" order they go through L2, stored and read again, and beyond it where it has no
    room for those of a block beside its sums of A and panels of B: 768x768x768 in blocks of 56
    pairs, 0.7 of L2, takes 0.98 of the time as in blocks of 112, 1.4 of it (Zen 4).
    """
    w = geo.workload
    vectors = _RESULT_VECTORS * geo.pairs * geo.columns / core.lanes(w.types.acc)
    c_bytes = w.m * w.n * w.types.out_bytes
    cycles = SUMS_LOSS * vectors * vector_cycles(core)
    cycles += c_bytes * beyond_l2_cycles(core, level_holding(core, c_bytes, threads))
    if not geo.by_tiles:
        products = PRODUCTS_OF_QUARTERS * geo.pairs * geo.columns * w.types.acc_bytes
        block = geo.v_bytes + geo.m_bytes + 2 * geo.panel_bytes
        level = 2 if block <= l2_bytes(core, threads) else beyond_l2(core)
        cycles += products / core.line_bytes * line_cycles(core, level)
    return cycles
