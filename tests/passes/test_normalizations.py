"""Normalizations of channels and groups, and PReLU: the same numbers where images lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from laid_out import BLOCKED, laid_out, layouts, moves
from relax_graphs import (
    assert_same_as_plain_tvm,
    calls,
    conv,
    execute,
    graph,
    operators,
    random,
    run,
)
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.tvm_seams import static_shape

EPSILON = 1e-5


def channels_norm(b: relax.BlockBuilder, x: relax.Expr, axes: Sequence[int]) -> relax.Var:
    """Normalize as the importer does an InstanceNormalization, without scale and shift."""
    centered = b.emit(op.subtract(x, b.emit(op.mean(x, list(axes), keepdims=True))))
    spread = b.emit(op.add(b.emit(op.variance(x, list(axes), keepdims=True)), f32(EPSILON)))
    return b.emit(op.divide(centered, b.emit(op.sqrt(spread))))


def groups_norm(
    b: relax.BlockBuilder, x: relax.Var, groups: int, gamma: np.ndarray, beta: np.ndarray
) -> relax.Var:
    """Normalize as torch's exporters write a GroupNorm: groups are the channels of a tensor."""
    shape = [int(size) for size in x.ty.shape]
    rows = b.emit(op.reshape(x, (shape[0], groups, -1)))
    normal = channels_norm(b, rows, [2])
    normal = b.emit(op.multiply(normal, f32(gamma.reshape(1, groups, 1))))
    normal = b.emit(op.add(normal, f32(beta.reshape(1, groups, 1))))
    return b.emit(op.reshape(normal, shape))


def f32(values: object) -> relax.Constant:
    return relax.const(np.asarray(values, "float32"))


def normalized(x: np.ndarray, groups: int) -> np.ndarray:
    """Reference in float64."""
    rows = x.astype("float64").reshape(x.shape[0], groups, -1)
    spread = np.sqrt(rows.var(2, keepdims=True) + EPSILON)
    return ((rows - rows.mean(2, keepdims=True)) / spread).reshape(x.shape)


def between_layers(norm: object, channels: int, shape: tuple[int, ...]) -> tvm.IRModule:
    """Return a graph of a convolution, a normalization or the like, and a convolution."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return conv(b, norm(b, conv(b, x, channels)), 16, 1)

    return graph(function, shape)


@pytest.mark.parametrize("groups", [1, 4, 6, 48])
def test_groups_are_normalized_where_the_image_lies(groups: int) -> None:
    gamma, beta = random(groups), random(groups)
    mod = between_layers(lambda b, x: groups_norm(b, x, groups, gamma, beta), 48, (2, 16, 5, 6))
    after = laid_out(mod)
    # What else is reshaped has a number for each channel.
    large = [shape for shape in moves(after) if np.prod(shape) > 2 * 48]
    assert large == [(2, 1, 5, 6, 16), (2, 16, 5, 6)]
    assert layouts(after) == [(BLOCKED, BLOCKED)] * 2
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("groups", [1, 3, 24])
def test_the_operator_of_groups_is_taken_apart(groups: int) -> None:
    gamma, beta = f32(random(24)), f32(random(24))

    def norm(b: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        attrs = {"num_groups": groups, "channel_axis": 1, "axes": [2, 3], "epsilon": EPSILON}
        return b.emit(op.nn.group_norm(x, gamma, beta, **attrs))

    mod = between_layers(norm, 24, (2, 16, 5, 6))
    after = laid_out(mod)
    assert operators(after)["nn.group_norm"] == 0
    assert layouts(after) == [(BLOCKED, "NHWC"), ("NHWC", BLOCKED)]
    assert_same_as_plain_tvm(mod)


def test_channels_are_normalized_where_the_image_lies() -> None:
    mod = between_layers(lambda b, x: channels_norm(b, x, [2, 3]), 32, (2, 16, 5, 6))
    after = laid_out(mod)
    assert moves(after) == [(2, 1, 5, 6, 16), (2, 16, 5, 6)]
    assert operators(after)["divide"] == 0
    assert_same_as_plain_tvm(mod)


def test_signals_between_normalizations_are_images() -> None:
    """A depthwise convolution wants its signal along a row: a reshape that moves nothing."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(op.nn.conv1d(x, f32(random(32, 16, 1) / 4)))
        y = groups_norm(b, y, 1, np.ones(1), np.zeros(1))
        y = b.emit(op.nn.conv1d(y, f32(random(32, 1, 3)), padding=1, groups=32))
        y = groups_norm(b, y, 4, random(4), random(4))
        return op.nn.conv1d(y, f32(random(16, 32, 1) / 8))

    mod = graph(function, (1, 16, 40))
    after = laid_out(mod)
    kinds = operators(after)
    assert kinds["layout_transform"] == 2 and kinds["permute_dims"] == 0
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("shape", [(2, 8, 3, 4, 5), (1, 8, 30)])
def test_volumes_and_signals_alone_compute_the_same(shape: tuple[int, ...]) -> None:
    mod = graph(lambda b, x: groups_norm(b, x, 2, random(2), random(2)), shape)
    assert_same_as_plain_tvm(mod)


@given(st.data())
@examples(6)
def test_any_groups_are_near_float64(data: st.DataObject) -> None:
    """Also where the mean is a thousand times the deviation: no difference of large squares."""
    draw = data.draw
    groups, each = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    shape = (draw(st.integers(1, 2)), groups * each, height, width)
    ones, zeros = np.ones(groups, "float32"), np.zeros(groups, "float32")
    mod = graph(lambda b, x: groups_norm(b, x, groups, ones, zeros), shape)
    x = random(*shape) + np.float32(draw(st.sampled_from([0, 1000])))
    # What rounding of inputs and differences leaves of it where a group deviates least.
    least = np.sqrt(x.astype("float64").reshape(shape[0], groups, -1).var(2) + EPSILON).min()
    close = np.spacing(np.abs(x).max()) * 8 / least + 1e-5
    np.testing.assert_allclose(run(mod, x), normalized(x, groups), atol=close)


def quantized(b: relax.BlockBuilder, x: relax.Expr, scale: float, zero: int) -> relax.Var:
    """Go through steps of 8 bits, as a quantizer puts them around every operator."""
    steps = relax.const(np.float32(scale)), relax.const(np.uint8(zero))
    x = b.emit(op.quantize(x, *steps, axis=1, out_dtype="uint8"))
    return b.emit(op.dequantize(x, *steps, axis=1, out_dtype="float32"))


def of_steps(b: relax.BlockBuilder, values: np.ndarray) -> relax.Var:
    """Return a parameter as a quantizer stores it."""
    scale = np.float32(np.abs(values).max() / 127)
    steps = relax.const(np.rint(values / scale).astype("int8"))
    zero = relax.const(np.int8(0))
    found = b.emit(op.dequantize(steps, relax.const(scale), zero, axis=0, out_dtype="float32"))
    return b.emit(op.reshape(found, (-1, 1)))


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("shape", [(1, 16, 9, 8), (2, 16, 3, 4, 5)])
def test_groups_between_quantizations(groups: int, shape: tuple[int, ...]) -> None:
    gamma, beta = random(groups), random(groups)

    def norm(b: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        x = quantized(b, x, 0.04, 128)
        rows = quantized(b, b.emit(op.reshape(x, (shape[0], groups, -1))), 0.04, 128)
        y = channels_norm(b, rows, [2])
        y = b.emit(op.multiply(y, of_steps(b, gamma)))
        y = quantized(b, b.emit(op.add(y, of_steps(b, beta))), 0.05, 120)
        return quantized(b, b.emit(op.reshape(y, shape)), 0.05, 120)

    mod = graph(norm, shape)
    assert operators(Canonicalize(native_core())(mod))["divide"] <= 2  # by the steps of 8 bits
    assert_near_steps(mod, random(*shape), 0.05)


def assert_near_steps(mod: tvm.IRModule, x: np.ndarray, step: float) -> None:
    """Compare with TVM's own operators: a number between two steps may go to either."""
    (expected,) = execute(tvm.compile(mod, tvm.target.Target("llvm")), [x])
    difference = np.abs(run(mod, x) - expected)
    assert difference.max() <= 1.01 * step and (difference > step / 2).mean() < 0.01


def test_quantizations_by_several_scales_stay_in_rows() -> None:
    scales = relax.const(np.float32([0.03, 0.04, 0.05, 0.06]))

    def norm(b: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        zeros = relax.const(np.zeros(4, "uint8"))
        rows = b.emit(op.quantize(b.emit(op.reshape(x, (1, 4, -1))), scales, zeros, axis=1))
        rows = b.emit(op.dequantize(rows, scales, zeros, axis=1))
        return b.emit(op.reshape(channels_norm(b, rows, [2]), (1, 16, 9, 8)))

    mod = graph(norm, (1, 16, 9, 8))
    (spread,) = calls(Canonicalize(native_core())(mod), "variance")
    assert static_shape(spread) == (1, 4, 1)
    assert_near_steps(mod, random(1, 16, 9, 8), 0.05)


def test_other_quotients_stay() -> None:
    """Moments along other axes, of another tensor, or of rows that are not put back."""
    attrs = {"keepdims": True}

    def other(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> tuple[relax.Expr, ...]:
        along_row = channels_norm(b, x, [3])
        spread = b.emit(op.sqrt(b.emit(op.add(b.emit(op.variance(y, [2, 3], **attrs)), f32(1)))))
        mixed = op.divide(b.emit(op.subtract(x, b.emit(op.mean(x, [2, 3], **attrs)))), spread)
        rows = channels_norm(b, b.emit(op.reshape(x, (1, 4, -1))), [2])
        return along_row, mixed, op.reshape(rows, (1, 16, 3, 4))

    mod = graph(other, (1, 8, 4, 6), (1, 8, 4, 6))
    kinds = operators(Canonicalize(native_core())(mod))
    assert kinds["divide"] == 2 and kinds["rsqrt"] == 1
    assert_same_as_plain_tvm(mod)


# --- PReLU --------------------------------------------------------


@pytest.mark.parametrize("slopes", [np.float32([0.25]), random(32)], ids=["one", "each"])
def test_prelu_is_computed_where_the_image_lies(slopes: np.ndarray) -> None:
    def prelu(b: relax.BlockBuilder, x: relax.Var) -> relax.Var:
        return b.emit(op.nn.prelu(x, f32(slopes), 1 if slopes.size > 1 else 3))

    mod = between_layers(prelu, 32, (2, 16, 5, 6))
    after = laid_out(mod)
    assert moves(after) == [(2, 1, 5, 6, 16), (2, 16, 5, 6)]
    assert operators(after)["nn.prelu"] == 0
    assert_same_as_plain_tvm(mod)


def test_prelu_of_infinities_and_infinite_slopes() -> None:
    x = np.float32([[[np.inf, -np.inf, 0, -2], [np.nan, 3, -1, -0.0]]])
    slopes = np.float32([-0.5, 2])
    mod = graph(lambda _b, x: op.nn.prelu(x, f32(slopes), 1), x.shape)
    expected = np.where(x > 0, x, x * slopes[:, None])
    np.testing.assert_array_equal(run(mod, x), expected)
    mod = graph(lambda _b, x: op.nn.prelu(x, f32([np.inf, 1]), 1), x.shape)
    assert len(calls(Canonicalize(native_core())(mod), "nn.prelu")) == 1
