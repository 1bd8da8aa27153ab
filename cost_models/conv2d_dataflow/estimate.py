"""Predicted time of a convolution by dataflows: loads and stores of its program beside its FMAs.

Table 1 of the paper estimates a dataflow by the loads and stores that an auxiliary variable saves.
Here those that are left are counted, in the program that the code is made of, and priced: each kind
at what the core issues, sums that go through memory at the latency of a store and the load after
it, chains of FMAs at theirs. The slab of sums, the pixels of a pass and the weights come from the
cache levels that hold them.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from tvm_blislike.cost_models.conv2d_dataflow.anchors import program
from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.geometry import DataflowGeometry
from tvm_blislike.cost_models.conv2d_dataflow.program import Rows, Use
from tvm_blislike.cost_models.conv2d_dataflow.room import vectors_of
from tvm_blislike.cost_models.issue import (
    CALL_CYCLES,
    FMA_EFFICIENCY,
    LOAD_EFFICIENCY,
    WIDE_LOAD_CYCLES,
    calls_in_flight,
)
from tvm_blislike.cost_models.moving import (
    beyond_l2,
    beyond_l2_cycles,
    bytes_per_cycle,
    l2_cycles,
    level_holding,
    line_cycles,
    placed,
    vector_cycles,
)
from tvm_blislike.cost_models.roofline import finish, fork_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import Conv2dWorkload

# Cycles from a store to a load of the same vector that is forwarded to it.
FORWARDING = 5.0
# Share of the nominal rate of stores that a loop with as many loads and FMAs reaches, and of the
# shorter one of chains and issue that shows (Golden Cove; anchored at weights all sums pass through
# memory, anchored at outputs 1x1 kernels are chains of eight).
STORE_EFFICIENCY = 0.8
EXPOSED_LATENCY = 0.4


class Moves(NamedTuple):
    """What a pass issues: multiply-adds, and the variables that it loads and stores."""

    multiplies: int
    inputs: int
    weights: int
    outputs: int
    stored: int


def moves(rows: tuple[Rows, ...]) -> Moves:
    """Count the steps of a program and the variables that they move."""
    total = [0] * len(Moves._fields)
    for part in rows:
        loaded = len(part.inputs), len(part.weights), len(part.outputs)
        before = (0, *loaded, len(part.stored))
        of_row = [0] * len(before)
        for columns in part.columns:
            for step in columns.steps:
                uses = (step.data, step.weight, step.out)
                counts = (1, *map(_loads, uses), _stores(step.out))
                of_row = [a + columns.count * b for a, b in zip(of_row, counts, strict=True)]
        total = [t + b + part.count * r for t, b, r in zip(total, before, of_row, strict=True)]
    return Moves(*total)


def _loads(use: Use) -> int:
    return int(use.register < 0 or use.load)


def _stores(use: Use) -> int:
    return int(use.register < 0 or use.store)


@functools.lru_cache(4096)
def _moves(geo: DataflowGeometry) -> Moves:
    return moves(program(geo.sizes, geo.config))


def estimate(
    workload: Conv2dWorkload, config: DataflowConfig, core: Core, threads: int
) -> Estimate:
    """Predict the time of one layer.

    Returns
    -------
    Estimate
        Cycles by cause; where the slab of sums, the slab of the input and the weights lie.
    """
    w, geo = workload, DataflowGeometry(workload, config)
    vectors = vectors_of(w, config, core)
    slabs = w.n * geo.tiles_h
    per_tile = _pass_cycles(geo, core, threads, vectors)
    share = _busiest(geo, threads) / slabs / geo.tiles
    number = slabs * geo.tiles * share
    cycles = {name: value * geo.passes * number for name, value in per_tile.items()}
    outputs = config.tile_h * w.ow * vectors
    # Zeroed before the passes, loaded, and stored as a result.
    moved = outputs * (2.5 / core.stores_per_cycle + 1 / core.loads_per_cycle)
    cycles["epilogue"] = number * (CALL_CYCLES + moved)
    weights = math.prod(geo.packed_shape) * w.types.b_bytes
    level = level_holding(core, weights, threads)
    times = slabs * share if config.loop_order == "rows" else 1.0
    cycles["weights"] = weights / bytes_per_cycle(core, 0)
    cycles["weights"] += (times - 1) * weights / bytes_per_cycle(core, level) if times > 1 else 0.0
    cycles["input"] = share * _arrival_cycles(geo, core, threads)
    cycles["padding"] = _padding_cycles(geo, core) * (share if threads > 1 else 1.0)
    cycles["fork"] = fork_cycles(core) if threads > 1 else 0.0
    footprint = (
        placed(core, "slab of sums", _sums_bytes(geo), threads),
        placed(core, "slab of input", _input_bytes(geo), threads),
        placed(core, "weights", weights, threads, level),
    )
    return finish(core, threads, w, cycles, footprint)


def workspace_bytes(workload: Conv2dWorkload, config: DataflowConfig, threads: int) -> int:
    """Return the size of the slabs of sums of all threads, and of the padded input."""
    geo = DataflowGeometry(workload, config)
    sums = _sums_bytes(geo) * threads
    if not any(workload.padding):
        return sums
    if config.loop_order == "rows":
        return sums + _input_bytes(geo) * threads
    return sums + _image_bytes(geo)


def _busiest(geo: DataflowGeometry, threads: int) -> float:
    """Slabs times tiles that the busiest thread computes."""
    n, slabs, tiles = geo.workload.n, geo.tiles_h, geo.tiles
    if n % threads == 0:
        return n * slabs * tiles / threads
    if geo.config.loop_order == "rows":
        return n * math.ceil(slabs / threads) * tiles
    return n * slabs * math.ceil(tiles / threads)


def _pass_cycles(geo: DataflowGeometry, core: Core, threads: int, vectors: int) -> dict[str, float]:
    """Cycles of one pass over a slab, by what limits them."""
    m = _moves(geo)
    fma = m.multiplies * vectors / core.fma_per_cycle / FMA_EFFICIENCY
    issue = max(fma + _beside(m, core, vectors), *_ports(m, core, vectors))
    latency = _latency(geo, m, core, vectors)
    late = max(0.0, latency - issue) + EXPOSED_LATENCY * min(latency, issue)
    sums = 2 * _sums_bytes(geo) * m.outputs / (geo.config.tile_h * geo.workload.ow)
    level = level_holding(core, _sums_bytes(geo), threads)
    arrival = 0.0 if level == 1 else sums / bytes_per_cycle(core, level)
    level = level_holding(core, _input_bytes(geo) + _sums_bytes(geo), threads)
    lines = 0.0 if level == 1 else _touched_bytes(geo, core) / bytes_per_cycle(core, level)
    return {
        "fma": fma,
        "loads and stores": issue - fma,
        "latency": late,
        # Each row starts and ends as a call of a micro-kernel does.
        "rows": geo.config.tile_h * CALL_CYCLES,
        "L2": l2_cycles(arrival + lines, issue + late),
    }


def _beside(m: Moves, core: Core, vectors: int) -> float:
    """Cycles that loads take from the FMAs, as in `issue.step_cycles`."""
    of_vectors = vectors * (m.weights + m.outputs)
    if core.in_order:
        return m.inputs + WIDE_LOAD_CYCLES * (of_vectors + vectors * m.stored)
    if core.isa.lane_operand:
        # LLVM broadcasts single elements (ld1r), on the FMAs' unit as well.
        return m.inputs / core.fma_per_cycle
    return core.element_load_cycles * m.inputs + core.vector_load_cycles * of_vectors


def _ports(m: Moves, core: Core, vectors: int) -> tuple[float, float]:
    """Cycles of the ports for loads and for stores."""
    elements = core.element_loads_per_cycle or core.loads_per_cycle
    loads = m.inputs / elements + vectors * (m.weights + m.outputs) / core.loads_per_cycle
    return loads / LOAD_EFFICIENCY, vectors * m.stored / core.stores_per_cycle / STORE_EFFICIENCY


def _latency(geo: DataflowGeometry, m: Moves, core: Core, vectors: int) -> float:
    """Cycles that chains of sums take: of each output one, of those that the core gets ahead to."""
    s, taps = geo.sizes, len(geo.sizes.taps)
    if geo.config.anchor == OUTPUT:
        return m.multiplies * core.fma_latency / calls_in_flight(core, 1, vectors, taps)
    if geo.config.anchor == INPUT:
        # An output meets the inputs of a row; those of a window take turns.
        chains = math.ceil(s.kh / s.stride[0]) * math.ceil(s.kw / s.stride[1])
        length = math.ceil(taps / s.kh)
        link = core.fma_latency + FORWARDING * m.stored / m.multiplies
        in_flight = chains * calls_in_flight(core, chains, vectors, length)
        return m.multiplies * link / in_flight
    return 0.0


def _sums_bytes(geo: DataflowGeometry) -> int:
    return geo.config.tile_h * geo.workload.ow * geo.config.nr * geo.workload.types.acc_bytes


def _input_bytes(geo: DataflowGeometry) -> int:
    """Bytes of the input of a slab."""
    return math.prod(geo.sizes.inputs) * geo.workload.ci * geo.workload.types.a_bytes


def _image_bytes(geo: DataflowGeometry) -> int:
    w = geo.workload
    return w.n * math.prod(geo.padded_size) * w.ci * w.types.a_bytes


def _touched_bytes(geo: DataflowGeometry, core: Core) -> float:
    """Bytes of the lines that the pixels of a pass lie in: a line each but in NCHW."""
    w, c = geo.workload, geo.config
    wanted = c.channels * c.ks * w.types.a_bytes
    line = wanted if geo.planar else max(wanted, core.line_bytes)
    return float(math.prod(geo.sizes.inputs) * min(line, geo.ci_block * w.types.a_bytes))


def _arrival_cycles(geo: DataflowGeometry, core: Core, threads: int) -> float:
    """Cycles that the image takes from beyond L2: once, or for every tile what L2 does not hold."""
    w, c = geo.workload, geo.config
    slab = _input_bytes(geo)
    again = level_holding(core, slab + _sums_bytes(geo), threads)
    if again in (1, 2):
        source = level_holding(core, w.n * w.ci * w.h * w.w * w.types.a_bytes, 1)
        times = 1 if c.loop_order == "rows" else geo.tiles
    else:
        source, times = again, geo.tiles
    return w.n * geo.tiles_h * slab * times * beyond_l2_cycles(core, source)


def _padding_cycles(geo: DataflowGeometry, core: Core) -> float:
    """Cycles of copying the padded input, all slabs."""
    if not any(geo.workload.padding):
        return 0.0
    rows = geo.config.loop_order == "rows"
    size = geo.workload.n * geo.tiles_h * _input_bytes(geo) if rows else _image_bytes(geo)
    cycles = size * 8 / core.vector_bits * vector_cycles(core)
    return cycles + size / core.line_bytes * line_cycles(core, 2 if rows else beyond_l2(core), 2)
