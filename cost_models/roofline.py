"""Predicted time of a (workload, config, core): FMA issue, loads, cache traffic, edges, packing.

A layer's time is what its micro-kernel calls take when the vector units limit, stretched where a
cache level cannot deliver the operands in time, plus what lies outside the k loop. All terms are
in cycles of one core until the end; `Estimate.seconds` divides by the clock.
"""

from __future__ import annotations

import functools
import math

from tvm_blislike.cost_models.tiles import tile_call_cycles
from tvm_blislike.hardware import Cache, Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.products import FMA, Product
from tvm_blislike.model.estimate import NEIGHBOURS, Estimate, Placed
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Workload

# Share of the nominal rate of FMAs that a k loop reaches beside what its loads take (a fact of the
# core): 28 FMAs without a load take 14.3 cycles on Golden Cove, 28x16 blocks 29.0 on Zen 4.
FMA_EFFICIENCY = 0.98
# The same of loads: blocks of one vector, a folded load per FMA, reach 1.7 of two loads a cycle
# (Golden Cove; 1.45 where their panels come from L2).
LOAD_EFFICIENCY = 0.85
# Cycles that a 128-bit load costs a k loop of LLVM's order on a core that issues in order, by
# `in_order`: 1.3 to 2.5 (benchmarks/results/arm_mca.txt).
WIDE_LOAD_CYCLES = 1.7
# The same per vector of B where A comes in single elements: 1.6 to 8.5.
LATE_CYCLES = 3.0
# Share of the reorder window by which an out-of-order core gets ahead of a call that waits: beyond
# a short call it starts the next ones, until its schedulers are full. Fitted to blocks of 1 to 4
# pixels by 16 to 64 channels with 16 to 64 steps (a window of 512 entries).
AHEAD = 0.31
# How sharply FMAs' number and their latency limit a k step, whichever is more: where both are the
# same, an FMA that starts late delays its chain, and none catches up. Zen 3 (8 in flight), products
# of 192 and 256 steps with A from L2: 8 chains (4x16, 2x32) reach 0.85 to 0.95 of what 12 do
# (6x16, 4x24), 9 chains 0.88 to 0.93, 10 chains 0.99; 6 chains (3x16, 2x24) their three quarters.
LATENCY_SHARPNESS = 8
# The same of products of pairs of bfloat16, and of these with broadcasts where they share units
# (`Core.broadcasts_per_cycle`): blocks of two vectors, at both limits, reach 0.96 of what those of
# three and four do, with panels from L1 and L2 (Zen 4, products of 1024 and 2048).
BROADCAST_SHARPNESS = 16
# Share of a stream from L2 that shows although FMAs take longer: fills of L1 are in the way of its
# loads. Golden Cove: 14x14 images where 32 filters pass by take 1.07 times as long as where 13
# pixels do; Zen 4: 0.05 to 0.16 for blocks of 12x16 to 6x64 whose panels exceed L1.
EXPOSED_L2 = 0.1
# The same of tiles: 3x3 layers of 64, 128 and 256 channels take as long as their products and 48
# bytes of L2 a cycle, one after the other, where 36 of a core's file are what vectors get.
EXPOSED_TILES = 0.75
# Cycles to start and end one micro-kernel call: zeroing, pointers, the last FMAs' latency.
CALL_CYCLES = 12.0
# Part of the time that L2 delivers panels that hides nothing of what comes from beyond it. 512
# channels of 7x7 to as many by F(2, 3), whose weights take 1.4 times as long as their products
# (Emerald Rapids): 8x32 blocks, 0.42 of whose time L2 is busy, hide 0.70 of it, 6x64 blocks, with
# 0.49, hide 0.60; F(6, 3) of 512 channels of 28x28, with 67 MB, hides less.
L2_BUSY_LOSS = 0.8
# Share of the lines in flight that a core has asked for before it needs the first of them.
IN_TIME = 0.5
# After which `missing_share` no longer changes.
_NEWTON_STEPS = 8
# Of a breakdown: what threads wait for each other where several run on a core.
SHARED_CORES = "shared cores"


def clock_hz(core: Core) -> float:
    """Return the clock to assume, in Hz."""
    return core.ghz * 1e9


def kernel_seconds(estimate: Estimate, core: Core) -> float:
    """Return the predicted time of the kernel by itself, in seconds."""
    return estimate.seconds - estimate.cycles.get(NEIGHBOURS, 0.0) / clock_hz(core)


@functools.cache
def bytes_per_cycle(core: Core, level: int, threads: int = 1) -> float:
    """Return what a thread gets from a cache level (0: memory), in bytes per cycle.

    Parameters
    ----------
    threads : int
        Threads that read at the same time, each something of its own: they share what the level
        delivers. Where all of them read the same, one fetches it for the others: 1.
    """
    cache = core.cache(level)
    if cache is None:
        one, every = core.memory_core_gb_per_s / core.ghz, core.memory_gb_per_s / core.ghz
        return min(one, every / max(1, threads))
    if cache.all_bytes_per_cycle is None:
        return cache.bytes_per_cycle
    return min(cache.bytes_per_cycle, cache.all_bytes_per_cycle / sharers(core, cache, threads))


def fork_cycles(core: Core) -> float:
    """Return the cycles to hand work to the other threads and wait for them."""
    return core.fork_join_us * 1e-6 * clock_hz(core)


def sharers(core: Core, cache: Cache, threads: int) -> int:
    """Return how many of `threads` threads share one instance of a cache, 1 or more.

    Neighbouring cores run threads first; once all have one, each gets another
    (hardware threads of a core, or several that take turns).
    """
    per_core = math.ceil(threads / core.cores)
    return max(1, min(cache.shared_by, threads, core.cores) * per_core)


@functools.cache
def share_bytes(core: Core, level: int, threads: int) -> int:
    """Return a thread's share of a cache level in bytes, 0 where the core lacks it."""
    cache = core.cache(level)
    return 0 if cache is None else cache.bytes // sharers(core, cache, threads)


def level_holding(core: Core, size: int, threads: int) -> int:
    """Return the first cache level whose share holds `size` bytes, 0 for memory."""
    for cache in core.caches:
        if size <= share_bytes(core, cache.level, threads):
            return cache.level
    return 0


def l2_bytes(core: Core, threads: int) -> int:
    """Return a thread's share of the second-level cache, or of the first if there is no other."""
    return share_bytes(core, 2, threads) or share_bytes(core, 1, threads)


def missing_share(size: float, room: float) -> float:
    """Return the share of what passes by again and again that a cache has lost in between.

    A cache that replaces lines at random keeps one while m * size others come with probability
    exp(-m * size / room), which is 1 - m. A set a little too large is lost in part, not altogether.

    Parameters
    ----------
    size : float
        Bytes of everything that passes between two uses.
    room : float
        Bytes of the cache that it may take.
    """
    if size <= room:
        return 0.0
    if room <= 0:
        return 1.0
    share, ratio = 1.0, size / room
    for _ in range(_NEWTON_STEPS):
        kept = math.exp(-share * ratio)
        share -= (1.0 - share - kept) / (kept * ratio - 1.0)
    return share


@functools.cache
def late_share(core: Core, lines: int) -> float:
    """Return the share of lines asked for at once, from beyond L1, that a core waits for.

    Those of different rows, which no prefetcher follows: the first ones come in time.
    """
    return max(0.0, 1 - core.lines_in_flight * IN_TIME / lines)


def apart_cycles(core: Core, rows: int, row_bytes: float) -> float:
    """Return the cycles that a block waits for bytes from L2 of each of several rows.

    Prefetchers bring a line's neighbours, not the next row's line, and the lines of all rows are
    asked for at once, as k reaches the next ones. What `element_load_cycles` of 0.09 stood for on
    Emerald Rapids, whose loads of elements in L1 cost nothing: products of V take 3 to 4 % less
    time with 7x48 than with 13x32 blocks, of pixels with a stride 5x64 blocks 6 % less than 14x32.

    Parameters
    ----------
    rows : int
        Rows of the block whose lines are no neighbours.
    row_bytes : float
        Bytes of each.
    """
    return late_share(core, rows) * rows * row_bytes / bytes_per_cycle(core, 2)


def beyond_l2(core: Core) -> int:
    """Return the level behind L2: memory on most boards."""
    return 3 if core.cache(3) else 0


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
    if core.reorder_window is None:
        return 1.0
    return 1.0 + AHEAD * core.reorder_window / (steps * (rows * vectors + vectors))


def products_per_cycle(core: Core, product: Product) -> float:
    """Return the multiply-adds of a micro-kernel that a core starts per cycle.

    Those of several instructions keep units busy that FMAs do not have. Some cores start products
    of pairs of bfloat16 less often than FMAs (Emerald Rapids: one in two cycles, where FMAs are two
    a cycle).
    """
    if product.is_bfloat16 and core.bf16_per_cycle is not None:
        return core.bf16_per_cycle
    if product.instructions <= 1:
        return core.fma_per_cycle / product.instructions
    vectors = core.vectors_per_cycle or core.fma_per_cycle
    return min(core.fma_per_cycle, vectors / product.instructions)


def call_cycles(
    core: Core,
    kernel: Microkernel,
    rows: int,
    vectors: int,
    steps: int,
    image_rows: int = 1,
    in_flight: float = 1.0,
) -> float:
    """Cycles of a micro-kernel call of `steps` k steps on a block that reads A in place.

    Parameters
    ----------
    rows, vectors : int
        Of the block, cut or whole.
    image_rows : int
        Of the whole block.
    """
    if kernel.tiles is not None:
        return tile_call_cycles(kernel, rows, vectors, steps, image_rows)
    a_loads = kernel.a_loads(rows)
    return steps * step_cycles(core, rows, vectors, a_loads, in_flight, kernel.product)


def useful_cycles(core: Core, kernel: Microkernel, rows: int, columns: int) -> float:
    """Cycles of nothing but the multiply-adds of one k step of a block."""
    vectors = rows * columns / kernel.lanes
    return vectors / products_per_cycle(core, kernel.product) / FMA_EFFICIENCY


def step_cycles(
    core: Core,
    rows: int,
    vectors: int,
    a_loads: float,
    in_flight: float = 1.0,
    product: Product = FMA,
) -> float:
    """Cycles of one k step of a block of `rows` by `vectors` registers.

    The largest of: products to start and what loads (`a_loads` for A, one per vector of B) take
    from them, loads to issue, and the latency of the FMA when there are too few accumulators to
    hide it, in this call and the others that are in flight; out of order, somewhat more where there
    are only just enough.
    """
    latency = core.fma_latency / in_flight
    b_loads = vectors * (product.b_vectors + rows * product.folded_b)
    if product.rows > 1:
        # Whole tiles; a vector of B has two columns; rows in place are joined by vector units.
        pairs = math.ceil(rows / product.rows)
        b_loads *= product.rows
        joined = pairs if a_loads > pairs else 0
        fma = (product.rows * pairs * vectors + joined) / products_per_cycle(core, product)
    else:
        fma = rows * vectors / products_per_cycle(core, product)
        fma = max(fma, _with_conversions(core, rows, vectors, product))
        if product.is_bfloat16 and core.broadcasts_per_cycle is not None:
            started = (rows * vectors + a_loads) / core.broadcasts_per_cycle
            fma = _at_limits(fma, started, BROADCAST_SHARPNESS)
    if core.in_order:
        busy = _in_order_cycles(fma, rows, b_loads, a_loads)
        return max(busy / FMA_EFFICIENCY, latency)
    elements_per_cycle = core.element_loads_per_cycle or core.loads_per_cycle
    loads = a_loads / elements_per_cycle + b_loads / core.loads_per_cycle
    if core.isa.lane_operand:
        if a_loads >= rows and core.fma_per_cycle > 1 and product.rows == 1:
            # Single elements: LLVM broadcasts some of them (ld1r), on the FMAs' unit as well.
            fma += rows / vectors / core.fma_per_cycle
        # As llvm-mca counts (benchmarks/results/arm_mca.txt), which sees no cache: loads reach
        # their nominal rate, and the rest is lost as on other cores.
        return _with_latency(max(fma, loads) / FMA_EFFICIENCY, latency)
    beside = core.element_load_cycles * a_loads + core.vector_load_cycles * vectors
    busy = fma / FMA_EFFICIENCY + beside
    return max(_with_latency(busy, latency), loads / LOAD_EFFICIENCY)


def _with_latency(busy: float, latency: float) -> float:
    """Cycles of a step whose FMAs take `busy` cycles and depend on those of the step before."""
    return _at_limits(busy, latency, LATENCY_SHARPNESS)


def _at_limits(first: float, second: float, sharpness: float) -> float:
    """Return the larger of two limits, more where the other one is as large."""
    return (first**sharpness + second**sharpness) ** (1 / sharpness)


def _with_conversions(core: Core, rows: int, vectors: int, product: Product) -> float:
    """Cycles of the multiply-adds of a step and of the conversions of its vectors of B."""
    started = core.vectors_per_cycle or core.fma_per_cycle
    return vectors * (rows * product.instructions + product.conversion) / started


def l2_cycles(arrival: float, issue: float, kernel: Microkernel | None = None) -> float:
    """Return the cycles that operands on their way from L2 add to those of the instructions.

    Tiles wait for theirs: the next ones are loaded into the registers that products still read.
    """
    if kernel is not None and kernel.tiles is not None:
        return EXPOSED_TILES * arrival
    return max(arrival - issue, EXPOSED_L2 * arrival)


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


def _in_order_cycles(fma: float, rows: int, vectors: int, a_loads: float) -> float:
    """Cycles of a step on a core that issues in order: nothing starts beside a 128-bit load.

    Without loads of A (`Microkernel.a_loads`) a vector of B takes one cycle, for the `ins` that
    joins its halves. Single elements of A start beside FMAs, but some of them come late.
    """
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
    """Add up a breakdown (cycles of one thread with a core of its own) into an estimate.

    Threads beyond the cores share the units of a core: each takes as much longer.
    """
    cores = min(threads, core.cores)
    if threads > cores:
        cycles = {**cycles, SHARED_CORES: sum(cycles.values()) * (threads / cores - 1)}
    seconds = sum(cycles.values()) / clock_hz(core)
    peak_fraction = peak_seconds(workload, core, threads) / seconds
    return Estimate(seconds, peak_fraction, cycles, footprint)


def peak_seconds(workload: Workload, core: Core, threads: int) -> float:
    """Return the time of nothing but the FMAs of a workload, each core starting all it can."""
    cores = min(threads, core.cores)
    starts = core.lanes(workload.types.acc) * core.fma_per_cycle * clock_hz(core) * cores
    return workload.macs / (starts * macs_per_lane(core, workload.types))


@functools.cache
def macs_per_lane(core: Core, types: Types) -> float:
    """Return the products that a lane adds up while an FMA starts, by the best micro-kernel.

    One of fp32, four where an instruction multiplies groups of four bytes; 1 without micro-kernels.
    """
    products = {kernel.product for kernel in kernels_for(core, types)}
    rates = (p.ks * products_per_cycle(core, p) / core.fma_per_cycle for p in products)
    return max(rates, default=1.0)
