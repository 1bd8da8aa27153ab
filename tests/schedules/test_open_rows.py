"""Products of a number of rows that only running tells: each as NumPy has it, nothing beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import tvm
from conv_workloads import NATIVE
from effort import examples
from guard import GuardedArrays
from hypothesis import given
from hypothesis import strategies as st
from tvm import s_tir, te

from tvm_blislike.cost_models.gemm.candidates import FEW_ROWS
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import B_OUTSIDE, LOOP_ORDERS, PACKED
from tvm_blislike.cost_models.gemm_strassen import config as strassen
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.marks import REGISTER_BYTES, ROW_AXES
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.passes.schedule import lowering
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.lowering.rewrite import collect, substitute

KERNELS = [k for k in kernels_for(NATIVE, FLOAT32) if k.tiles is None and k.mr <= 14]


def lowered(w: GemmWorkload, config: Config, threads: int) -> tvm.IRModule:
    """Lower (A, B, residual, C): the product of any rows plus the residual, clipped at zero."""
    ours = get_implementation(config.implementation)
    packed = ours.pack(w, config, np.zeros((w.k, w.n), "float32"))
    a, b = te.placeholder((w.m, w.k), name="a"), te.placeholder(packed.shape, name="b")
    result, other = ours.compute(w, config, a, b), te.placeholder((w.m, w.n), name="other")
    added = te.compute(result.shape, lambda i, j: te.max(result[i, j] + other[i, j], 0.0))
    func = te.create_prim_func([a, b, other, added])
    sch = s_tir.Schedule(func.with_attr({"global_symbol": "main", "tirx.noalias": True}))
    ours.schedule(sch, w, config, NATIVE, threads)
    register_bytes = NATIVE.vector_registers * NATIVE.vector_bits // 8
    notes = {REGISTER_BYTES: register_bytes, ROW_AXES: [0, -1, 0, 0]}
    return lowering.lower(tvm.IRModule({"main": sch.mod["main"].with_attr(notes)}))


def require_right(
    w: GemmWorkload, chosen: Config, threads: int, least: int, numbers: Sequence[int]
) -> None:
    """Compile for any number of rows, scheduled for those of `w`, and compare some."""
    ours = get_implementation(chosen.implementation)
    config = ours.of_open_rows(w, chosen, threads, least)
    target = tvm.target.Target(NATIVE.target_config(threads))
    built = tvm.compile(lowered(w, config, threads), target)
    rng = np.random.default_rng(w.k)
    b = rng.standard_normal((w.k, w.n), dtype=np.float32)
    packed = tvm.runtime.tensor(ours.pack(w, config, b))
    for m in numbers:
        guarded = GuardedArrays()
        arrays = [guarded.at_end((m, columns)) for columns in (w.k, w.n, w.n)]
        for array in arrays[:2]:
            array[...] = rng.standard_normal(array.shape)
        a, other, result = arrays
        result[...] = np.nan
        at = [tvm.runtime.from_dlpack(array) for array in arrays]
        built["main"](at[0], packed, *at[1:])
        wanted = np.maximum(a.astype("float64") @ b + other, 0)
        np.testing.assert_allclose(result, wanted, atol=2e-6 * w.k, err_msg=f"{m} rows")
        guarded.check()


def rows(config: Config, data: st.DataObject) -> tuple[int, list[int]]:
    """Draw the rows that a product is scheduled for, and some that come."""
    tiles = data.draw(st.integers(1, 6))
    tile = config.tile_rows
    most = tiles * tile
    ends = {1, 2, FEW_ROWS, FEW_ROWS + 1, tile - 1, tile, tile + 1, most - 1, most, 3 * most + 1}
    drawn = data.draw(st.lists(st.integers(1, 4 * most), max_size=4))
    return most, sorted(({*ends, *drawn}) - {0})


@given(st.data())
@examples(6)
def test_any_number_of_rows(data: st.DataObject) -> None:
    kernel, threads = data.draw(st.sampled_from(KERNELS)), data.draw(st.sampled_from([1, 2]))
    k, n = data.draw(st.integers(5, 90)), data.draw(st.integers(1, 150))
    config = GemmConfig(
        mr=kernel.mr,
        nr=kernel.nr,
        mc=kernel.mr * data.draw(st.integers(1, 4)),
        nc=kernel.nr * data.draw(st.integers(1, 3)),
        kc=data.draw(st.sampled_from([k, max(2, k // 2)])),
        loop_order=data.draw(st.sampled_from(LOOP_ORDERS)),
        packing=data.draw(st.sampled_from([PACKED, "in place"])),
        prefetch=data.draw(st.integers(0, 1)),
    )
    most, numbers = rows(config, data)
    require_right(GemmWorkload(most, n, k), config, threads, data.draw(st.integers(1, 40)), numbers)


@given(st.data())
@examples(6)
def test_any_number_of_pairs(data: st.DataObject) -> None:
    kernel, threads = data.draw(st.sampled_from(KERNELS)), data.draw(st.sampled_from([1, 2]))
    panels, k = data.draw(st.integers(1, 3)), 2 * data.draw(st.integers(2, 50))
    config = strassen.StrassenConfig(
        mr=kernel.mr,
        nr=kernel.nr,
        mc=kernel.mr * data.draw(st.integers(1, 4)),
        nc=kernel.nr * data.draw(st.integers(0, panels)),
        loop_order=data.draw(st.sampled_from(strassen.LOOP_ORDERS)),
        prefetch=data.draw(st.integers(0, 1)),
    )
    most, numbers = rows(config, data)
    w = GemmWorkload(most, 2 * panels * kernel.nr, k)
    require_right(w, config, threads, data.draw(st.integers(1, 40)), numbers)


def test_few_rows_ask_for_nothing_ahead() -> None:
    """Branches of up to `FEW_ROWS` rows have no requests, the others do."""
    kernel = max(KERNELS, key=lambda each: each.mr)
    w = GemmWorkload(2 * kernel.mr, 4 * kernel.nr, 64)
    config = GemmConfig(
        mr=kernel.mr, nr=kernel.nr, mc=w.m, nc=w.n, kc=w.k, loop_order=LOOP_ORDERS[0],
        packing="in place", prefetch=1,
    )  # fmt: skip
    opened = get_implementation("gemm").of_open_rows(w, config, 1, w.m)
    branches = collect(lowered(w, opened, 1)["main"].body, tvm.tirx.IfThenElse)
    asks = {
        int(branch.condition.b): "prefetch" in branch.then_case.script()
        for branch in branches
        if isinstance(branch.condition, tvm.tirx.EQ)
    }
    assert asks == {number: number > FEW_ROWS for number in range(1, kernel.mr)}


@pytest.mark.parametrize("tiles", [1, 3])
def test_tiles_ask_for_the_next_panel_where_there_are_several(tiles: int) -> None:
    """Two of a block share the panel, if two are there; a block of one asks for none."""
    kernel = max(KERNELS, key=lambda each: each.mr)
    w = GemmWorkload(3 * kernel.mr, 4 * kernel.nr, 64)
    config = GemmConfig(
        mr=kernel.mr, nr=kernel.nr, mc=tiles * kernel.mr, nc=w.n, kc=w.k, loop_order=B_OUTSIDE,
        packing="in place", prefetch=1,
    )  # fmt: skip
    opened = get_implementation("gemm").of_open_rows(w, config, 1, 1)
    body = lowered(w, opened, 1)["main"].body
    # Rows of the block beyond those of one tile.
    least = {
        int(branch.condition.a)
        for branch in collect(body, tvm.tirx.IfThenElse)
        if isinstance(branch.condition, tvm.tirx.LT) and "prefetch" in branch.then_case.script()
    }
    assert least == ({kernel.mr} if tiles > 1 else set())


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_divide_pairs_evenly(threads: int) -> None:
    """As many blocks for each thread as there are pairs for."""
    kernel = min(KERNELS, key=lambda each: each.mr)
    config = strassen.StrassenConfig(mr=kernel.mr, nr=kernel.nr, mc=3 * kernel.mr)
    w = GemmWorkload(12 * kernel.mr, 2 * kernel.nr, 8)
    opened = get_implementation("gemm_strassen").of_open_rows(w, config, threads, 1)
    assert opened == replace(config, open_rows=1)
    loop = collect(lowered(w, opened, threads)["main"].body, tvm.tirx.For)[0]
    assert (loop.kind == tvm.tirx.ForKind.PARALLEL) == (threads > 1)
    (count,) = set(collect(loop.extent, tvm.tirx.Var))
    for number in (1, 2, 3, 5 * kernel.mr, 7 * kernel.mr, 26 * kernel.mr):
        pairs = math.ceil(number / 2)
        blocks = math.ceil(math.ceil(pairs / (3 * kernel.mr)) / threads) * threads
        found = tvm.sym.Analyzer().simplify(substitute(loop.extent, {count: number}))
        assert int(found) == min(blocks, pairs)
