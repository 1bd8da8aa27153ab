"""Cycles of a k step against the simulated ones of every NEON micro-kernel, as they are on file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from estimates import late

from tvm_blislike.cost_models.issue import (
    FMA_EFFICIENCY,
    calls_in_flight,
    macs_per_lane,
    products_per_cycle,
    step_cycles,
)
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import (
    Microkernel,
    avx2_masked,
    avx2_s16,
    avx512_bf16,
    get_kernel,
    kernels_for,
    neon_s8_pairs,
)
from tvm_blislike.microkernels.products import FMA
from tvm_blislike.model.types import BYTES, Types

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "arm_mca.txt"
# Share of the FMA peak that the best micro-kernel of a core reaches at least.
OUT_OF_ORDER, IN_ORDER = 0.97, 0.85
# Fewer accumulators depend on how a core forwards them, which its simulation leaves out.
ENOUGH_ACCUMULATORS = 12


def figures() -> Iterator[tuple[Core, Microkernel, str, float, int, int]]:
    """Yield (core, micro-kernel, view, cycles of a step, spills, moves)."""
    core = None
    for line in RESULTS.read_text().splitlines():
        heading = re.match(r"([a-z0-9-]+): (in|out of) order", line)
        if heading:
            core = Core.named(heading[1])
        elif line.startswith("neon_f32"):
            name, view, cycles, *_, spills, moves = line.split()
            yield core, get_kernel(name), view, float(cycles), int(spills), int(moves)


FIGURES = list(figures())
CORES = list({core.name: core for core, *_ in FIGURES}.values())


def predicted(core: Core, kernel: Microkernel, view: str) -> float:
    a_loads = kernel.a_loads(kernel.mr, view, core.in_order)
    # The model's margin is for what no simulation of a k loop sees.
    return step_cycles(core, kernel.mr, kernel.vectors, a_loads) * FMA_EFFICIENCY


def test_every_micro_kernel_is_on_file():
    assert len(CORES) == 6
    for core in CORES:
        for view in ("rows", "panel"):
            listed = {k for c, k, v, *_ in FIGURES if (c, v) == (core, view)}
            assert listed == set(kernels_for(core, panels=view == "panel"))


def test_no_loop_spills_or_moves():
    assert [f for f in FIGURES if f[-2:] != (0, 0)] == []


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_best_micro_kernel_reaches_the_bar(core: Core):
    best = max(
        kernel.mr * kernel.vectors / core.fma_per_cycle / cycles
        for c, kernel, _, cycles, *_ in FIGURES
        if c == core
    )
    assert best >= (IN_ORDER if core.in_order else OUT_OF_ORDER)


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_model_follows_the_simulation(core: Core):
    """Out of order within a few percent; in order as good as its one constant allows."""
    ratios = {
        f"{kernel.name} {view}": cycles / predicted(core, kernel, view)
        for c, kernel, view, cycles, *_ in FIGURES
        if c == core and kernel.mr > 1 and kernel.mr * kernel.vectors >= ENOUGH_ACCUMULATORS
    }
    low, high = (0.75, 1.35) if core.in_order else (0.95, 1.15)
    assert {name: ratio for name, ratio in ratios.items() if not low <= ratio <= high} == {}


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_what_the_model_prefers_is_among_the_fastest(core: Core):
    def speed(kernel: Microkernel, cycles: float) -> float:
        return kernel.mr * kernel.vectors / cycles

    for view in ("rows", "panel"):
        rows = [(k, cycles) for c, k, v, cycles, *_ in FIGURES if (c, v) == (core, view)]
        best = max(speed(*row) for row in rows)
        chosen = max(rows, key=lambda row: speed(row[0], predicted(core, row[0], view)))
        assert speed(*chosen) >= 0.9 * best


def test_short_calls_hide_the_latency_of_one_another():
    core = Core.named("sapphirerapids")
    assert calls_in_flight(core, 1, 1, 16) > 5 > 1.1 > calls_in_flight(core, 1, 1, 4608) > 1
    alone, together = (step_cycles(core, 1, 1, 1, n) for n in (1, 2))
    busy = 1 / core.fma_per_cycle / FMA_EFFICIENCY
    busy += core.element_load_cycles + core.vector_load_cycles
    assert (alone, together) == (late(busy, core.fma_latency), late(busy, core.fma_latency / 2))
    assert together < 0.501 * alone
    assert calls_in_flight(Core.named("cortex-a53"), 1, 1, 16) == 1


def test_loads_take_cycles_from_wide_fmas():
    """What a loop in L1 took per FMA on Golden Cove, relative to 14x32 blocks."""
    core = Core.named("sapphirerapids")

    def per_fma(rows: int, vectors: int) -> float:
        return step_cycles(core, rows, vectors, rows) / (rows * vectors)

    measured = {(6, 4): 1.70, (8, 3): 1.76, (9, 3): 1.80, (27, 1): 1.60}
    for block, rate in measured.items():
        assert per_fma(14, 2) / per_fma(*block) == pytest.approx(rate / 1.70, rel=0.06)
    assert per_fma(9, 3) < per_fma(14, 2) < per_fma(27, 1)


def test_blocks_with_just_enough_accumulators_are_slower():
    """What products of 192 and 256 steps reached on Zen 3, of what 6x16 blocks did."""
    core = Core.named("zen3")

    def per_fma(rows: int, vectors: int) -> float:
        return step_cycles(core, rows, vectors, rows) / (rows * vectors)

    measured = {(4, 3): 0.97, (5, 2): 0.99, (3, 3): 0.90, (4, 2): 0.94, (3, 2): 0.80, (2, 3): 0.74}
    for block, speed in measured.items():
        assert per_fma(6, 2) / per_fma(*block) == pytest.approx(speed, rel=0.08)
    assert per_fma(2, 4) > 1.07 * per_fma(6, 2)


def test_products_of_several_instructions_cost_as_many():
    pairs = avx2_s16.PRODUCT
    rates = {n: products_per_cycle(Core.named(n), pairs) for n in ("haswell", "skylake", "zen3")}
    # vpmaddwd on one port of two; on two of three; and beside vpaddd on 3.3 of four, as measured.
    assert rates == {"haswell": 1.0, "skylake": 1.5, "zen3": 1.65}
    core = Core.named("haswell")
    assert products_per_cycle(core, FMA) == core.fma_per_cycle
    assert products_per_cycle(Core.named("cortex-a72"), neon_s8_pairs.PRODUCT) == 1.0
    # vpxor, vpmaddubsw, vpmaddwd and vpaddd, for twice as many steps of k.
    masked = {n: products_per_cycle(Core.named(n), avx2_masked.PRODUCT) for n in rates}
    assert masked == {name: rate / 2 for name, rate in rates.items()}
    busy = 2 * 10 / 2 / FMA_EFFICIENCY
    assert step_cycles(core, 5, 2, 5, product=pairs) == late(busy, core.fma_latency)


def test_a_lane_adds_up_what_products_hold_at_their_rate():
    words = Types("int16", "int16", "int32", "int32")
    rates = {name: macs_per_lane(Core.named(name), words) for name in ("haswell", "skylake")}
    assert rates == {"haswell": 1.0, "skylake": 1.5}
    assert macs_per_lane(Core.named("zen4"), BYTES) == 4.0


@pytest.mark.parametrize(
    ("mr", "vectors", "least", "most"), [(24, 1, 4 / 3, 1.34), (6, 4, 1, 1.01)]
)
def test_broadcasts_that_share_units_with_products_count(
    mr: int, vectors: int, least: float, most: float
) -> None:
    kernel = next(k for k in avx512_bf16.KERNELS if (k.mr, k.vectors) == (mr, vectors))
    shared = Core.named("zen4")
    free = replace(shared, broadcasts_per_cycle=None)
    cycles = [
        step_cycles(core, mr, vectors, kernel.a_loads(mr), product=kernel.product)
        for core in (shared, free)
    ]
    assert least <= cycles[0] / cycles[1] < most
