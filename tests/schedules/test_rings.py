"""Rings of rows: each row computed once, and found again by the blocks that follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, sym, te, tirx

from tvm_blislike.model.directives import Ring
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.schedules.lowering import lower as lowering

COLUMNS = 8


def lowered(rows: int, step: int, reach: int) -> tvm.IRModule:
    """Sums of `reach` rows of 3 x, in blocks of `step` rows whose rows of 3 x lie in a ring."""
    x = te.placeholder((rows + reach - 1, COLUMNS), name="x")
    three = te.compute(x.shape, lambda y, c: x[y, c] * 3, name="three")

    def total(y: Any, c: Any) -> Any:
        return sum((three[y + i, c] for i in range(1, reach)), three[y, c])

    out = te.compute((rows, COLUMNS), total, name="out")
    sch = s_tir.Schedule(te.create_prim_func([x, out]).with_attr("global_symbol", "main"))
    blocks, _ = sch.split(sch.get_loops(sch.get_sblock("out"))[0], [None, step])
    sch.compute_at("three", blocks, preserve_unit_loops=True)
    row = sch.get_loops(sch.get_sblock("three"))[1]
    Ring(axis=0, rows=step + reach - 1, step=step).on(sch, blocks)
    Named("ring").on(sch, row)
    func = sch.mod["main"].with_attr(REGISTER_BYTES, 64)
    return lowering.lower(tvm.IRModule({"main": func}))


def nodes(module: tvm.IRModule, kind: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(module["main"].body, [(kind, found.append)])
    return found


CASES = [(12, 3, 2), (12, 2, 3), (8, 1, 3), (12, 4, 6), (5, 5, 3)]


@pytest.mark.parametrize("rows, step, reach", CASES)
def test_results(rows: int, step: int, reach: int) -> None:
    library = tvm.compile(lowered(rows, step, reach), "llvm")
    x = np.random.default_rng(2).standard_normal((rows + reach - 1, COLUMNS), dtype=np.float32)
    out = tvm.runtime.tensor(np.full((rows, COLUMNS), np.nan, "float32"))
    library["main"](tvm.runtime.tensor(x), out)
    wanted = sum(3 * x[i : i + rows].astype("float64") for i in range(reach))
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows, step, reach", [case for case in CASES if case[0] > case[1]])
def test_every_row_is_computed_once_into_a_ring_of_one_block(
    rows: int, step: int, reach: int
) -> None:
    module = lowered(rows, step, reach)
    (buffer,) = [alloc.buffer for alloc in nodes(module, tirx.AllocBuffer)]
    assert [int(extent) for extent in buffer.shape] == [step + reach - 1, COLUMNS]
    (branch,) = nodes(module, tirx.IfThenElse)
    used: list[tirx.Var] = []
    tvm_ffi.structural_walk(branch.condition, [(tirx.Var, used.append)])
    block, row = list(dict.fromkeys(used))
    analyzer = sym.Analyzer()

    def computed(values: tuple[int, int]) -> bool:
        at = {var: tirx.IntImm("int32", i) for var, i in zip((block, row), values, strict=True)}
        bound = tvm_ffi.structural_map(branch.condition, [(tirx.Var, lambda var: at.get(var, var))])
        return bool(int(analyzer.simplify(bound)))

    once = [
        i * step + r
        for i in range(rows // step)
        for r in range(step + reach - 1)
        if computed((i, r))
    ]
    assert once == list(range(rows + reach - 1))
