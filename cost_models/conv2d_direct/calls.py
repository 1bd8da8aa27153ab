"""Predicted cycles of the micro-kernel calls of a direct convolution."""

from __future__ import annotations

import math

from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.cost_models.issue import (
    CALL_CYCLES,
    call_cycles,
    calls_in_flight,
    tile_store_cycles,
    useful_cycles,
)
from tvm_blislike.cost_models.moving import l2_cycles
from tvm_blislike.cost_models.requantizing import is_requantized, requantizing_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel


def cycles_of_calls(
    geo: DirectGeometry,
    kernel: Microkernel,
    core: Core,
    k_steps: int,
    streamed: float,
    exposed: float,
    apart: float,
) -> dict[str, float]:
    """Cycles of all micro-kernel calls of the layer on one thread, by what limits them.

    `exposed` is the share of the operands' arrival that shows although it is prefetched; `apart`
    are cycles that a call waits for pixels.

    Operands take `streamed` cycles to arrive from beyond L1 during a call of a whole block.
    """
    w, c = geo.workload, geo.config
    calls = k_steps // geo.run_groups
    full_h, cut_h = divmod(w.oh, c.tile_h)
    full_w, cut_w = divmod(w.ow, c.tile_w)
    cut_columns = geo.co_group - (geo.tiles - 1) * c.nr
    shapes = [
        (full_h * full_w, c.tile_h * c.tile_w),
        (full_h if cut_w else 0, c.tile_h * cut_w),
        (full_w if cut_h else 0, cut_h * c.tile_w),
        (1 if cut_h and cut_w else 0, cut_h * cut_w),
    ]
    causes = ("fma", "loads and edges", "L2", "rows apart", "epilogue")
    total = dict.fromkeys(causes, 0.0)
    for columns, tiles in ((c.nr, geo.tiles - 1), (cut_columns, 1)):
        vectors = math.ceil(columns / kernel.lanes)
        for count, rows in shapes:
            number = count * tiles * w.n * w.groups
            if number == 0:
                continue
            in_flight = calls_in_flight(core, rows, vectors, k_steps)
            issue = calls * call_cycles(
                core, kernel, rows, vectors, geo.run_groups, c.tile_h, in_flight
            )
            useful = k_steps * useful_cycles(core, kernel, rows, columns)
            total["fma"] += number * useful
            total["loads and edges"] += number * (issue - useful)
            arrival = streamed * vectors * kernel.lanes / c.nr
            total["L2"] += number * (l2_cycles(arrival, issue, kernel) + exposed * arrival)
            total["rows apart"] += number * apart
            begun = CALL_CYCLES / in_flight
            total["epilogue"] += number * _epilogue_cycles(geo, kernel, core, rows, vectors, begun)
    return total


def _epilogue_cycles(
    geo: DirectGeometry, kernel: Microkernel, core: Core, rows: int, vectors: int, begun: float
) -> float:
    """Cycles of a call beside its products, `begun` of which begin and end it."""
    if is_requantized(kernel):
        return math.hypot(begun, requantizing_cycles(core, kernel, rows, vectors))
    stores = 1.5 * rows * vectors / core.stores_per_cycle
    if kernel.tiles is not None:
        stores += tile_store_cycles(kernel, rows, vectors, geo.config.tile_h)
    return begun + stores
