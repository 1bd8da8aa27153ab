"""Weights that no sum can feel are zero in the compiled model, all others as they were."""

from __future__ import annotations

import numpy as np
import pytest
from relax_graphs import calls, graph, random, run
from tvm import relax
from tvm.relax import op

from tvm_blislike.adapter import constant_array, is_constant
from tvm_blislike.hardware import Core
from tvm_blislike.passes.canonicalize import Canonicalize

DENORMAL = np.float32(1e-40)


def weights_left(module, operator: str) -> np.ndarray:
    (call,) = calls(Canonicalize(Core.native())(module), operator)
    (constant,) = filter(is_constant, call.args)
    return constant_array(constant)


def with_tiny(weights: np.ndarray) -> np.ndarray:
    weights.ravel()[::3] = DENORMAL
    return weights


@pytest.mark.parametrize("scale", [1.0, 1e-20])
def test_weights_of_sums(scale: float) -> None:
    filters = with_tiny(random(4, 3, 3, 3) * np.float32(scale))
    matrix = with_tiny(random(5, 6) * np.float32(scale))
    shift = with_tiny(random(4, 5) * np.float32(scale))
    of_conv = graph(lambda b, x: op.nn.conv2d(x, relax.const(filters)), (1, 3, 8, 8))
    of_matmul = graph(lambda b, x: op.matmul(x, relax.const(matrix)), (4, 5))
    of_add = graph(lambda b, x: op.add(relax.const(shift), x), (4, 5))
    for module, given, operator in (
        (of_conv, filters, "nn.conv2d"),
        (of_matmul, matrix, "matmul"),
        (of_add, shift, "add"),
    ):
        left = weights_left(module, operator)
        kept = given != DENORMAL
        np.testing.assert_array_equal(left[kept], given[kept])
        # Beside weights of 1e-20 they are no smaller than what fp32 can tell from nothing.
        assert not left[~kept].any() if scale == 1 else (left[~kept] == DENORMAL).all()


def test_what_is_multiplied_keeps_its_value() -> None:
    factors = with_tiny(random(4, 5))
    module = graph(lambda b, x: op.multiply(x, relax.const(factors)), (4, 5))
    np.testing.assert_array_equal(weights_left(module, "multiply"), factors)


def test_zeros_and_constants_without_elements_stay() -> None:
    for weights in (np.zeros((5, 6), "float32"), np.zeros((5, 0), "float32")):
        module = graph(lambda b, x, w=weights: op.matmul(x, relax.const(w)), (4, 5))
        np.testing.assert_array_equal(weights_left(module, "matmul"), weights)


def test_results_are_the_same() -> None:
    filters = random(16, 8, 3, 3)
    filters[3:7] = DENORMAL
    filters[:, 2] = 1e-35
    module = graph(lambda b, x: op.nn.conv2d(x, relax.const(filters), padding=1), (1, 8, 9, 9))
    x = random(1, 8, 9, 9)
    exact = np.where(np.abs(filters) < 1e-30, 0, filters)
    other = graph(lambda b, x: op.nn.conv2d(x, relax.const(exact), padding=1), (1, 8, 9, 9))
    np.testing.assert_array_equal(run(module, x), run(other, x))
