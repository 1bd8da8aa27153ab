"""Divisions by constants: products where a smooth function or a sum follows, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from relax_graphs import assert_same_as_plain_tvm, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.passes.reciprocals import reciprocals

Behind = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]


def _scores(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    masked = b.emit(op.add(y, relax.const(random(6))))
    return op.nn.softmax(b.emit(op.reshape(masked, (5, 6))))


def _hard_swish(b: relax.BlockBuilder, y: relax.Var) -> relax.Var:
    """Return a product of what is divided, as behind the convolutions of a MobileNetV3."""
    return b.emit(op.multiply(y, relax.const(random(5, 6))))


def _excited(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
    """Return a product with a function of the mean, read by another product."""
    image = b.emit(op.reshape(_hard_swish(b, y), (1, 5, 2, 3)))
    squeezed = b.emit(op.mean(image, [2, 3], True))
    scaled = b.emit(op.multiply(image, b.emit(op.nn.relu(squeezed))))
    return op.nn.conv2d(scaled, relax.const(random(4, 5, 1, 1)))


SMOOTH: dict[str, Behind] = {
    "product of matrices": lambda b, y: op.matmul(_hard_swish(b, y), relax.const(random(6, 3))),
    "convolution and mean": _excited,
    "erf": lambda b, y: op.erf(y),
    "exp": lambda b, y: op.exp(y),
    "softmax of a sum": _scores,
    "two readers": lambda b, y: op.multiply(b.emit(op.tanh(y)), b.emit(op.sigmoid(y))),
}
EXACT: dict[str, Behind] = {
    "an integer": lambda b, y: op.floor(y),
    "the result": lambda b, y: op.add(y, relax.const(np.float32(1))),
    "a product that is the result": _hard_swish,
    "an integer behind a product": lambda b, y: op.floor(_hard_swish(b, y)),
    "one of two readers": lambda b, y: op.multiply(b.emit(op.erf(y)), y),
}


def divided(behind: Behind, by: np.ndarray) -> object:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return behind(b, b.emit(op.divide(x, relax.const(by))))

    return graph(function, (5, 6))


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("by", [np.float32(3), random(6) + 5])
def test_before_smooth_functions_it_is_a_product(name: str, by: np.ndarray) -> None:
    mod = divided(SMOOTH[name], by)
    assert "divide" not in operators(reciprocals(mod))
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("name", EXACT)
def test_elsewhere_it_stays(name: str) -> None:
    assert operators(reciprocals(divided(EXACT[name], np.float32(3))))["divide"] == 1


@pytest.mark.parametrize("by", [0.0, 1e-40, np.inf])
def test_without_a_normal_reciprocal_it_stays(by: float) -> None:
    assert operators(reciprocals(divided(SMOOTH["erf"], np.float32(by))))["divide"] == 1
