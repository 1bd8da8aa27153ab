"""Small loops through `unswitch`: their structure afterwards, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, s_tir, te, tirx

from tvm_blislike.schedules.lowering.loop_code import hoist, unrolled

ROWS, COLUMNS = 6, 8
X = np.random.default_rng(3).standard_normal((ROWS, COLUMNS), dtype=np.float32)


def outermost(func: tirx.PrimFunc) -> tirx.For:
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(func.body, [(tirx.For, loops.append)], order="pre")
    return loops[0]


def lowered(value: Callable[..., Any], shape: tuple[int, ...] = (ROWS, COLUMNS)) -> tirx.PrimFunc:
    """y = value(x, index ...) as plain loops."""
    x = te.placeholder((ROWS, COLUMNS), name="x")
    y = te.compute(shape, lambda *index: value(x, *index), name="y")
    passes = [
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "main")
    return tvm.transform.Sequential(passes)(tvm.IRModule({"main": func}))["main"]


def replaced(func: tirx.PrimFunc, old: tirx.For, new: tirx.Stmt) -> tirx.PrimFunc:
    swap = [(tirx.For, lambda loop: new if loop.loop_var.same_as(old.loop_var) else loop)]
    return func.with_body(tvm_ffi.structural_map(func.body, swap))


def result(func: tirx.PrimFunc, shape: tuple[int, ...] = (ROWS, COLUMNS)) -> np.ndarray:
    library = tvm.compile(tvm.IRModule({"main": func}), "llvm")
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    library["main"](tvm.runtime.tensor(X), out)
    return out.numpy()


def count(stmt: tirx.Stmt, kind: type, matches: Callable[[Any], bool] = lambda _: True) -> int:
    found: list[Any] = []
    tvm_ffi.structural_walk(stmt, [(kind, found.append)])
    return sum(map(matches, found))


def selections(stmt: tirx.Stmt) -> int:
    """Conditions inside expressions."""
    return count(stmt, ir.Call, lambda call: getattr(call.op, "name", "") == "prim.if_then_else")


def branches(stmt: tirx.Stmt) -> list[tirx.IfThenElse]:
    """Conditions that statements have, outer before inner."""
    found: list[tirx.IfThenElse] = []
    tvm_ffi.structural_walk(stmt, [(tirx.IfThenElse, found.append)], order="pre")
    return found


def inner_loop(func: tirx.PrimFunc) -> tirx.For:
    return outermost(func).body


# --- unrolled ----------------------------------------------------


def chain(index: Any, values: list[Any]) -> Any:
    result = values[-1]
    for number in reversed(range(len(values) - 1)):
        result = tirx.Select(index == number, values[number], result)
    return result


def test_each_copy_keeps_the_branch_of_its_index() -> None:
    func = lowered(lambda x, i, j: chain(i, [x[0, j], x[1, j] + x[2, j], x[3, j]]), (3, COLUMNS))
    copies = unrolled(outermost(func))
    assert isinstance(copies, tirx.SeqStmt)
    assert count(copies, tirx.Select) == 0
    assert [count(copy, ir.TensorLoad) for copy in copies] == [1, 2, 1]
    computed = result(replaced(func, outermost(func), copies), (3, COLUMNS))
    np.testing.assert_array_equal(computed, [X[0], X[1] + X[2], X[3]])


def test_single_iteration_is_no_sequence() -> None:
    loop = outermost(lowered(lambda x, i, j: chain(i, [x[0, j], x[1, j], x[2, j]])))
    copy = unrolled(tirx.For(loop.loop_var, 1, 1, loop.kind, loop.body))
    assert isinstance(copy, tirx.For)
    assert copy.loop_var.same_as(loop.body.loop_var)
    assert count(copy, tirx.Select) == 0


def test_select_of_another_index_or_of_data_stays() -> None:
    func = lowered(
        lambda x, i, j: (
            chain(i, [tirx.Select(j < 3, x[0, j], x[1, j]), tirx.abs(x[2, j])])
            + tirx.Select(x[i, j] > 0, x[i, j], 0.0)
        ),
        (2, COLUMNS),
    )
    copies = unrolled(outermost(func))
    assert [count(copy, tirx.Select) for copy in copies] == [2, 1]
    chosen = np.stack([np.where(np.arange(COLUMNS) < 3, X[0], X[1]), np.abs(X[2])])
    wanted = chosen + np.maximum(X[:2], 0)
    computed = result(replaced(func, outermost(func), copies), (2, COLUMNS))
    np.testing.assert_allclose(computed, wanted, rtol=1e-6)


def test_loop_that_starts_later_is_written_out_from_there() -> None:
    loop = outermost(lowered(lambda x, i, j: chain(i, [x[0, j], x[1, j], x[2, j], x[3, j]])))
    late = tirx.For(loop.loop_var, 2, 2, loop.kind, loop.body, None, loop.annotations)
    rows: list[int] = []
    tvm_ffi.structural_walk(
        unrolled(late), [(ir.TensorLoad, lambda load: rows.append(int(load.indices[0])))]
    )
    assert rows == [2, 3]


# --- hoist -------------------------------------------------------


def shifted(x: te.Tensor, row: Any, column: Any) -> Any:
    """A pixel of the image, or zero outside."""
    inside = tirx.all(row >= 0, row < ROWS, column >= 0, column < COLUMNS)
    return tirx.if_then_else(inside, x[row, column], 0.0)


def window(func_of: Callable[..., Any]) -> tirx.PrimFunc:
    """Sums of two pixels of the row above, for all columns, written out."""
    func = lowered(func_of)
    loop = inner_loop(func)
    return replaced(func, loop, unrolled(loop))


def numpy_window() -> np.ndarray:
    padded = np.pad(X, ((1, 0), (1, 1)))
    return padded[:ROWS, :COLUMNS] + padded[:ROWS, 2:]


def above(x: te.Tensor, i: Any, j: Any) -> Any:
    return shifted(x, i - 1, j - 1) + shifted(x, i - 1, j + 1)


def simplified(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Without the conditions that constants decide."""
    return tirx.transform.StmtSimplify()(tvm.IRModule({"main": func}))["main"]


def test_what_all_loads_have_in_common_is_tested_once() -> None:
    func = simplified(window(above))
    before = outermost(func)
    assert selections(before) == 14
    after = hoist(before)
    (test,) = branches(after)
    assert isinstance(after.body, tirx.IfThenElse)
    assert selections(after) == 0
    # A row above the image is not read at all.
    assert count(test.then_case, ir.TensorLoad) == 14
    assert count(test.else_case, ir.TensorLoad) == 0
    computed = result(replaced(func, before, after))
    np.testing.assert_array_equal(computed, numpy_window())


def test_conditions_of_single_loads_choose_between_two_copies() -> None:
    """`y` runs over columns of four: in the first and last four, some pixels lie outside."""

    def value(x: te.Tensor, i: Any, block: Any, j: Any) -> Any:
        return shifted(x, i - 1, block * 4 + j - 1) + shifted(x, i - 1, block * 4 + j + 1)

    shape = (ROWS, COLUMNS // 4, 4)
    func = lowered(value, shape)
    columns = outermost(func).body.body
    func = simplified(replaced(func, columns, unrolled(columns)))
    before = inner_loop(func)
    after = hoist(before)
    rows, all_inside = branches(after)
    assert selections(all_inside.then_case) == 0
    assert selections(all_inside.else_case) > 0
    assert count(rows.else_case, ir.TensorLoad) == 0
    computed = result(replaced(func, before, after), shape)
    np.testing.assert_array_equal(computed.reshape(ROWS, COLUMNS), numpy_window())


def test_loop_without_conditions_is_left_as_it_is() -> None:
    loop = outermost(lowered(lambda x, i, j: x[i, j] * 2.0))
    assert hoist(loop).same_as(loop)


def test_unconditional_loads_stay_in_both_branches() -> None:
    func = simplified(window(lambda x, i, j: x[i, j] + shifted(x, i - 1, j)))
    before = outermost(func)
    after = hoist(before)
    (test,) = branches(after)
    assert count(test.then_case, ir.TensorLoad) == 2 * COLUMNS
    assert count(test.else_case, ir.TensorLoad) == COLUMNS
    wanted = X + np.pad(X, ((1, 0), (0, 0)))[:ROWS]
    np.testing.assert_array_equal(result(replaced(func, before, after)), wanted)


def test_conditions_of_inner_loops_and_of_data_stay_inside() -> None:
    """Neither is known at the front of the body."""

    def value(x: te.Tensor, i: Any, j: Any) -> Any:
        inside = tirx.all(i >= 1, j >= 1)
        return tirx.if_then_else(inside, x[i - 1, j - 1], tirx.if_then_else(x[i, j] > 0, 1.0, 2.0))

    func = lowered(value)
    before = outermost(func)
    after = hoist(before)
    assert selections(after) > 0
    moved = {str(test.condition) for test in branches(after)}
    assert not any(str(inner_loop(func).loop_var) in text or "x[" in text for text in moved)
    wanted = np.where(X > 0, np.float32(1), np.float32(2))
    wanted[1:, 1:] = X[:-1, :-1]
    np.testing.assert_array_equal(result(replaced(func, before, after)), wanted)


def stores(limit: int) -> tuple[tirx.PrimFunc, tirx.For]:
    """Two columns of a copy, of which only pixels above a line and a diagonal are stored."""
    func = lowered(lambda x, i, j: x[i, j] + 1.0)
    loop = outermost(func)
    row, column = loop.loop_var, loop.body.loop_var
    store = tirx.IfThenElse(tirx.all(row < limit, column < 4 - row), loop.body.body, None)
    body = unrolled(tirx.For(column, 0, 2, loop.body.kind, store))
    return func, tirx.For(row, loop.min, loop.extent, loop.kind, body)


@pytest.mark.parametrize("limit", [1, 4, ROWS])
def test_predicates_of_stores_are_tested_at_the_front(limit: int) -> None:
    func, before = stores(limit)
    after = hoist(before)
    rows, columns = branches(after)[:2]
    assert branches(columns.then_case) == []
    assert count(columns.then_case, tirx.BufferStore) == 2
    assert count(rows.else_case, tirx.BufferStore) == 0
    wanted = np.full((ROWS, COLUMNS), np.nan, "float32")
    for row, column in np.ndindex(limit, 2):
        if column < 4 - row:
            wanted[row, column] = X[row, column] + 1
    np.testing.assert_array_equal(result(replaced(func, outermost(func), after)), wanted)
