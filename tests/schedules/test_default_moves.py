"""The default CPU rule: operators that only move elements, against numpy."""

import ml_dtypes  # noqa: F401  names bfloat16 for NumPy
import numpy as np
import pytest
from default_graphs import (
    LANES,
    RNG,
    check,
    data,
    graph,
    kernels,
    loops,
    run,
    scheduled,
    vector_lengths,
)
from tvm import relax, s_tir, tirx
from tvm.relax import op

from tvm_blislike.model.marks import DEFAULT_RULE
from tvm_blislike.schedules.lowering.rewrite import collect


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_concat(axis):
    x, y = data(2, 3, 5, 7), data(2, 3, 5, 7)
    expected = np.concatenate([x, y, x], axis)
    check(lambda a, b: op.concat([a, b, a], axis), expected, x, y)


@pytest.mark.parametrize("width", [(0, 0, 0, 0, 1, 1, 1, 1), (0, 0, 1, 2, 0, 3, 2, 0)])
def test_pad(width):
    x = data(1, 5, 9, 21)
    expected = np.pad(x, np.reshape(width, (4, 2)))
    (kernel,) = check(lambda a: op.nn.pad(a, width), expected, x)
    assert vector_lengths(kernel)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_nearest_resize(layout):
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    x = data(1, 5, 6, 7)
    size = relax.ShapeExpr([2 * x.shape[a] for a in axes])
    expected = x.repeat(2, axes[0]).repeat(2, axes[1])
    check(
        lambda a: op.image.resize2d(
            a,
            size,
            layout=layout,
            method="nearest_neighbor",
            coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ),
        expected,
        x,
    )


@pytest.mark.parametrize(
    ("pixels", "divided"),
    [
        ((128, 160), 16),  # pieces of each channel
        ((149, 151), 149 * 151),  # no such pieces: a channel's pixels
    ],
)
def test_channels_of_pixels_come_apart_in_pieces(pixels, divided):
    """Three channels are too few for two threads: they divide the pixels, once for all channels."""
    x = data(1, *pixels, 3)
    expected = np.maximum(x, 0).transpose(0, 3, 1, 2)
    (kernel,) = check(
        lambda a: op.permute_dims(op.nn.relu(a), (0, 3, 1, 2)),
        expected,
        x,
    )
    (parallel,) = loops(kernel, tirx.ForKind.PARALLEL)
    assert int(parallel.extent) == divided


def bilinear(x, times):
    """Return the image with its last axis `times` as long, between pixels in proportion."""
    width = x.shape[-1]
    position = np.clip((np.arange(times * width) + 0.5) / times - 0.5, 0, width - 1)
    low = np.floor(position).astype(int)
    high, part = np.minimum(low + 1, width - 1), (position - low).astype("float32")
    return x[..., low] * (1 - part) + x[..., high] * part


def test_bilinear_resize():
    x = data(1, 3, 6, 8)
    size = relax.ShapeExpr([6, 16])
    check(lambda a: op.image.resize2d(a, size, method="linear"), bilinear(x, 2), x, atol=1e-5)


def stored_between(function, *arrays):
    """Return how many tensors a function keeps from one of its loops to the next."""
    (kernel,) = kernels(scheduled(graph(function, *(a.shape for a in arrays))))
    return len(collect(kernel.body, s_tir.SBlock)[0].alloc_buffers)


def test_what_a_resize_reads_four_times_is_computed_once():
    """Sixteen times at each of its points otherwise, 256 times in front of another."""
    x = data(1, 3, 6, 8)

    def steps(a):
        for _ in range(6):
            a = op.nn.relu(op.add(a, relax.const(1.0)))
        return a

    def twice(a):
        once = op.image.resize2d(steps(a), relax.ShapeExpr([6, 16]), method="linear")
        return op.image.resize2d(steps(once), relax.ShapeExpr([6, 32]), method="linear")

    def expected(a):
        for _ in range(6):
            a = np.maximum(a + 1, 0)
        return a

    wanted = bilinear(expected(bilinear(expected(x), 2)), 2)
    check(twice, wanted, x, rtol=1e-5, atol=1e-5)
    assert stored_between(twice, x) == 2


@pytest.mark.parametrize("operator", [op.nn.relu, op.negative])
def test_what_costs_less_than_a_store_is_computed_at_its_reader(operator):
    x = data(1, 3, 6, 8)
    size = relax.ShapeExpr([6, 16])
    assert not stored_between(lambda a: op.image.resize2d(operator(a), size, method="linear"), x)


@pytest.mark.parametrize(("pixels", "stored"), [(400, 1), (3, 0)])
def test_numbers_of_groups_are_stored_for_each_channel_of_many_pixels(pixels, stored):
    x, groups = data(pixels, 16), data(8)

    def scaled(a, of_groups):
        rows = op.broadcast_to(op.reshape(of_groups, (8, 1)), (8, 2))
        return op.multiply(a, op.reshape(rows, (16,)))

    check(scaled, x * groups.repeat(2), x, groups)
    assert stored_between(scaled, x, groups) == stored


def test_two_readers_at_the_same_point_share_what_they_read():
    def both(a, b):
        for _ in range(40):
            a = op.add(op.multiply(a, b), b)
        return op.subtract(op.nn.relu(a), op.negative(a))

    assert not stored_between(both, data(4, 64), data(4, 64))


@pytest.mark.parametrize(
    ("shape", "axes", "apart"),
    [
        ((1, 32, 20, 24), (0, 2, 3, 1), True),  # rows of pixels, which end inside of the padding
        ((1, 20, 24, 32), (0, 3, 1, 2), False),  # pixels, whose channels are not padded
        ((1, 3, 20, 24), (0, 2, 3, 1), False),  # too few channels for squares
    ],
)
def test_a_transposition_that_padding_would_part_comes_first(shape, axes, apart):
    x = data(*shape)
    height, width = (axes.index(axis) for axis in ((2, 3) if axes[1] == 2 else (1, 2)))
    widths = [(0, 0)] * 4
    widths[height], widths[width] = (1, 2), (2, 1)

    def function(a):
        return op.nn.pad(op.permute_dims(a, axes), [n for pair in widths for n in pair])

    (kernel,) = check(function, np.pad(x.transpose(axes), widths), x)
    assert stored_between(function, x) == apart
    assert not apart or "transpose" in kernel.attrs[DEFAULT_RULE]


def test_a_number_that_others_read():
    x, factor = data(5, 8), np.array(3, "float32")

    def function(a, b):
        return op.nn.pad(op.multiply(a, op.negative(op.add(b, b))), [1, 0, 0, 2])

    check(function, np.pad(-6 * x, [(1, 0), (0, 2)]), x, factor)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float32"])
@pytest.mark.parametrize("shape", [(3, 129, 70), (2, 64, 64), (1, 200, 33)])
def test_transposed_squares_of_every_type(dtype, shape):
    x = RNG.integers(-100, 100, shape).astype(dtype)
    (kernel,) = check(lambda a: op.permute_dims(a, (0, 2, 1)), x.transpose(0, 2, 1), x)
    assert kernel.attrs[DEFAULT_RULE] == "transpose"
    assert max(len(x.indices) for x in collect(kernel.body, tirx.Shuffle)) <= 32


@pytest.mark.parametrize("axes", [(0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_transpose(axes):
    x = data(2, 33, 17, 20)
    check(lambda a: op.permute_dims(a, axes), x.transpose(axes), x)


@pytest.mark.parametrize("channels,block", [(32, 16), (3, 4), (24, 8), (20, 16), (57, 57), (3, 3)])
def test_block_and_unblock(channels, block):
    x = data(2, channels, 7, 9)
    blocks = -(-channels // block)
    padded = np.pad(x, ((0, 0), (0, blocks * block - channels), (0, 0), (0, 0)))
    blocked = padded.reshape(2, blocks, block, 7, 9).transpose(0, 1, 3, 4, 2).copy()
    pad_value = 0.0 if channels % block else None

    def pack(a):
        return op.layout_transform(
            a, lambda n, c, h, w: (n, c // block, h, w, c % block), pad_value=pad_value
        )

    check(pack, blocked, x)
    if channels % block == 0:
        check(
            lambda a: op.layout_transform(a, lambda n, c, h, w, b: (n, c * block + b, h, w)),
            x,
            blocked,
        )


def test_transposition_runs_in_registers():
    x = data(4 * LANES + 3, 2 * LANES + 1)
    (kernel,) = check(lambda a: op.nn.relu(op.permute_dims(a)), np.maximum(x.T, 0), x)
    assert kernel.attrs[DEFAULT_RULE] == "transpose"
    assert "T.Shuffle" in kernel.script()


def test_transposition_inside_loops_that_become_one_for_threads():
    x = data(16, 13, 64, LANES + 1)
    (kernel,) = check(lambda a: op.permute_dims(a, [1, 0, 3, 2]), x.transpose(1, 0, 3, 2), x)
    assert kernel.attrs[DEFAULT_RULE] == "transpose"
    assert len(loops(kernel, tirx.ForKind.PARALLEL)) == 1


def test_transposition_into_an_intermediate_buffer():
    x = data(35, 50)
    e = np.exp(x - x.max(axis=0))
    check(lambda a: op.nn.softmax(op.permute_dims(a), -1), (e / e.sum(axis=0)).T, x)


def test_reshape_after_relu():
    x = data(2, 6, 5, 7)
    check(lambda a: op.reshape(op.nn.relu(a), (2, 210)), np.maximum(x, 0).reshape(2, 210), x)


def test_split_and_strided_slice():
    x = data(1, 12, 6, 9)
    check(lambda a: relax.TupleGetItem(op.split(a, 3, axis=1), 1), x[:, 4:8], x)
    check(lambda a: op.strided_slice(a, [3], [1], [9], [2]), x[..., 1:9:2], x)


def test_gather():
    x, index = data(50, 19), RNG.integers(0, 50, (3, 4))
    check(lambda a, i: op.take(a, i, axis=0), x[index], x, index)


def test_channel_shuffle():
    x = data(1, 12, 5, 7)

    def shuffle(a):
        groups = op.permute_dims(op.reshape(a, (1, 3, 4, 5, 7)), (0, 2, 1, 3, 4))
        return op.nn.relu(op.reshape(groups, (1, 12, 5, 7)))

    expected = x.reshape(1, 3, 4, 5, 7).transpose(0, 2, 1, 3, 4).reshape(x.shape)
    check(shuffle, np.maximum(expected, 0), x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "bool", "int64", "float64"])
def test_transpose_of_every_type(dtype):
    x = RNG.integers(0, 2, (3, 32, 48)).astype(np.dtype(dtype))
    module = scheduled(graph(lambda a: op.permute_dims(a, [0, 2, 1]), x.shape, dtypes=[dtype]))
    np.testing.assert_array_equal(run(module, x), x.transpose(0, 2, 1))
