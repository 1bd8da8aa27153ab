"""Rows of several matrices as those of one: the same numbers, and what is behind in one kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relax_graphs import assert_same_as_plain_tvm, calls, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.passes.rows import as_rows
from tvm_blislike.tvm_seams import static_shape

Behind = Callable[[relax.BlockBuilder, relax.Var, relax.Var], relax.Expr]
SHAPE, COLUMNS = (2, 5, 6), 7


def _normalized(y: relax.Var) -> relax.Expr:
    scale, shift = (relax.const(random(COLUMNS)) for _ in range(2))
    return op.nn.layer_norm(y, scale, shift, axes=-1)


BEHIND: dict[str, Behind] = {
    "bias": lambda b, y, x: op.add(relax.const(random(COLUMNS)), y),
    "bias of three axes": lambda b, y, x: op.add(y, relax.const(random(1, 1, COLUMNS))),
    "number": lambda b, y, x: op.multiply(y, relax.const(np.float32(2))),
    "all elements": lambda b, y, x: op.subtract(y, relax.const(random(2, 5, COLUMNS))),
    "number of each row": lambda b, y, x: op.add(b.emit(op.sum(x, axis=-1, keepdims=True)), y),
    "residual": lambda b, y, x: op.add(y, b.emit(op.strided_slice(x, [2], [0], [COLUMNS]))),
    "itself": lambda b, y, x: op.multiply(y, b.emit(op.sigmoid(y))),
    "clip": lambda b, y, x: op.clip(y, -0.5, 0.5),
    "layer norm": lambda b, y, x: _normalized(y),
    "softmax": lambda b, y, x: op.nn.softmax(y, axis=2),
    "chain": lambda b, y, x: _normalized(b.emit(op.add(b.emit(op.nn.gelu(y)), y))),
}
OTHERWISE: dict[str, Behind] = {
    "a matrix for each": lambda b, y, x: op.add(y, relax.const(random(5, COLUMNS))),
    "softmax along columns": lambda b, y, x: op.nn.softmax(y, axis=1),
    "more axes": lambda b, y, x: op.add(y, relax.const(random(3, 1, 1, COLUMNS))),
}


def behind_product(behind: Behind) -> tvm.IRModule:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weights = relax.const(random(SHAPE[-1] + 2, COLUMNS))
        product = builder.emit(op.matmul(x, weights))
        return behind(builder, product, x)

    return graph(function, (*SHAPE[:2], SHAPE[-1] + 2))


@pytest.mark.parametrize("name", BEHIND)
def test_what_goes_along_rows_has_two_axes(name: str) -> None:
    mod = behind_product(BEHIND[name])
    rows = as_rows(mod)
    assert static_shape(calls(rows, "matmul")[0]) == (10, COLUMNS)
    last = calls(rows)[-1]
    assert (last.op.name, static_shape(last)) == ("relax.reshape", (2, 5, COLUMNS))
    assert static_shape(last.args[0]) == (10, COLUMNS)
    made = [call for call in calls(rows) if len(static_shape(call)) > 2]
    assert {call.op.name for call in made} <= {"relax.reshape", "relax.sum", "relax.strided_slice"}
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_does_not_keeps_its_axes(name: str) -> None:
    mod = behind_product(OTHERWISE[name])
    assert static_shape(calls(as_rows(mod))[-1]) == static_shape(calls(mod)[-1])
    assert_same_as_plain_tvm(mod)


def test_two_products_in_a_row_have_no_reshape_between() -> None:
    def second(b: relax.BlockBuilder, y: relax.Var, _x: relax.Var) -> relax.Expr:
        return op.matmul(b.emit(op.nn.relu(y)), relax.const(random(COLUMNS, 3)))

    mod = behind_product(second)
    assert operators(as_rows(mod)) == {"reshape": 2, "matmul": 2, "nn.relu": 1}
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("heads", [1, 3])
def test_products_of_a_matrix_each_are_counted_by_one_axis(heads: int) -> None:
    def function(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
        scores = b.emit(op.matmul(x, b.emit(op.permute_dims(y, [0, 1, 3, 2]))))
        scores = b.emit(op.multiply(scores, relax.const(np.float32(0.3))))
        causal = relax.const(np.triu(np.full((1, 1, 5, 5), -9.0, "float32"), 1))
        masked = b.emit(op.add(b.emit(op.add(scores, causal)), relax.const(random(1, 1, 1, 5))))
        return op.matmul(b.emit(op.nn.softmax(masked, axis=-1)), y)

    mod = graph(function, (1, heads, 5, 4), (1, heads, 5, 4))
    whole = {static_shape(call) for call in calls(as_rows(mod), "multiply", "add", "nn.softmax")}
    assert whole == {(5, 5) if heads == 1 else (heads, 5, 5)}
    assert_same_as_plain_tvm(mod)


def test_numbers_of_run_time_are_vectors_of_one_element() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var, number: relax.Var) -> relax.Expr:
        scalar = b.emit(op.reshape(number, ()))
        doubled = b.emit(op.multiply(scalar, relax.const(np.float32(2))))
        return op.multiply(b.emit(op.add(doubled, scalar)), x)

    mod = graph(function, (3, 4, 5, 6), (1,))
    shapes = [static_shape(call) for call in calls(as_rows(mod))]
    assert shapes == [(1,), (1,), (3, 4, 5, 6)]
    assert_same_as_plain_tvm(mod)


def test_results_and_other_readers_get_the_model_s_shapes() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        product = b.emit(op.matmul(x, relax.const(random(4, 4))))
        shifted = b.emit(op.add(product, x))
        return product, op.permute_dims(shifted, [1, 0, 2]), op.reshape(shifted, (6, 4))

    mod = graph(function, (2, 3, 4))
    assert operators(as_rows(mod))["reshape"] == 3
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((9, 6), (1, 6, 7)),
        ((9, 6), (1, 1, 6, 7)),
        ((1, 9, 6), (1, 1, 6, 7)),
        ((1, 1, 9, 6), (1, 6, 7)),
    ],
)
@pytest.mark.parametrize("is_constant", [False, True])
def test_a_matrix_by_a_batch_of_one(
    left: tuple[int, ...], right: tuple[int, ...], is_constant: bool
) -> None:
    bank = random(*left)

    def function(b: relax.BlockBuilder, x: relax.Var, *others: relax.Var) -> relax.Expr:
        product = b.emit(op.matmul(others[0] if others else relax.const(bank), x))
        return op.log(b.emit(op.maximum(product, relax.const(np.float32(0.1)))))

    mod = graph(function, right, *([] if is_constant else [left]))
    assert static_shape(calls(as_rows(mod), "matmul")[0]) == (9, 7)
    assert_same_as_plain_tvm(mod)


def test_a_matrix_by_several_stays() -> None:
    mod = graph(lambda b, x: op.matmul(relax.const(random(9, 6)), x), (2, 6, 7))
    assert static_shape(calls(as_rows(mod), "matmul")[0]) == (2, 9, 7)
    assert_same_as_plain_tvm(mod)
