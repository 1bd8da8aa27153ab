"""Cycles of micro-kernel calls: products that a core starts, their latency, and their loads.

Operands are in L1 here, or come in time; what their way adds is told by `moving`. Blocks in tile
registers (`microkernels.tile_loops`) have rules of their own.
"""

from __future__ import annotations

import functools
import math

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.products import FMA, Product
from tvm_blislike.microkernels.tile_loops import LEAST_ROWS, ROWS, TileBlock, tile_rows
from tvm_blislike.model.types import Types

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
# Cycles to start and end one micro-kernel call: zeroing, pointers, the last FMAs' latency.
CALL_CYCLES = 12.0
# Cycles of copying a row of A for one tile of k, beside products: 32 rows take 55.
COPIED_ROW_CYCLES = 1.7


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


@functools.cache
def macs_per_lane(core: Core, types: Types) -> float:
    """Return the products that a lane adds up while an FMA starts, by the best micro-kernel.

    One of fp32, four where an instruction multiplies groups of four bytes; 1 without micro-kernels.
    """
    products = {kernel.product for kernel in kernels_for(core, types)}
    rates = (p.ks * products_per_cycle(core, p) / core.fma_per_cycle for p in products)
    return max(rates, default=1.0)


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


def tile_call_cycles(
    kernel: Microkernel, rows: int, vectors: int, steps: int, image_rows: int = 1
) -> float:
    """Return the cycles that a call takes for `steps` groups of k.

    Loads of tiles are hidden: four of them take half as long as the four products that they serve.

    Parameters
    ----------
    rows, vectors : int
        Of the block, cut or whole.
    image_rows : int
        Of a whole block, where rows of it are not all equally far apart.
    """
    block = _block(kernel, rows, vectors, steps, image_rows)
    products = block.tall * block.wide * math.ceil(steps / block.groups)
    copied = rows if block.is_short else 0
    tails = rows if steps % block.groups else 0
    copies = COPIED_ROW_CYCLES * (copied * (steps // block.groups) + tails)
    return products * max(block.rows, LEAST_ROWS) + copies


def tile_store_cycles(kernel: Microkernel, rows: int, vectors: int, image_rows: int = 1) -> float:
    """Return the cycles of storing a block to memory, a row of a tile each."""
    block = _block(kernel, rows, vectors, 1, image_rows)
    return float(block.tall * block.wide * block.rows)


def _block(kernel: Microkernel, rows: int, vectors: int, steps: int, image_rows: int) -> TileBlock:
    of_tile = tile_rows(kernel.mr, image_rows)
    mh, mw = (math.ceil(rows / of_tile), of_tile) if image_rows > 1 else (1, rows)
    return TileBlock(mh, mw, vectors * ROWS, of_tile, kernel.nr, steps)
