"""Layout pass: how many transforms are left, where they are, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from relax_graphs import assert_same_as_plain_tvm, calls, conv, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.adapter import dtype_name, static_shape
from tvm_blislike.constraints import Constraints
from tvm_blislike.hardware import Core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.layout import choose_layouts
from tvm_blislike.strategy import Strategy

# Structure is checked for 16 lanes, whatever machine the tests run on.
# Without the convolution that reads and writes NCHW: it would win for the small images here.
STRATEGY = Strategy(
    Core.named("skylake-avx512"), threads=1, constraints=Constraints(without=("conv2d_im2col",))
)
BLOCKED = "NCHW16c"
MOVES = ("layout_transform", "permute_dims", "reshape")


def laid_out(mod: tvm.IRModule) -> tvm.IRModule:
    return choose_layouts(STRATEGY)(Canonicalize(STRATEGY.core)(mod))


def layouts(mod: tvm.IRModule) -> list[tuple[str, str]]:
    """Layouts of input and output of each convolution."""
    convs = calls(mod, "nn.conv2d")
    return [(str(c.attrs.data_layout), str(c.attrs.out_layout)) for c in convs]


def moves(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Shape of the result of each transform."""
    return [static_shape(call) for call in calls(mod, *MOVES)]


def result_shapes(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    body = mod["main"].body.body
    fields = list(body.ty.fields) if isinstance(body.ty, relax.TupleType) else [body.ty]
    return [tuple(int(e) for e in field.shape) for field in fields]


def test_layers_that_agree_have_no_transform_between_them() -> None:
    mod = graph(lambda b, x: conv(b, op.nn.relu(conv(b, conv(b, x, 32), 48)), 64, 1), (1, 16, 6, 5))
    after = laid_out(mod)
    assert layouts(after) == [(BLOCKED, BLOCKED)] * 3
    # The graph's input and its output.
    assert moves(after) == [(1, 1, 6, 5, 16), (1, 64, 6, 5)]
    assert_same_as_plain_tvm(mod)


def test_first_layer_reads_nchw() -> None:
    mod = graph(lambda b, x: conv(b, conv(b, x, 32, strides=2), 16), (1, 3, 9, 9))
    after = laid_out(mod)
    assert layouts(after) == [("NCHW", BLOCKED), (BLOCKED, BLOCKED)]
    assert moves(after) == [(1, 16, 5, 5)]
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("channels", [24, 57])
def test_channels_that_fill_no_block_are_nhwc(channels: int) -> None:
    mod = graph(lambda b, x: conv(b, conv(b, conv(b, x, channels), channels), 32), (2, 16, 5, 6))
    after = laid_out(mod)
    assert layouts(after) == [(BLOCKED, "NHWC"), ("NHWC", "NHWC"), ("NHWC", BLOCKED)]
    assert moves(after) == [(2, 1, 5, 6, 16), (2, 32, 5, 6)]
    assert_same_as_plain_tvm(mod, threads=2)


def test_readers_of_one_image_share_its_transform() -> None:
    def inception(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.concat([conv(b, x, 16, k) for k in (1, 3, 5)], axis=1)

    mod = graph(inception, (1, 32, 5, 5))
    after = laid_out(mod)
    assert moves(after) == [(1, 2, 5, 5, 16), (1, 48, 5, 5)]
    assert_same_as_plain_tvm(mod)


def test_a_layer_writes_what_most_of_its_readers_want() -> None:
    """A softmax reads NCHW, a grouped convolution of uneven groups NHWC."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        y = conv(b, x, 48)
        return (
            b.emit(op.nn.softmax(y, axis=1)),
            conv(b, y, 24, groups=2),
            conv(b, y, 12, groups=2),
            b.emit(op.nn.softmax(y, axis=2)),
        )

    mod = graph(function, (1, 16, 5, 5))
    after = laid_out(mod)
    assert layouts(after)[1:] == [("NHWC", "NHWC")] * 2
    of_y = [shape for shape in moves(after) if 48 in shape or shape[-1] == 16][1:]
    assert layouts(after)[0] == (BLOCKED, "NHWC")
    assert of_y == [(1, 48, 5, 5)]
    assert_same_as_plain_tvm(mod)


# --- concatenation -----------------------------------------------


def concat_of(*channels: int) -> Callable[..., relax.Expr]:
    return lambda b, x: conv(b, op.concat([conv(b, x, c, 1) for c in channels], axis=1), 16, 1)


def test_concat_of_whole_blocks_stays_blocked() -> None:
    mod = graph(concat_of(16, 48), (1, 16, 4, 4))
    (joined,) = calls(laid_out(mod), "concat")
    assert (int(joined.attrs.axis), static_shape(joined)) == (1, (1, 4, 4, 4, 16))
    assert len(moves(laid_out(mod))) == 2
    assert_same_as_plain_tvm(mod)


def test_concat_with_a_cut_block_is_nhwc() -> None:
    """As in a DenseNet with a growth of 24: a block may not straddle two parts."""
    mod = graph(concat_of(16, 24), (1, 16, 4, 4))
    after = laid_out(mod)
    (joined,) = calls(after, "concat")
    assert (int(joined.attrs.axis), static_shape(joined)) == (3, (1, 4, 4, 40))
    # Input and output: the part of 16 channels is written as NHWC, too.
    assert moves(after) == [(1, 1, 4, 4, 16), (1, 16, 4, 4)]
    assert layouts(after) == [(BLOCKED, "NHWC"), (BLOCKED, "NHWC"), ("NHWC", BLOCKED)]
    assert_same_as_plain_tvm(mod)


def test_concat_with_the_input_of_the_graph() -> None:
    mod = graph(lambda b, x: op.concat([x, conv(b, x, 32)], axis=1), (1, 16, 4, 4))
    after = laid_out(mod)
    # The result is NCHW, and so is the other part: only that of the convolution moves.
    assert moves(after) == [(1, 1, 4, 4, 16), (1, 32, 4, 4)]
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_concat_of_another_axis_is_nchw(axis: int) -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return op.concat([conv(b, x, 16), conv(b, x, 16, 1)], axis=axis)

    mod = graph(function, (1, 16, 4, 5))
    (joined,) = calls(laid_out(mod), "concat")
    assert int(joined.attrs.axis) == axis
    assert_same_as_plain_tvm(mod)


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


# --- outputs, and what stays as it is ----------------------------


def test_outputs_are_nchw_even_where_they_are_read_again() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        first = b.emit(op.nn.relu(conv(b, x, 32)))
        return first, conv(b, first, 24)

    mod = graph(function, (1, 16, 5, 4))
    after = laid_out(mod)
    assert result_shapes(after) == [(1, 32, 5, 4), (1, 24, 5, 4)]
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("channels", [1, 3, 16, 24, 32])
def test_output_of_a_single_convolution(channels: int) -> None:
    mod = graph(lambda b, x: conv(b, x, channels), (2, 16, 5, 4))
    assert result_shapes(laid_out(mod)) == [(2, channels, 5, 4)]
    assert_same_as_plain_tvm(mod)


def test_nothing_of_one_dataflow_block_is_read_in_another() -> None:
    """Both blocks read the graph's input, the second one also the first one's result."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 32, 5, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit_output(op.nn.relu(conv(builder, x, 32)))
        between = builder.emit(op.abs(first))
        with builder.dataflow():
            second = builder.emit_output(op.add(conv(builder, x, 32), between))
        builder.emit_func_output(second)
    mod = builder.get()
    after = laid_out(mod)
    relax.analysis.well_formed(after)
    image, blocked = (1, 32, 5, 4), (1, 2, 5, 4, 16)
    # The sum is computed in NCHW: moving one operand is less than both and the result.
    assert moves(after) == [blocked, image, blocked, image]
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("channels", [1, 16, 24])
def test_transforms_of_one_pixel_and_of_one_channel_are_reshapes(channels: int) -> None:
    image = (2, 16, 1, 1) if channels != 1 else (2, 16, 5, 4)
    mod = graph(lambda b, x: conv(b, x, channels, 1), image)
    (last,) = calls(laid_out(mod), *MOVES)[-1:]
    assert str(last.op.name) == "relax.reshape"
    assert_same_as_plain_tvm(mod)


def test_convolutions_without_an_implementation_stay_as_they_are() -> None:
    def halves(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weights = relax.const(random(16, 16, 1, 1).astype("float16"))
        y = b.emit(op.nn.conv2d(b.emit(op.astype(x, "float16")), weights))
        return b.emit(op.astype(y, "float32"))

    mod = graph(halves, (1, 16, 4, 4))
    after = laid_out(mod)
    assert layouts(after) == [("NCHW", "NCHW")]
    assert dtype_name(calls(after, "nn.conv2d")[0]) == "float16"
    assert moves(after) == []


def test_graph_without_convolutions_is_unchanged() -> None:
    mod = graph(lambda b, x, y: op.nn.relu(op.add(x, y)), (1, 16, 4, 4), (1, 16, 4, 4))
    assert operators(laid_out(mod)) == {"add": 1, "nn.relu": 1}
