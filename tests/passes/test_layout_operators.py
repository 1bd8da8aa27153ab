"""Layout pass: operators between convolutions are computed where the images lie."""

from __future__ import annotations

import pytest
from laid_out import BLOCKED, laid_out, layouts, moves, result_shapes
from relax_graphs import assert_same_as_plain_tvm, calls, conv, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.tvm_seams import static_shape

# --- pooling, elementwise operators ------------------------------


@pytest.mark.parametrize("channels, layout", [(32, BLOCKED), (24, "NHWC")])
@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
def test_pooling_is_computed_where_the_image_lies(pool: str, channels: int, layout: str) -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        pooled = getattr(op.nn, pool)(
            conv(b, x, channels), pool_size=3, strides=2, padding=(1, 0, 0, 1)
        )
        return conv(b, pooled, 16, 1)

    mod = graph(function, (1, 16, 8, 7))
    after = laid_out(mod)
    (call,) = calls(after, f"nn.{pool}")
    assert str(call.attrs.layout) == layout
    assert len(moves(after)) == 2
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("channels", [32, 24])
def test_residual_add_needs_no_transform(channels: int) -> None:
    def block(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        shortcut = conv(b, x, channels, 1)
        body = conv(b, op.nn.relu(conv(b, shortcut, channels)), channels)
        return conv(b, op.nn.relu(op.add(shortcut, body)), 16, 1)

    mod = graph(block, (2, 16, 5, 5))
    assert moves(laid_out(mod)) == [(2, 1, 5, 5, 16), (2, 16, 5, 5)]
    assert_same_as_plain_tvm(mod, threads=2)


@pytest.mark.parametrize("first", [True, False])
def test_residual_add_of_the_graphs_input_shares_the_convolutions_transform(first: bool) -> None:
    def block(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = conv(b, x, 32)
        return op.add(x, y) if first else op.add(y, x)

    mod = graph(block, (1, 32, 5, 5))
    assert moves(laid_out(mod)) == [(1, 2, 5, 5, 16), (1, 32, 5, 5)]
    assert_same_as_plain_tvm(mod)


SHAPES_OF_CONSTANTS = [(), (1,), (32, 1, 1), (1, 32, 1, 1), (1, 1, 5, 7), (5, 7), (2, 32, 5, 7)]


@pytest.mark.parametrize("channels", [32, 24])
@pytest.mark.parametrize("shape", SHAPES_OF_CONSTANTS, ids=str)
def test_constants_move_into_the_layout_of_the_image(shape: tuple[int, ...], channels: int) -> None:
    constant = random(*(channels if extent == 32 else extent for extent in shape))

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        active = op.nn.relu(conv(b, x, channels))
        return conv(b, op.maximum(active, relax.const(constant)), 16, 1)

    mod = graph(function, (2, 16, 5, 7))
    assert len(moves(laid_out(mod))) == 2
    assert_same_as_plain_tvm(mod)


def test_operators_on_images_of_other_channels_are_nchw() -> None:
    """One channel that all others are multiplied with: no block of 16 holds it."""

    def attention(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = conv(b, x, 32)
        return op.multiply(y, op.sigmoid(conv(b, y, 1)))

    mod = graph(attention, (1, 16, 5, 5))
    (product,) = calls(laid_out(mod), "multiply")
    assert static_shape(product) == (1, 32, 5, 5)
    assert_same_as_plain_tvm(mod)


def test_squeeze_and_excite_needs_no_transform() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = conv(b, x, 48)
        gate = conv(b, op.mean(y, axis=[2, 3], keepdims=True), 12, 1)
        gate = conv(b, op.nn.relu(gate), 48, 1)
        return conv(b, op.multiply(op.sigmoid(gate), y), 16, 1)

    mod = graph(function, (2, 16, 5, 6))
    after = laid_out(mod)
    assert moves(after) == [(2, 1, 5, 6, 16), (2, 16, 5, 6)]
    (mean,) = calls(after, "mean")
    assert [int(axis) for axis in mean.attrs.axis] == [2, 3]
    assert_same_as_plain_tvm(mod)


def test_depthwise_and_pointwise_agree() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        for channels in (24, 32):
            x = conv(b, x, channels, 1)
            x = conv(b, x, channels, groups=channels)
        return x

    mod = graph(function, (1, 16, 6, 6))
    after = laid_out(mod)
    assert layouts(after) == [(BLOCKED, "NHWC"), ("NHWC",) * 2, ("NHWC", BLOCKED), (BLOCKED,) * 2]
    assert len(moves(after)) == 2
    assert_same_as_plain_tvm(mod)


# --- reductions and shapes ---------------------------------------


@pytest.mark.parametrize("channels", [32, 24])
@pytest.mark.parametrize("flatten", ["reshape", "flatten", "squeeze"])
def test_flattening_a_pooled_image_moves_nothing(flatten: str, channels: int) -> None:
    shapes = {
        "reshape": lambda y: op.reshape(y, (2, channels)),
        "flatten": op.flatten,
        "squeeze": lambda y: op.squeeze(y, [2, 3]),
    }

    def head(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        pooled = b.emit(op.mean(conv(b, x, channels), axis=[2, 3], keepdims=True))
        flat = b.emit(shapes[flatten](pooled))
        if flatten == "flatten":
            flat = b.emit(op.reshape(flat, (2, channels)))
        return op.matmul(flat, relax.const(random(channels, 10)))

    mod = graph(head, (2, 16, 5, 6))
    after = laid_out(mod)
    kinds = operators(after)
    assert kinds["permute_dims"] == 0
    assert kinds["layout_transform"] == 1  # the graph's input
    assert result_shapes(after) == [(2, 10)]
    assert_same_as_plain_tvm(mod)


def test_flattening_a_larger_image_is_in_the_order_of_nchw() -> None:
    """As in VGG: the linear layer's weights know that order."""

    def head(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        flat = b.emit(op.reshape(conv(b, x, 32), (2, 32 * 12)))
        return op.matmul(flat, relax.const(random(32 * 12, 10) / 20))

    mod = graph(head, (2, 16, 3, 4))
    assert moves(laid_out(mod)) == [(2, 1, 3, 4, 16), (2, 32, 3, 4), (2, 384)]
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(
    "axis, keepdims", [([1], True), ([2, 3], False), ([1, 2, 3], True), (None, False), ([2], True)]
)
def test_other_reductions_are_nchw(axis: list[int] | None, keepdims: bool) -> None:
    mod = graph(lambda b, x: op.sum(conv(b, x, 32), axis=axis, keepdims=keepdims), (2, 16, 3, 4))
    (call,) = calls(laid_out(mod), "sum")
    assert static_shape(call.args[0]) == (2, 32, 3, 4)
    assert_same_as_plain_tvm(mod)


def test_negative_axes_of_a_mean() -> None:
    mod = graph(lambda b, x: op.mean(conv(b, x, 24), axis=[-1, -2], keepdims=True), (1, 16, 3, 4))
    (call,) = calls(laid_out(mod), "mean")
    assert [int(axis) for axis in call.attrs.axis] == [1, 2]
    assert_same_as_plain_tvm(mod)
