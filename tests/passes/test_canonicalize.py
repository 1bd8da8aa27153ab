"""Canonicalize: what becomes weights, which operators are left, and that results stay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from relax_graphs import assert_same_as_plain_tvm, calls, graph, operators, random, run
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.onnx import frontend
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.tvm_seams import constant_array, is_constant

NATIVE = native_core()

Steps = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]
CHANNELS = 4


def per_channel() -> relax.Expr:
    # Far from zero: it is divided by as well.
    return relax.const(random(1, CHANNELS, 1, 1) + 3)


def behind_conv(steps: Steps) -> tvm.IRModule:
    """A convolution of 3 channels to 4, and what `steps` put behind it."""

    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weights = relax.const(random(CHANNELS, 3, 3, 3))
        return steps(builder, builder.emit(op.nn.conv2d(x, weights, padding=1)))

    return graph(function, (2, 3, 5, 6))


def batch_norm(builder: relax.BlockBuilder, x: relax.Expr, **attrs: object) -> relax.Expr:
    gamma, beta, mean, variance = (relax.const(random(CHANNELS)) for _ in range(4))
    variance = relax.const(constant_array(variance) ** 2 + 1)
    result = op.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, training=False, **attrs)
    return relax.TupleGetItem(builder.emit(result), 0)


FOLDED: dict[str, Steps] = {
    "bias": lambda b, y: op.add(y, per_channel()),
    "bias on the left": lambda b, y: op.add(per_channel(), y),
    "shift down": lambda b, y: op.subtract(y, per_channel()),
    "scale": lambda b, y: op.multiply(y, per_channel()),
    "scale on the left": lambda b, y: op.multiply(per_channel(), y),
    "divisor": lambda b, y: op.divide(y, per_channel()),
    "scalar": lambda b, y: op.multiply(y, relax.const(np.float32(0.5))),
    "one element": lambda b, y: op.add(y, relax.const(np.full((1, 1), 0.5, "float32"))),
    "without batch axis": lambda b, y: op.add(y, relax.const(random(CHANNELS, 1, 1))),
    "batch norm": batch_norm,
    "batch norm without scale": lambda b, y: batch_norm(b, y, scale=False),
    "batch norm without shift": lambda b, y: batch_norm(b, y, center=False),
    "bias and batch norm": lambda b, y: batch_norm(b, b.emit(op.add(y, per_channel()))),
    "four in a row": lambda b, y: op.subtract(
        op.multiply(op.add(op.divide(y, per_channel()), per_channel()), per_channel()),
        per_channel(),
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_becomes_weights_and_one_addition(name: str) -> None:
    mod = behind_conv(FOLDED[name])
    left = operators(Canonicalize(NATIVE)(mod))
    # A pure scale leaves no addition.
    assert left in ({"nn.conv2d": 1}, {"nn.conv2d": 1, "add": 1})
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("name", ["scale", "divisor", "scalar"])
def test_scales_leave_the_convolution_alone(name: str) -> None:
    assert operators(Canonicalize(NATIVE)(behind_conv(FOLDED[name]))) == {"nn.conv2d": 1}


def test_an_activation_ends_the_chain() -> None:
    def steps(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
        active = b.emit(op.nn.relu(b.emit(op.add(y, per_channel()))))
        return op.multiply(active, per_channel())

    mod = behind_conv(steps)
    expected = {"nn.conv2d": 1, "add": 1, "nn.relu": 1, "multiply": 1}
    assert operators(Canonicalize(NATIVE)(mod)) == expected
    assert_same_as_plain_tvm(mod)


KEPT: dict[str, tuple[Steps, str]] = {
    # The constant differs along the image.
    "bias per pixel": (lambda b, y: op.add(y, relax.const(random(5, 6))), "add"),
    "bias per row": (lambda b, y: op.add(y, relax.const(random(5, 1))), "add"),
    "bias per column": (lambda b, y: op.add(y, relax.const(random(1, 1, 6))), "add"),
    "bias per image": (lambda b, y: op.add(y, relax.const(random(2, CHANNELS, 1, 1))), "add"),
    # These are no scale of the result.
    "subtracted from": (lambda b, y: op.subtract(per_channel(), y), "subtract"),
    "divided by": (lambda b, y: op.divide(per_channel(), op.add(op.abs(y), per_channel())), "abs"),
    "product of two": (lambda b, y: op.multiply(y, op.sigmoid(y)), "multiply"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_no_scale_or_shift_per_channel_stays(name: str) -> None:
    steps, kept = KEPT[name]
    mod = behind_conv(steps)
    assert operators(Canonicalize(NATIVE)(mod))[kept] == 1
    assert_same_as_plain_tvm(mod)


def test_a_value_that_is_read_twice_is_not_folded_away() -> None:
    def steps(b: relax.BlockBuilder, y: relax.Var) -> relax.Expr:
        return op.add(b.emit(op.multiply(y, per_channel())), b.emit(op.nn.relu(y)))

    mod = behind_conv(steps)
    assert operators(Canonicalize(NATIVE)(mod))["multiply"] == 1
    assert_same_as_plain_tvm(mod)


def test_convolution_of_weights_that_are_no_constant_keeps_its_scale() -> None:
    mod = graph(
        lambda b, x, w: op.multiply(b.emit(op.nn.conv2d(x, w)), per_channel()),
        (1, 3, 5, 5),
        (CHANNELS, 3, 1, 1),
    )
    assert operators(Canonicalize(NATIVE)(mod)) == {"nn.conv2d": 1, "multiply": 1}
    assert_same_as_plain_tvm(mod)


def test_batch_norm_of_anything_else_is_two_operators() -> None:
    mod = graph(lambda b, x: batch_norm(b, b.emit(op.nn.relu(x))), (1, CHANNELS, 3, 3))
    assert operators(Canonicalize(NATIVE)(mod)) == {"nn.relu": 1, "multiply": 1, "add": 1}
    assert_same_as_plain_tvm(mod)


def test_batch_norm_whose_parameters_are_in_steps_is_two_operators() -> None:
    """As quantizers write it: scale and shift in 8 bits, mean and variance in floats."""

    def steps(builder: relax.BlockBuilder) -> relax.Expr:
        integers = np.arange(CHANNELS, dtype="int8") - 2
        scale, zero = relax.const(np.float32(0.25)), relax.const(np.int8(1))
        return builder.emit(op.dequantize(relax.const(integers), scale, zero, axis=0))

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        x, gamma, beta = b.emit(op.nn.relu(x)), steps(b), steps(b)
        mean, variance = relax.const(random(CHANNELS)), relax.const(random(CHANNELS) ** 2 + 1)
        result = op.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, training=False)
        return relax.TupleGetItem(b.emit(result), 0)

    mod = graph(function, (1, CHANNELS, 3, 3))
    assert operators(Canonicalize(NATIVE)(mod)) == {"nn.relu": 1, "multiply": 1, "add": 1}
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(
    ("exponent", "products"),
    [
        (np.float32(3), 2),
        (np.float32(4), 2),
        (np.full((1, 1), 3, "float32"), 2),
        (np.float32(2.5), 0),
        (np.float32(-3), 0),
        (random(3, 6) + 3, 0),
        (np.full((1, 1, 1), 3, "float32"), 0),
    ],
)
def test_powers_by_three_and_four_are_products(exponent: np.ndarray, products: int) -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.power(b.emit(op.add(b.emit(op.abs(x)), relax.const(0.5))), relax.const(exponent))

    mod = graph(function, (3, 6))
    found = operators(Canonicalize(NATIVE)(mod))
    assert (found.get("multiply", 0), found.get("power", 0)) == (products, products == 0)
    assert_same_as_plain_tvm(mod)


def test_batch_norm_in_training_stays() -> None:
    """It normalizes by the statistics of its own input."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        one = relax.const(np.ones(CHANNELS, "float32"))
        result = b.emit(op.nn.batch_norm(x, one, one, one, one, axis=1, training=True))
        return relax.TupleGetItem(result, 0)

    mod = graph(function, (2, CHANNELS, 3, 3))
    assert operators(Canonicalize(NATIVE)(mod)) == {"nn.batch_norm": 1}
    assert_same_as_plain_tvm(mod)


def test_batch_norm_whose_statistics_are_inputs_stays() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var, mean: relax.Var) -> relax.Expr:
        one = relax.const(np.ones(CHANNELS, "float32"))
        result = b.emit(op.nn.batch_norm(x, one, one, mean, one, axis=1, training=False))
        return relax.TupleGetItem(result, 0)

    mod = graph(function, (1, CHANNELS, 3, 3), (CHANNELS,))
    assert operators(Canonicalize(NATIVE)(mod))["nn.batch_norm"] == 1
    x, mean = random(1, CHANNELS, 3, 3), random(CHANNELS)
    expected = (x - mean.reshape(1, -1, 1, 1)) / np.sqrt(1 + 1e-5) + 1
    np.testing.assert_allclose(run(mod, x, mean), expected, rtol=1e-5, atol=1e-5)


def test_the_weights_hold_the_scale_to_the_last_bit() -> None:
    """Scales multiply in double precision and are rounded once."""
    weights = random(CHANNELS, 3, 1, 1)
    scales = [random(1, CHANNELS, 1, 1) for _ in range(3)]

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = op.nn.conv2d(x, relax.const(weights))
        for scale in scales:
            y = op.multiply(y, relax.const(scale))
        return y

    (conv,) = calls(Canonicalize(NATIVE)(graph(function, (1, 3, 4, 4))), "nn.conv2d")
    product = np.prod([s.astype("float64") for s in scales], axis=0)
    expected = (weights * product.reshape(-1, 1, 1, 1)).astype("float32")
    np.testing.assert_array_equal(constant_array(conv.args[1]), expected)


def test_attributes_of_the_convolution_survive() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weights = relax.const(random(CHANNELS, 2, 3, 2))
        attrs = {"strides": (2, 1), "padding": (0, 1, 2, 3), "dilation": (1, 2), "groups": 2}
        return op.add(b.emit(op.nn.conv2d(x, weights, **attrs)), per_channel())

    mod = graph(function, (1, 4, 7, 8))
    (conv,) = calls(Canonicalize(NATIVE)(mod), "nn.conv2d")
    attrs = conv.attrs
    found = [list(map(int, v)) for v in (attrs.strides, attrs.padding, attrs.dilation)]
    assert (found, int(attrs.groups)) == ([[2, 1], [0, 1, 2, 3], [1, 2]], 2)
    assert_same_as_plain_tvm(mod)


# --- constants ------------------------------------------------------------

WEIGHTS = np.arange(1, 7, dtype="float32").reshape(2, 3)
OF_CONSTANTS: dict[str, tuple[Callable[[relax.Expr], relax.Expr], np.ndarray]] = {
    "permute_dims": (lambda w: op.permute_dims(w, [1, 0]), WEIGHTS.T),
    "permute_dims without axes": (op.permute_dims, WEIGHTS.T),
    "reshape": (lambda w: op.reshape(w, (3, 2)), WEIGHTS.reshape(3, 2)),
    "expand_dims": (lambda w: op.expand_dims(w, 0), WEIGHTS[None]),
    "squeeze": (lambda w: op.squeeze(op.expand_dims(w, 0), [0]), WEIGHTS),
    "arithmetic": (
        lambda w: op.divide(op.subtract(op.multiply(w, w), w), op.add(w, w)),
        (WEIGHTS * WEIGHTS - WEIGHTS) / (WEIGHTS + WEIGHTS),
    ),
    "sqrt and negative": (lambda w: op.negative(op.sqrt(w)), -np.sqrt(WEIGHTS)),
    "limits": (
        lambda w: op.minimum(op.maximum(w, relax.const(np.float32(2))), relax.const(np.float32(4))),
        WEIGHTS.clip(2, 4),
    ),
    "where": (
        lambda w: op.where(op.isnan(w), relax.const(np.float32(0)), w),
        WEIGHTS,
    ),
}


@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_constants_are_computed_now(name: str) -> None:
    function, expected = OF_CONSTANTS[name]
    shape = expected.shape
    mod = graph(lambda b, x: op.add(x, function(relax.const(WEIGHTS))), shape)
    (add,) = calls(Canonicalize(NATIVE)(mod))
    assert is_constant(add.args[1])
    folded = constant_array(add.args[1])
    assert (folded.shape, folded.dtype) == (shape, np.float32)
    np.testing.assert_array_equal(folded, expected)


def test_operators_with_an_input_are_not() -> None:
    mod = graph(lambda b, x: op.add(op.permute_dims(x, [1, 0]), relax.const(WEIGHTS)), (3, 2))
    assert operators(Canonicalize(NATIVE)(mod)) == {"permute_dims": 1, "add": 1}


# --- clips of the ONNX importer -------------------------------------------


def clip_model(low: float | None, high: float | None) -> onnx.ModelProto:
    bounds = {"low": low, "high": high}
    tensors = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [value])
        for name, value in bounds.items()
        if value is not None
    ]
    names = ["" if value is None else name for name, value in bounds.items()]
    node = helper.make_node("Clip", ["x", *names], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 5]) for name in "xy"]
    return helper.make_model(
        helper.make_graph([node], "clip", values[:1], values[1:], tensors),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


@pytest.mark.parametrize("low, high", [(0.0, 6.0), (-0.5, None), (None, 0.25), (None, None)])
def test_clip_becomes_operators_that_layouts_pass_through(
    low: float | None, high: float | None
) -> None:
    mod = Canonicalize(NATIVE)(frontend.load(clip_model(low, high)).module)
    left = operators(mod)
    assert left["call_tir"] == 0
    assert set(left) <= {"maximum", "minimum"}
    x = random(2, 5)
    np.testing.assert_array_equal(run(mod, x), np.clip(x, low, high))


def test_other_primfuncs_stay_calls() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return b.emit_te(tvm.topi.subtract, x, relax.const(random(3)))

    left = operators(Canonicalize(NATIVE)(graph(function, (2, 3))))
    assert left == {"call_tir": 1}


def test_a_part_without_elements_is_none_of_a_split() -> None:
    """TVM itself does not split in front of the first element."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        parts = b.emit(op.split(x, [0, 3], axis=1))
        return tuple(b.emit(parts[number]) for number in range(3))

    kinds = operators(Canonicalize(native_core())(graph(function, (1, 8, 4, 5))))
    assert kinds["split"] == 0 and kinds["strided_slice"] == 2
