"""What follows from constants alone is computed at compile time, with TVM's numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from relax_graphs import assert_same_as_plain_tvm, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.onnx.folding import MOST_ELEMENTS
from tvm_blislike.passes.canonicalize import Canonicalize

NATIVE = native_core()

VALUES = random(2, 3, 8)
POSITIVE = np.abs(VALUES) + np.float32(0.1)


def number(value: np.ndarray | float) -> relax.Constant:
    return relax.const(np.asarray(value, "float32"))


UNARY: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "abs": op.abs,
    "square": op.square,
    "relu": op.nn.relu,
    "exp": op.exp,
    "log": op.log,
    "tanh": op.tanh,
    "sigmoid": op.sigmoid,
    "erf": op.erf,
    "gelu": op.nn.gelu,
    "silu": op.nn.silu,
    "rsqrt": op.rsqrt,
    "softmax": lambda x: op.nn.softmax(x, axis=1),
    "flatten": op.flatten,
    "tile": lambda x: op.tile(x, [1, 2, 1]),
    "broadcast": lambda x: op.broadcast_to(x, (4, 2, 3, 8)),
    "mean": lambda x: op.mean(x, [0, 2], keepdims=True),
    "mean of all": lambda x: op.mean(x),
    "sum": lambda x: op.sum(x, [-1]),
    "max": lambda x: op.max(x, [1], keepdims=True),
    "min": lambda x: op.min(x, [0]),
    "variance": lambda x: op.variance(x, [1, 2], keepdims=True),
    "power": lambda x: op.power(x, number(1.5)),
    "product": lambda x: op.matmul(x, number(random(8, 5))),
    "layer norm": lambda x: op.nn.layer_norm(x, number(random(8)), number(random(8)), [-1]),
    "layer norm of two axes": lambda x: op.nn.layer_norm(
        x, number(random(3, 8)), number(random(3, 8)), [1, 2], 1e-3
    ),
}


@pytest.mark.parametrize("name", UNARY)
def test_operators_of_constants(name: str) -> None:
    made = relax.BlockBuilder().normalize(UNARY[name](number(POSITIVE)))
    shape = [int(size) for size in made.ty.shape.values]

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return b.emit(op.nn.relu(b.emit(op.add(x, b.emit(UNARY[name](number(POSITIVE)))))))

    mod = graph(function, shape)
    assert operators(Canonicalize(NATIVE)(mod)) == {"add": 1, "nn.relu": 1}
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("name", ["exp", "tanh", "softmax", "sigmoid", "log"])
def test_numbers_that_are_none_and_those_that_are_too_large(name: str) -> None:
    odd = np.array([[np.nan, np.inf, -np.inf, 0, 90, -90, -1, 1e30]], "float32")

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.minimum(x, b.emit(UNARY[name](number(odd))))

    assert_same_as_plain_tvm(graph(function, (1, 8)))


def test_standardized_weights_are_weights() -> None:
    """Weight standardization as torch writes it, by a batch norm of the weights."""
    weights = random(16, 4, 3, 3)

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        rows = b.emit(op.reshape(number(weights), (1, 16, 36)))
        mean = b.emit(op.mean(rows, [0, 2]))
        off = b.emit(op.subtract(rows, b.emit(op.mean(rows, [0, 2], keepdims=True))))
        variance = b.emit(op.mean(b.emit(op.multiply(off, off)), [0, 2]))
        ones, zeros = number(np.ones(16)), number(np.zeros(16))
        normalized = b.emit(op.nn.batch_norm(rows, ones, zeros, mean, variance, 1, training=False))
        scaled = b.emit(op.reshape(b.emit(relax.TupleGetItem(normalized, 0)), weights.shape))
        return b.emit(op.nn.conv2d(x, scaled, padding=1))

    mod = graph(function, (1, 4, 6, 7))
    assert operators(Canonicalize(NATIVE)(mod)) == {"nn.conv2d": 1}
    assert_same_as_plain_tvm(mod)


def test_a_layer_norm_of_other_axes_waits_for_run_time() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        parameters = number(random(3)), number(random(3))
        return op.add(x, b.emit(op.nn.layer_norm(number(VALUES), *parameters, [1])))

    mod = graph(function, VALUES.shape)
    assert operators(Canonicalize(NATIVE)(mod)) == {"nn.layer_norm": 1, "add": 1}


@pytest.mark.parametrize(
    "of", [lambda x, n: op.broadcast_to(x, (n, 3)), lambda x, n: op.tile(x, [n, 1])]
)
def test_constants_do_not_become_much_larger(of: Callable[..., relax.Expr]) -> None:
    rows = MOST_ELEMENTS // 3 + 1

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.multiply(x, b.emit(of(number(random(1, 3)), rows)))

    found = operators(Canonicalize(NATIVE)(graph(function, (rows, 3))))
    assert found["multiply"] == 1
    assert len(found) == 2


def test_layers_beside_constants_of_constants() -> None:
    """Relative positions (DeBERTa): a product of embeddings, normalized, for all rows alike."""
    table, weights = random(20, 8), random(8, 8)

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        normal = b.emit(op.nn.layer_norm(number(table), number(random(8)), number(random(8)), [-1]))
        keys = b.emit(op.permute_dims(b.emit(op.matmul(normal, number(weights))), [1, 0]))
        return b.emit(op.matmul(x, keys))

    mod = graph(function, (12, 8))
    assert operators(Canonicalize(NATIVE)(mod)) == {"matmul": 1}
    assert_same_as_plain_tvm(mod)
