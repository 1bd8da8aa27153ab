"""Layout pass: how many transforms are left, where they are, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from laid_out import BLOCKED, MOVES, laid_out, layouts, moves, result_shapes
from relax_graphs import assert_same_as_plain_tvm, calls, conv, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.tvm_seams import dtype_name, static_shape


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
    def doubles(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weights = relax.const(random(16, 16, 1, 1).astype("float64"), "float64")
        y = b.emit(op.nn.conv2d(b.emit(op.astype(x, "float64")), weights))
        return b.emit(op.astype(y, "float32"))

    mod = graph(doubles, (1, 16, 4, 4))
    after = laid_out(mod)
    assert [str(c.attrs.data_layout) for c in calls(after, "nn.conv2d")] == ["NCHW"]
    assert dtype_name(calls(after, "nn.conv2d")[0]) == "float64"
    assert moves(after) == []


def test_graph_without_convolutions_is_unchanged() -> None:
    mod = graph(lambda b, x, y: op.nn.relu(op.add(x, y)), (1, 16, 4, 4), (1, 16, 4, 4))
    assert operators(laid_out(mod)) == {"add": 1, "nn.relu": 1}
