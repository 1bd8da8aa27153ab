"""What a layer cannot feel of the one before is zero; every other constant is as it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from relax_graphs import calls, graph, random, run
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import Core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.tvm_seams import constant_array, is_constant

DENORMAL = np.float32(1e-40)
# It has arithmetic of float16, so such models stay as they are.
CORE = Core.named("neoverse-n1")
RNG = np.random.default_rng(5)


def constants_left(module: tvm.IRModule, *operators: str) -> list[np.ndarray]:
    """The constants of some operators of the canonical module, in order."""
    found = calls(Canonicalize(CORE)(module), *operators)
    return [constant_array(arg) for call in found for arg in call.args if is_constant(arg)]


# --- what becomes zero -----------------------------------------------------

# Units of the first layer: the dead ones' own weights, their bias, and the weights that read them.
UNITS, DEAD = 12, [2, 3, 7]
Pair = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def pair(inputs: int = 6, outputs: int = 5) -> Pair:
    """Weights (outputs, inputs) and biases of two layers, as weight decay leaves them."""
    w1, b1 = random(UNITS, inputs), random(UNITS)
    w2, b2 = random(outputs, UNITS), random(outputs)
    w1[DEAD] *= DENORMAL
    b1[DEAD] *= DENORMAL
    w2[:, DEAD] *= DENORMAL
    return w1, b1, w2, b2


def of_matmuls(
    w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray, middle: Callable = op.nn.relu
) -> tvm.IRModule:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first = b.emit(op.matmul(x, relax.const(np.ascontiguousarray(w1.T))))
        units = b.emit(middle(b.emit(op.add(first, relax.const(b1)))))
        second = b.emit(op.matmul(units, relax.const(np.ascontiguousarray(w2.T))))
        return op.add(relax.const(b2), second)

    return graph(function, (4, w1.shape[1]))


def of_convolutions(
    w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray, middle: Callable = op.nn.relu
) -> tvm.IRModule:
    """As squeeze and excite has them, with a 3x3 window in the second layer."""
    spread = np.zeros((*w2.shape, 3, 3), "float32")
    spread[:, :, 1, 2] = w2

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first = b.emit(op.nn.conv2d(x, relax.const(w1[:, :, None, None])))
        units = b.emit(middle(b.emit(op.add(first, relax.const(b1.reshape(1, -1, 1, 1))))))
        second = b.emit(op.nn.conv2d(units, relax.const(spread), padding=1))
        return op.add(second, relax.const(b2.reshape(1, -1, 1, 1)))

    return graph(function, (1, w1.shape[1], 4, 5))


BUILDERS = {"matmul": of_matmuls, "nn.conv2d": of_convolutions}


def left_of(operator: str, *layers: np.ndarray, **options: Callable) -> Pair:
    """The weights (outputs, inputs) and biases that are left of two layers."""
    module = BUILDERS[operator](*layers, **options)
    w1, w2 = constants_left(module, operator)
    b1, b2 = (bias.reshape(-1) for bias in constants_left(module, "add"))
    if operator == "matmul":
        return w1.T, b1, w2.T, b2
    assert not w2[:, :, :, :2].any()
    return w1[:, :, 0, 0], b1, w2[:, :, 1, 2], b2


@pytest.mark.parametrize("operator", BUILDERS)
@pytest.mark.parametrize("middle", [op.nn.relu, op.nn.silu, op.tanh, op.abs])
def test_dead_units_become_zero_and_nothing_else(operator: str, middle: Callable) -> None:
    given = pair()
    left = left_of(operator, *given, middle=middle)
    alive = np.delete(np.arange(UNITS), DEAD)
    for axis, before, after in zip((0, 0, 1, None), given, left, strict=True):
        if axis is None:
            np.testing.assert_array_equal(after, before)
            continue
        assert not after.take(DEAD, axis).any()
        np.testing.assert_array_equal(after.take(alive, axis), before.take(alive, axis))


@pytest.mark.parametrize("seed", range(20))
def test_no_finite_input_can_tell(seed: int) -> None:
    """Bounds of exact results, for inputs up to the largest float and weights of any size."""
    rng = np.random.default_rng(seed)

    def sizes(*shape: int) -> np.ndarray:
        return np.float32(10.0) ** rng.uniform(-44, 3, shape).astype("float32")

    w1, b1, w2, b2 = pair(inputs=9, outputs=7)
    w1, b1 = w1 * sizes(UNITS, 1), b1 * sizes(UNITS)
    w2 = w2 * sizes(1, UNITS) * np.sqrt(sizes(7, 1))
    b2 = b2 * np.float32(10.0) ** rng.integers(-30, 5, 7).astype("float32")
    b2[2] = 0
    left = left_of("matmul", w1, b1, w2, b2)
    changed = [(a != b).sum() for a, b in zip((w1, b1, w2, b2), left, strict=True)]
    assert changed[3] == 0
    x = rng.standard_normal((200, 9)) * 10.0 ** rng.uniform(-45, 38, (200, 1))
    x[rng.random((200, 9)) < 0.7] = 0
    x[:40] = np.where(x[:40] == 0, 0, np.sign(x[:40]) * float(np.finfo("float32").max))

    def exact(w1: np.ndarray, b1: np.ndarray, w2: np.ndarray, b2: np.ndarray) -> np.ndarray:
        w1, b1, w2, b2 = (array.astype("float64") for array in (w1, b1, w2, b2))
        return np.maximum(x @ w1.T + b1, 0) @ w2.T + b2

    scale = np.abs(x) @ np.abs(w1.T.astype("float64")) + np.abs(b1)
    rounding = 1e-13 * (scale @ np.abs(w2.T.astype("float64")) + np.abs(b2))
    difference = np.abs(exact(*left) - exact(w1, b1, w2, b2))
    assert (difference <= 2.0**-40 * np.abs(b2) + rounding).all()
    # Not for want of anything to flush.
    assert sum(changed) > 0


@pytest.mark.parametrize("operator", BUILDERS)
def test_results_are_the_same(operator: str) -> None:
    given = pair()
    module = BUILDERS[operator](*given)
    zero = [array.copy() for array in given]
    zero[0][DEAD], zero[1][DEAD], zero[2][:, DEAD] = 0, 0, 0
    x = random(4, 6) if operator == "matmul" else random(1, 6, 4, 5)
    np.testing.assert_array_equal(run(module, x), run(BUILDERS[operator](*zero), x))


# --- what stays --------------------------------------------------------------


@pytest.mark.parametrize("bias", [0.0, np.inf, -np.inf, np.nan])
def test_outputs_without_a_bias_that_swallows_them_keep_their_weights(bias: float) -> None:
    w1, b1, w2, b2 = pair()
    b2[1] = bias
    left = left_of("matmul", w1, b1, w2, b2)
    np.testing.assert_array_equal(left[2][1], w2[1])
    assert not left[2][[0, 2, 3, 4]][:, DEAD].any()
    # They are read.
    np.testing.assert_array_equal(left[0], w1)
    np.testing.assert_array_equal(left[1], b1)


def test_units_that_another_reads_keep_their_weights() -> None:
    w1, b1, w2, b2 = pair()

    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, relax.Expr]:
        first = b.emit(op.matmul(x, relax.const(np.ascontiguousarray(w1.T))))
        units = b.emit(op.nn.relu(b.emit(op.add(first, relax.const(b1)))))
        second = b.emit(op.matmul(units, relax.const(np.ascontiguousarray(w2.T))))
        return op.add(second, relax.const(b2)), op.negative(units)

    left = constants_left(graph(function, (4, 6)), "matmul")
    np.testing.assert_array_equal(left[0].T, w1)
    assert not left[1].T[:, DEAD].any()


def test_units_of_weights_that_are_no_numbers_stay() -> None:
    w1, b1, w2, b2 = pair()
    w1[0, 0], w2[4, 1], w1[2, 1] = np.inf, np.nan, np.inf
    left = left_of("matmul", w1, b1, w2, b2)
    alive = [i for i in range(UNITS) if i not in (3, 7)]
    np.testing.assert_array_equal(left[0][alive], w1[alive])
    np.testing.assert_array_equal(left[2][:, alive], w2[:, alive])
    assert not left[0][[3, 7]].any() and not left[2][:, [3, 7]].any()


def tiny_beside_ones(*shape: int) -> np.ndarray:
    weights = random(*shape)
    weights.ravel()[::3] *= DENORMAL
    return weights


@pytest.mark.parametrize("operator", ["nn.conv2d", "matmul", "add", "multiply"])
def test_constants_of_one_layer_alone_stay(operator: str) -> None:
    """Others of the same sum may meet zeros, and an activation may be 1e38."""
    shape = {"nn.conv2d": (4, 3, 3, 3)}.get(operator, (5, 6))
    given = tiny_beside_ones(*shape)
    function = op.nn.conv2d if operator == "nn.conv2d" else getattr(op, operator)
    inputs = {"nn.conv2d": (1, 3, 8, 8), "matmul": (4, 5)}.get(operator, (5, 6))
    module = graph(lambda b, x: function(x, relax.const(given)), inputs)
    (left,) = constants_left(module, operator)
    np.testing.assert_array_equal(left, given)


def test_additive_masks_keep_their_finite_values() -> None:
    """Attention with linear biases, as exporters fold it: the mask of the future holds it, too."""
    distance = np.arange(6) - np.arange(6)[:, None]
    bias = np.float32(0.25) * distance.astype("float32")
    for hidden in (-np.inf, np.finfo("float32").min):
        mask = np.where(distance > 0, np.float32(hidden), bias)
        scores = random(2, 6, 6)
        module = graph(lambda b, x, m=mask: op.add(x, relax.const(m)), (2, 6, 6))
        np.testing.assert_array_equal(run(module, scores), scores + mask)


def test_a_column_of_small_weights_beside_ones() -> None:
    weights = np.ones((8, 3), "float32")
    weights[:, 1] = 1e-31
    x = random(4, 8)
    module = graph(lambda b, x: op.matmul(x, relax.const(weights)), (4, 8))
    np.testing.assert_allclose(run(module, x), x @ weights, rtol=1e-4)
    weights[:, 1] = DENORMAL
    module = graph(lambda b, x: op.matmul(x, relax.const(weights)), (4, 8))
    x = np.abs(x) * np.float32(1e37)
    np.testing.assert_allclose(run(module, x)[:, 1], (x @ weights)[:, 1], rtol=1e-3)


def test_one_infinite_weight_leaves_the_other_channels_alone() -> None:
    filters = random(4, 3, 3, 3)
    filters[2, 1, 1, 1] = np.inf
    x = np.abs(random(1, 3, 6, 6)) + 1
    module = graph(lambda b, x: op.nn.conv2d(x, relax.const(filters)), (1, 3, 6, 6))
    plain = filters.copy()
    plain[2] = 0
    other = graph(lambda b, x: op.nn.conv2d(x, relax.const(plain)), (1, 3, 6, 6))
    found, expected = run(module, x), run(other, x)
    assert not np.isfinite(found[:, 2]).any()
    np.testing.assert_allclose(found[:, [0, 1, 3]], expected[:, [0, 1, 3]], rtol=1e-5, atol=1e-5)


def test_a_quotient_by_zero_in_one_channel() -> None:
    filters, below = random(4, 3, 3, 3), np.array([0.5, 0, 2, 3], "float32").reshape(1, 4, 1, 1)
    x = random(1, 3, 6, 6)

    def divided(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.divide(b.emit(op.nn.conv2d(x, relax.const(filters))), relax.const(below))

    found = run(graph(divided, (1, 3, 6, 6)), x)
    product = run(graph(lambda b, x: op.nn.conv2d(x, relax.const(filters)), (1, 3, 6, 6)), x)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found, product / below, rtol=1e-4, atol=1e-5)
    assert np.isinf(found[:, 1]).all()


@pytest.mark.parametrize("dtype, weight, scale", [("float32", 1e30, 1e20), ("float16", 300, 400)])
def test_scales_that_would_make_weights_infinite_stay(
    dtype: str, weight: float, scale: float
) -> None:
    filters = np.full((2, 1, 1, 1), weight, dtype)
    factors = np.array([1, scale], dtype).reshape(1, 2, 1, 1)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 1, 2, 2), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(x, relax.const(filters, dtype)))
            y = builder.emit_output(op.multiply(y, relax.const(factors, dtype)))
        builder.emit_func_output(y)
    (left,) = constants_left(builder.get(), "nn.conv2d")
    np.testing.assert_array_equal(left, filters)


def test_zeros_and_constants_without_elements_stay() -> None:
    for weights in (np.zeros((5, 6), "float32"), np.zeros((0, 6), "float32")):
        module = graph(lambda b, x, w=weights: op.matmul(x, relax.const(w)), (4, len(weights)))
        (left,) = constants_left(module, "matmul")
        np.testing.assert_array_equal(left, weights)
