"""Remainders in indices, which LLVM 22 takes for ever growing ones when it vectorizes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from tvm_blislike.api import resolve_core
from tvm_blislike.model.marks import marked
from tvm_blislike.passes.tir_pipeline import compiled
from tvm_blislike.schedules.lowering import remainders

# Elements of the axis whose index is a remainder, its divisor, and elements of the axes inside.
SHAPES = [*itertools.product((16, 32, 100), (2, 4, 8, 5), (2, 5), (5, 10)), (16, 4, 1, 10)]


def repeated_rows(count: int, divisor: int, width: int, inner: int) -> tuple[te.Tensor, te.Tensor]:
    x = te.placeholder((3 * divisor * width,), name="x")

    def element(o: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.PrimExpr:
        return x[o % 3 * (divisor * width) + i % divisor * width + j % width]

    return x, te.compute((9, count, inner), element, name="y")


@pytest.mark.parametrize("core", ["native", "haswell"])
def test_repeated_rows(core: str) -> None:
    target = tvm.target.Target(resolve_core(core).target_config(1))
    functions = [te.create_prim_func(list(repeated_rows(*shape))) for shape in SHAPES]
    named = {f"f{i}": f.with_attr("global_symbol", f"f{i}") for i, f in enumerate(functions)}
    library = compiled(marked(tvm.IRModule(named)), target)
    for i, (count, divisor, width, inner) in enumerate(SHAPES):
        x = np.arange(3 * divisor * width, dtype="float32")
        y = tvm.runtime.empty((9, count, inner))
        library[f"f{i}"](tvm.runtime.tensor(x), y)
        at, row, column = np.ogrid[:9, :count, :inner]
        expected = x[at % 3 * divisor * width + row % divisor * width + column % width]
        np.testing.assert_array_equal(y.numpy(), expected, err_msg=str(SHAPES[i]))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("divisor", [2, 64, 1 << 20])
@pytest.mark.parametrize("first, count", [(0, 70), (-130, 300), (9000, 20), (-(2**31), 40)])
def test_values(dtype: str, divisor: int, first: int, count: int) -> None:
    """Over ranges that fit 32-bit products, need 64-bit ones, and begin below zero."""
    i = tirx.Var("i", dtype)
    at = tirx.FloorMod(i + tirx.IntImm(dtype, first), tirx.IntImm(dtype, divisor))
    buffer = tirx.decl_buffer((count,), "int64", name="y")
    store = tirx.BufferStore(buffer, tirx.Cast("int64", at), [i])
    zero, extent = tirx.IntImm(dtype, 0), tirx.IntImm(dtype, count)
    loop = tirx.For(i, zero, extent, tirx.ForKind.SERIAL, store)
    assert not remainders.collect(remainders.hide(loop), tirx.FloorMod)
    func = tirx.PrimFunc([buffer], loop).with_attr("global_symbol", "main")
    library = compiled(marked(tvm.IRModule({"main": func})), tvm.target.Target("llvm"))
    y = tvm.runtime.empty((count,), "int64")
    library["main"](y)
    np.testing.assert_array_equal(y.numpy(), (first + np.arange(count)) % divisor)
