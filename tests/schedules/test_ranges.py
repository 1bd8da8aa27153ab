"""Between which numbers floats of an epilogue lie: never beyond what is said."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from tvm import te, tirx

from tvm_blislike.passes.constant_ranges import with_ranges
from tvm_blislike.schedules.lowering.ranges import ANY, known_ranges, range_of
from tvm_blislike.schedules.lowering.rewrite import collect

F32 = np.float32
X = tirx.decl_buffer((4,), "float32", "x")
KNOWN = {"x": (F32(-0.75), F32(0.875))}
CASTS = {"uint8": (0, 255), "int8": (-128, 127), "int32": (-(2**31), 2**31), "uint16": (0, 65535)}


def f32(value: float) -> tirx.Expr:
    return tirx.const(float(value), "float32")


def load() -> tirx.Expr:
    return tirx.BufferLoad(X, [0])


@pytest.mark.parametrize("dtype", CASTS)
def test_integers_as_floats(dtype: str) -> None:
    assert range_of(tirx.Cast("float32", tirx.Var("i", dtype)), {}) == CASTS[dtype]


def test_what_is_not_known() -> None:
    for value in (load(), tirx.Var("v", "float32"), tirx.exp(load()), load() / f32(2)):
        assert range_of(value, {}) == ANY
    assert range_of(load(), KNOWN) == KNOWN["x"]
    # Bounds bound anything that is a number, also what is not known.
    low, high = range_of(tirx.max(tirx.min(tirx.Var("v", "float32"), f32(9)), f32(2)), {})
    assert (low, high) == (2, 9)
    # No number: infinity times 0.
    assert range_of(tirx.Var("v", "float32") * load(), {"x": (F32(0), F32(1))}) == ANY
    assert range_of(f32(np.nan), {}) == ANY


# An expression, and the values that it takes where x and the integer are these.
LEAVES = st.sampled_from(["x", "i", 0.3, -7.0, 1e10, 0.0])
TREES = st.recursive(
    LEAVES, lambda t: st.tuples(st.sampled_from(["+", "-", "*", "max", "min", "if"]), t, t)
)


def expression(tree) -> tirx.Expr:
    if tree == "x":
        return load()
    if tree == "i":
        return tirx.Cast("float32", tirx.Var("i", "int32"))
    if not isinstance(tree, tuple):
        return f32(tree)
    a, b = map(expression, tree[1:])
    choose = lambda: tirx.if_then_else(tirx.Var("c", "bool"), a, b)  # noqa: E731
    made = {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "if": choose}
    return {**made, "max": lambda: tirx.max(a, b), "min": lambda: tirx.min(a, b)}[tree[0]]()


def value(tree, x: np.float32, i: int, first: bool) -> np.float32:
    if not isinstance(tree, tuple):
        return {"x": x, "i": F32(i)}.get(tree, F32(tree if not isinstance(tree, str) else 0))
    a, b = (value(part, x, i, first) for part in tree[1:])
    with np.errstate(all="ignore"):
        if tree[0] in "+-*":
            return {"+": a + b, "-": a - b, "*": a * b}[tree[0]]
    return {"max": max(a, b), "min": min(a, b), "if": a if first else b}[tree[0]]


@examples(300)
@given(TREES, st.floats(-0.75, 0.875, width=32), st.integers(-(2**31), 2**31 - 1), st.booleans())
def test_no_value_lies_beyond(tree, x: float, i: int, first: bool) -> None:
    low, high = range_of(expression(tree), KNOWN)
    found = value(tree, F32(x), i, first)
    assert (low, high) == ANY or low <= found <= high


def test_parameters_only() -> None:
    """A buffer inside the function may have the name of a parameter."""
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] + 1.0, name="y")
    func = with_ranges(te.create_prim_func([x, y]), [[np.array([1, 2], "float32")]])
    assert known_ranges(func) == {"x": (1, 2)}
    inner = tirx.AllocBuffer(tirx.decl_buffer((4,), "float32", "x"))
    assert known_ranges(func.with_body(tirx.SeqStmt([inner, func.body]))) == {}
    assert collect(func.body, tvm.ir.TensorLoad)
