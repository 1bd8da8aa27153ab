"""Products by seven of half the size against numpy: every order, edge and epilogue, and errors."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference
import tvm
from conv_workloads import NATIVE, RUNNABLE
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir, te

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.gemm.candidates import FEW_ROWS
from tvm_blislike.cost_models.gemm_strassen.candidates import SMALLEST, kernels
from tvm_blislike.cost_models.gemm_strassen.config import (
    LOOP_ORDERS,
    PRODUCTS,
    TILES,
    StrassenConfig,
)
from tvm_blislike.cost_models.gemm_strassen.geometry import StrassenGeometry
from tvm_blislike.cost_models.moving import l2_bytes
from tvm_blislike.hardware import Core, names
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules.gemm_strassen.definition import (
    IMPLEMENTATION,
    OF_A,
    OF_B,
    OF_C,
    error_bound,
)
from tvm_blislike.schedules.lowering import lower as lowering

OURS = IMPLEMENTATION.name
SQUARE = GemmWorkload(1024, 1024, 1024)


def lowered(
    w: GemmWorkload, config: StrassenConfig, core: Core, threads: int, constant: bool = True
) -> tvm.IRModule:
    """Lower (A, B, bias, residual, C): the result plus both, clipped at zero."""
    a = te.placeholder((w.m, w.k), name="a")
    shape = StrassenGeometry(w, config).packed_shape if constant else (w.k, w.n)
    b = te.placeholder(shape, name="b")
    packed = b if constant else IMPLEMENTATION.pack_te(w, config, b)
    result = IMPLEMENTATION.compute(w, config, a, packed)
    bias, residual = te.placeholder((w.n,), name="bias"), te.placeholder((w.m, w.n), name="other")
    added = te.compute(
        result.shape, lambda i, j: result[i, j] + bias[j] + residual[i, j], name="added"
    )
    clipped = te.compute(result.shape, lambda *at: te.max(added[at], 0.0), name="clipped")
    func = te.create_prim_func([a, b, bias, residual, clipped])
    sch = s_tir.Schedule(func.with_attr({"global_symbol": "main", "tirx.noalias": True}))
    IMPLEMENTATION.schedule(sch, w, config, core, threads)
    register_bytes = core.vector_registers * core.vector_bits // 8
    ours = sch.mod["main"].with_attr(REGISTER_BYTES, register_bytes)
    return lowering.lower(tvm.IRModule({"main": ours}))


def error(
    w: GemmWorkload, config: StrassenConfig, core: Core, threads: int, constant: bool = True
) -> float:
    """Build and run; return the largest error over the largest product."""
    rng = np.random.default_rng(w.m + w.k)
    shapes = ((w.m, w.k), (w.k, w.n), (w.n,), (w.m, w.n))
    a, b, bias, residual = (rng.standard_normal(shape, dtype=np.float32) for shape in shapes)
    target = tvm.target.Target(core.target_config(threads))
    second = IMPLEMENTATION.pack(w, config, b) if constant else b
    values = (a, second, bias, residual, np.full((w.m, w.n), np.nan, np.float32))
    arguments = [tvm.runtime.tensor(value) for value in values]
    tvm.compile(lowered(w, config, core, threads, constant), target)["main"](*arguments)
    product = reference.gemm(a, b)
    wanted = np.maximum(product + bias + residual, 0.0)
    return float(np.abs(arguments[-1].numpy() - wanted).max() / np.abs(product).max())


def allowed(w: GemmWorkload, config: StrassenConfig) -> float:
    """Twice the error to expect of random data, and roundings of the epilogue."""
    return 2 * error_bound(w, config) + 1e-6


def test_seven_products_are_the_product() -> None:
    """Of coefficients, exactly: C[h, g] is the sum over c of A[h, c] B[c, g], for all A and B."""
    found = np.einsum("qx,xi,xj->qij", np.array(OF_C), np.array(OF_A), np.array(OF_B))
    for (h, g), (row, of_a), (of_b, column) in itertools.product(np.ndindex(2, 2), repeat=3):
        wanted = h == row and of_a == of_b and g == column
        assert found[2 * h + g, 2 * row + of_a, 2 * of_b + column] == wanted


@st.composite
def cases(draw: Any) -> tuple[GemmWorkload, StrassenConfig, Core]:
    """Any number of rows, from one on; blocks of one tile and of several, cut and whole."""
    core = draw(st.sampled_from(RUNNABLE))
    columns = 2 * core.lanes() * draw(st.integers(1, 6))
    w = GemmWorkload(draw(st.integers(1, 90)), columns, 2 * draw(st.integers(2, 60)))
    kernel = draw(st.sampled_from(list(kernels(w, core))))
    panels = w.n // 2 // kernel.nr
    config = StrassenConfig(
        mr=kernel.mr,
        nr=kernel.nr,
        loop_order=draw(st.sampled_from(LOOP_ORDERS)),
        mc=kernel.mr * draw(st.integers(0, 4)),
        nc=kernel.nr * draw(st.sampled_from([0, *(n for n in range(1, 7) if panels % n == 0)])),
        prefetch=draw(st.integers(0, 1)),
        unroll=draw(st.sampled_from((1, 4))),
    )
    return w, config, core


@given(cases(), st.sampled_from((1, 2)), st.sampled_from((True, True, False)))
@examples(12)
def test_random_products(case: Any, threads: int, constant: bool) -> None:
    w, config, core = case
    assert IMPLEMENTATION.applies(w, core) == ""
    assert error(w, config, core, threads, constant) < allowed(w, config), (w, config)


@pytest.mark.parametrize("order", LOOP_ORDERS)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_last_blocks_and_rows(order: str, more: int) -> None:
    """Four tiles of pairs or one more, in blocks of two: whole, cut, and with half of a pair."""
    offered = kernels(GemmWorkload(55, 4 * NATIVE.lanes(), 34), NATIVE)
    kernel = max((k for k in offered if k.mr <= 7 and k.vectors == 2), key=lambda k: k.mr)
    mr = kernel.mr
    w = GemmWorkload(8 * mr + more, 4 * NATIVE.lanes(), 34)
    config = StrassenConfig(mr=mr, nr=kernel.nr, mc=2 * mr, loop_order=order, prefetch=1)
    assert mr > 1
    assert StrassenGeometry(w, config).last_pairs == (1 if more == 1 else mr)
    assert error(w, config, NATIVE, 2) < allowed(w, config)


@pytest.mark.parametrize("size", [64, 256, 1024])
def test_errors_follow_the_bound(size: int) -> None:
    """Neither more than what is promised, nor so much less that `--max-error` refuses in vain."""
    w = GemmWorkload(96, 128, size)
    config = StrassenConfig(mr=1, nr=NATIVE.lanes(), loop_order=PRODUCTS)
    ratio = error(w, config, NATIVE, 1) / error_bound(w, config)
    assert 0.1 < ratio < 1


def test_is_chosen_within_the_error_that_is_allowed() -> None:
    core = Core.named("emeraldrapids")
    chosen = Strategy(core, 1).choose(SQUARE)
    assert chosen.config.implementation == OURS
    bound = error_bound(SQUARE, chosen.config)
    for limit, name in ((bound * 1.01, OURS), (bound * 0.99, "gemm")):
        strategy = Strategy(core, 1, constraints=Constraints(max_error=limit))
        assert strategy.choose(SQUARE).config.implementation == name


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (GemmWorkload(64, 64, 63), "k = 63 is odd"),
        (GemmWorkload(64, 3 * NATIVE.lanes(), 64), "no multiple"),
        (GemmWorkload(64, 64, 64, constant_b=False), "not constant"),
        (GemmWorkload(64, 64, 64, batch=2), "single product"),
        (GemmWorkload(64, 64, 64, types=Types.of("float16")), "only fp32"),
    ],
)
def test_says_why_not(workload: GemmWorkload, reason: str) -> None:
    assert reason in IMPLEMENTATION.applies(workload, NATIVE)


@pytest.mark.parametrize("name", ["x86-64-v3", "skylake-avx512", "neoverse-n1"])
def test_two_steps_of_k_make_a_product_and_a_single_one_does_not(name: str) -> None:
    """Any product that is not refused is lowered, by the lowest kernels and the highest."""
    core = Core.named(name)
    for k in (2, 4):
        w = GemmWorkload(50, 4 * core.lanes(), k)
        if reason := IMPLEMENTATION.applies(w, core):
            assert k == 2 and "single step" in reason
            continue
        by_height = sorted(kernels(w, core), key=lambda kernel: kernel.mr)
        for kernel, order in itertools.product((by_height[0], by_height[-1]), LOOP_ORDERS):
            config = StrassenConfig(mr=kernel.mr, nr=kernel.nr, ks=kernel.ks, loop_order=order)
            assert "sums_of_a" in lowered(w, config, core, 1).script()


def test_products_of_few_steps_columns_or_rows_are_plain_ones() -> None:
    few = 2 * SMALLEST - 32
    for size in ((512, 512, few), (512, few, 512), (FEW_ROWS, 512, 512)):
        w = GemmWorkload(*size)
        assert not list(IMPLEMENTATION.configs(w, NATIVE, 1))


def test_few_rows_are_products_of_sums_while_memory_brings_those_in_time() -> None:
    core = Core.named("zen4")
    slow = replace(core, memory_gb_per_s=5, memory_core_gb_per_s=5)
    chosen = {
        (rows, where.memory_gb_per_s): Strategy(where, 1).choose(GemmWorkload(rows, 768, 768))
        for rows, where in ((128, core), (64, core), (16, core), (64, slow))
    }
    ours = [case for case, choice in chosen.items() if choice.config.implementation == OURS]
    assert ours == [(128, core.memory_gb_per_s), (64, core.memory_gb_per_s)]


@pytest.mark.parametrize(("rows", "order"), [(128, PRODUCTS), (32, TILES)])
def test_sums_of_a_are_of_all_rows_where_l2_has_room(rows: int, order: str) -> None:
    """Of 3072 steps 0.4 of 1 MiB holds 64 pairs by products; panels take it by tiles, but of 16."""
    core = Core.named("zen4")
    for m, fits in ((rows, order == PRODUCTS), (8 * rows, False)):
        w = GemmWorkload(m, 768, 3072)
        geos = [StrassenGeometry(w, c) for c in IMPLEMENTATION.configs(w, core, 1)]
        assert any(geo.blocks_m == 1 and geo.config.loop_order == order for geo in geos) == fits
    w = GemmWorkload(rows, 768, 768)
    geos = [StrassenGeometry(w, c) for c in IMPLEMENTATION.configs(w, core, 1)]
    assert {geo.config.loop_order for geo in geos if geo.blocks_m == 1} == {*LOOP_ORDERS}


def test_tiles_wait_where_l2_is_busy() -> None:
    w, core = GemmWorkload(128, 768, 768), Core.named("zen4")
    (l2,) = (cache for cache in core.caches if cache.level == 2)
    others = [cache for cache in core.caches if cache.level != 2]
    slow = replace(core, caches=(*others[:1], replace(l2, bytes_per_cycle=16), *others[1:]))
    config = StrassenConfig(mr=13, nr=32, mc=65, loop_order=TILES, prefetch=1)
    times = [IMPLEMENTATION.estimate(w, config, where, 1).cycles["L2"] for where in (core, slow)]
    # Twice as long, and a share of all beyond what does not show.
    assert times[1] > 3 * times[0]


def test_threads_divide_columns_where_they_cannot_divide_rows() -> None:
    """25 pairs are a tile of 25 rows, or two of 12 and 13, whose panels are read twice as often."""
    w, core = GemmWorkload(49, 512, 2048), Core.named("zen4")
    offered = list(IMPLEMENTATION.configs(w, core, 2))
    assert all(not config.nc for config in IMPLEMENTATION.configs(w, core, 1))
    seconds = {c: IMPLEMENTATION.estimate(w, c, core, 2).seconds for c in offered}
    best = StrassenGeometry(w, min(offered, key=seconds.__getitem__))
    assert best.blocks_n == 2
    assert best.shares(2) == (1.0, 0.5)
    assert IMPLEMENTATION.workspace_bytes(w, best.config, 2) == 2 * (best.v_bytes + best.m_bytes)


@pytest.mark.parametrize(
    ("columns", "panels"), [(0, 6), (96, 6), (48, 3), (32, 2), (64, 3), (16, 1), (5, 1), (999, 6)]
)
def test_blocks_of_columns_are_all_the_same(columns: int, panels: int) -> None:
    config = StrassenConfig(mr=8, nr=16, mc=8, nc=columns)
    geo = StrassenGeometry(GemmWorkload(40, 192, 64), config)
    assert geo.block_n == panels
    assert geo.blocks_n * geo.block_n == geo.tiles_n


def test_products_that_leave_l2_take_longer() -> None:
    """Blocks of 56 pairs of 768x768x768 leave L2 of 1 MiB room for all seven products."""
    w, core = GemmWorkload(768, 768, 768), Core.named("zen4")
    times = {}
    for pairs in (56, 112):
        config = StrassenConfig(mr=28, nr=16, mc=pairs, loop_order=PRODUCTS, prefetch=1)
        times[pairs] = IMPLEMENTATION.estimate(w, config, core, 1).cycles["sums of products"]
    assert times[112] > 1.2 * times[56]


@pytest.mark.parametrize("name", names())
def test_blocks_fit_on_every_core(name: str) -> None:
    core = Core.named(name)
    for threads in (1, 2):
        for config in IMPLEMENTATION.configs(SQUARE, core, threads):
            geo = StrassenGeometry(SQUARE, config)
            assert max(geo.blocks_m, geo.blocks_n) >= threads
            assert geo.v_bytes < l2_bytes(core, threads), config
            estimate = IMPLEMENTATION.estimate(SQUARE, config, core, threads)
            least = IMPLEMENTATION.least_seconds(SQUARE, core, threads)
            assert estimate.seconds >= least
            assert 0 < estimate.peak_fraction < 8 / 7


@pytest.mark.parametrize("name", ["cortex-a76", "cortex-a53", "neoverse-v1"])
def test_is_made_of_the_kernels_of_arm(name: str) -> None:
    """Lowered as it would be built: the calls stand where the kernels of that core put them."""
    core = Core.named(name)
    w = GemmWorkload(50, 4 * core.lanes(), 40)
    for order in LOOP_ORDERS:
        kernel = max(kernels(w, core), key=lambda k: k.mr * k.nr)
        config = StrassenConfig(
            mr=kernel.mr, nr=kernel.nr, mc=2 * kernel.mr, loop_order=order, prefetch=1
        )
        assert "sums_of_a" in lowered(w, config, core, 1).script()
