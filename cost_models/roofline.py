"""Predicted time of a (workload, config, core): FMA issue, loads, cache traffic, edges, packing.

A layer's time is what its micro-kernel calls take when the vector units limit, stretched where a
cache level cannot deliver the operands in time, plus what lies outside the k loop. All terms are
in cycles of one core until the end; `Estimate.seconds` divides by the clock.
"""

from __future__ import annotations

import math

from tvm_blislike.hardware import Core
from tvm_blislike.model.estimate import NEIGHBOURS, Estimate, Placed
from tvm_blislike.model.workload import Workload

# Bytes per cycle that a core draws from a level while it computes, in vector widths. Measured on
# Golden Cove with 64-byte vectors: L2 36 (1x128 blocks, whose panels stream), L3 20 (7x7 images
# with 9 MB of weights), memory 5.
_VECTORS_PER_CYCLE = {1: 2.0, 2: 0.56, 3: 0.3, 0: 0.08}
# Share of the nominal rate of FMAs and of loads that a k loop reaches. Measured on Golden Cove:
# 5x64 blocks with everything in L1 take 0.90 of the FMA peak. Blocks of one vector, a folded load
# per FMA, reach 1.7 loads a cycle (1.45 where their panels come from L2).
FMA_EFFICIENCY = 0.90
LOAD_EFFICIENCY = 0.85
# With 512-bit vectors each load takes cycles from the FMAs beside it, one of a whole vector twice
# as many as one of an element, wherever it finds its line and whether an FMA needs it or not.
# Measured on Golden Cove, everything in L1: 28 FMAs take 14.3 cycles without a load; with 8, 16,
# 28 elements 15.0, 16.2, 18.3; with as many vectors 15.8, 17.9, 21.5. Blocks of 14x32 and 6x64
# reach 1.70 FMAs a cycle, 8x48 1.76, 9x48 1.80, 27x16 1.60. Here is what exceeds the share of
# `FMA_EFFICIENCY`. (With 256-bit vectors 12 loads beside 12 FMAs take 0.08 cycles each.)
ELEMENT_BESIDE, VECTOR_BESIDE = 0.05, 0.1
# Cycles that a 128-bit load costs a k loop of LLVM's order on a core that issues in order, by
# `in_order`: 1.3 to 2.5 (benchmarks/results/arm_mca.txt).
WIDE_LOAD_CYCLES = 1.7
# The same per vector of B where A comes in single elements: 1.6 to 8.5.
LATE_CYCLES = 3.0
# Instructions by which an out-of-order core gets ahead of one that waits: beyond a short call it
# starts the next ones. Fitted to blocks of 1 to 4 pixels by 16 to 64 channels with 16 to 64 steps
# on Golden Cove, whose reorder buffer has 512 entries but whose schedulers fill before that.
AHEAD = 160
# Cycles to start and end one micro-kernel call: zeroing, pointers, the last FMAs' latency.
CALL_CYCLES = 12.0
# Cycles to hand work to the other threads and wait for them (4 us at 2.6 GHz).
FORK_JOIN_CYCLES = 10_000.0
DEFAULT_GHZ = 2.0


def clock_hz(core: Core) -> float:
    """Return the clock to assume, in Hz."""
    return (core.ghz or DEFAULT_GHZ) * 1e9


def kernel_seconds(estimate: Estimate, core: Core) -> float:
    """Return the predicted time of the kernel by itself, in seconds."""
    return estimate.seconds - estimate.cycles.get(NEIGHBOURS, 0.0) / clock_hz(core)


def bytes_per_cycle(core: Core, level: int) -> float:
    """Return what one core gets from a cache level (0: memory), in bytes per cycle."""
    return _VECTORS_PER_CYCLE.get(level, _VECTORS_PER_CYCLE[3]) * core.vector_bits / 8


def share_bytes(core: Core, level: int, threads: int) -> int:
    """Return a thread's share of a cache level in bytes, 0 where the core lacks it."""
    cache = core.cache(level)
    return 0 if cache is None else cache.bytes // max(1, min(cache.shared_by, threads))


def level_holding(core: Core, size: int, threads: int) -> int:
    """Return the first cache level whose share holds `size` bytes, 0 for memory."""
    for cache in core.caches:
        if size <= share_bytes(core, cache.level, threads):
            return cache.level
    return 0


def l2_bytes(core: Core, threads: int) -> int:
    """Return a thread's share of the second-level cache, or of the first if there is no other."""
    return share_bytes(core, 2, threads) or share_bytes(core, 1, threads)


def beyond_l2_cycles(core: Core, level: int) -> float:
    """Return the cycles per byte that a stream from a level adds to the FMAs: none up to L2."""
    return 0.0 if level in (1, 2) else 1.0 / bytes_per_cycle(core, level)


def placed(core: Core, operand: str, size: int, threads: int, level: int | None = None) -> Placed:
    """Return an entry of a footprint: an operand of `size` bytes and where it is.

    Parameters
    ----------
    level : int, optional
        The cache level; by default the first one whose share holds the operand.
    """
    at = level_holding(core, size, threads) if level is None else level
    share = share_bytes(core, at, threads)
    return operand, at, size, size / share if share else 0.0


def calls_in_flight(core: Core, rows: int, vectors: int, steps: int) -> float:
    """Return how many micro-kernel calls of `steps` a core works on at a time, 1 or more."""
    if core.in_order:
        return 1.0
    return 1.0 + AHEAD / (steps * (rows * vectors + vectors))


def step_cycles(
    core: Core, rows: int, vectors: int, a_loads: float, in_flight: float = 1.0
) -> float:
    """Cycles of one k step of a block of `rows` by `vectors` registers.

    The largest of: FMAs to start and what loads (`a_loads` for A, one per vector of B) take from
    them, loads to issue, and the latency of the FMA when there are too few accumulators to hide it,
    in this call and the others that are in flight.
    """
    latency = core.fma_latency / in_flight
    if core.in_order:
        busy = _in_order_cycles(core, rows, vectors, a_loads)
        return max(busy / FMA_EFFICIENCY, latency)
    fma, loads = rows * vectors / core.fma_per_cycle, (a_loads + vectors) / core.loads_per_cycle
    if core.isa.lane_operand:
        if a_loads >= rows and core.fma_per_cycle > 1:
            # Single elements: LLVM broadcasts some of them (ld1r), on the FMAs' unit as well.
            fma += rows / vectors / core.fma_per_cycle
        # As llvm-mca counts (benchmarks/results/arm_mca.txt), which sees no cache: loads reach
        # their nominal rate, and the rest is lost as on other cores.
        return max(max(fma, loads) / FMA_EFFICIENCY, latency)
    if core.vector_bits == 512:
        beside = ELEMENT_BESIDE * a_loads + VECTOR_BESIDE * vectors
        return max(fma / FMA_EFFICIENCY + beside, loads / LOAD_EFFICIENCY, latency)
    return max(fma / FMA_EFFICIENCY, loads / LOAD_EFFICIENCY, latency)


def weights_cycles(
    first: float, later: float, passes: float, hidden: float, compute: float
) -> float:
    """Cycles that weights add, all of which pass by in each of several passes.

    Parameters
    ----------
    first, later : float
        Cycles of their way in the first pass, from memory, and in the others, from the level that
        holds them.
    passes : float
        How often they pass by, 1 or more.
    hidden : float
        Share of their way that prefetching hides behind computation of equal length.
    compute : float
        Cycles of the computation of one pass.
    """
    ways = ((1.0, first), (passes - 1, later))
    return sum(count * (way - hidden * min(way, compute)) for count, way in ways)


def conflict_bytes(core: Core, rows: int, stride: int) -> float:
    """Bytes from L2 per step of k because a block's rows, `stride` bytes apart, compete in L1.

    Rows that lie a multiple of a way apart share one set; for each element of those beyond its
    ways a line comes from L2 again.
    """
    cache = core.cache(1)
    if cache is None:
        return 0.0
    way = max(cache.line_bytes, cache.bytes // max(cache.ways, 1))
    sets = way // math.gcd(way, stride)
    return float(max(0, rows - sets * max(cache.ways - 1, 1)) * cache.line_bytes)


def _in_order_cycles(core: Core, rows: int, vectors: int, a_loads: float) -> float:
    """Cycles of a step on a core that issues in order: nothing starts beside a 128-bit load.

    Without loads of A (`Microkernel.a_loads`) a vector of B takes one cycle, for the `ins` that
    joins its halves. Single elements of A start beside FMAs, but some of them come late.
    """
    fma = rows * vectors / core.fma_per_cycle
    if a_loads == 0:
        return fma + vectors
    if a_loads >= rows:
        return fma + LATE_CYCLES * vectors
    return fma + WIDE_LOAD_CYCLES * (vectors + a_loads)


def finish(
    core: Core,
    threads: int,
    workload: Workload,
    cycles: dict[str, float],
    footprint: tuple[Placed, ...] = (),
) -> Estimate:
    """Add up a breakdown (cycles of one thread) into an estimate."""
    seconds = sum(cycles.values()) / clock_hz(core)
    peak = core.lanes(workload.types.acc) * core.fma_per_cycle * clock_hz(core) * threads
    return Estimate(seconds, workload.macs / (peak * seconds), cycles, footprint)
