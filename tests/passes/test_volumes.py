"""Volumes and signals carried as images: two forms, the folds between them, pools, joined parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from effort import crossed, examples
from hypothesis import given
from hypothesis import strategies as st
from relax_graphs import assert_same_as_plain_tvm, calls, execute, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.model.layouts import NCHW, NHWC, Layout
from tvm_blislike.model.marks import VOLUME_CONVOLUTION
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv3dWorkload
from tvm_blislike.operators import workload_of
from tvm_blislike.operators.volume_convolution import volume_convolution
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.folds import columns_of, fold_in, is_fold, lower_fold, slices_of
from tvm_blislike.passes.volumes import lower_volume
from tvm_blislike.tuning import operands
from tvm_blislike.tvm_seams import op_name, static_shape

NATIVE = native_core()
Sizes = tuple[int, ...]


def convolved(
    builder: relax.BlockBuilder,
    x: relax.Expr,
    co: int,
    kernel: Sizes,
    strides: Sizes | None = None,
    groups: int = 1,
) -> relax.Var:
    """A convolution of a volume or a signal whose padding keeps sizes, for strides of 1."""
    ci = static_shape(x)[1] // groups
    weights = random(co, ci, *kernel) / np.float32(np.sqrt(ci * np.prod(kernel)))
    convolution = op.nn.conv3d if len(kernel) == 3 else op.nn.conv1d
    padding = [each // 2 for each in kernel]
    call = convolution(
        x, relax.const(weights), strides=strides or 1, padding=padding, groups=groups
    )
    return builder.emit(call)


def in_time(builder: relax.BlockBuilder, x: relax.Expr, co: int, stride: int = 1) -> relax.Var:
    return convolved(builder, x, co, (3, 1, 1), (stride, 1, 1))


def in_space(builder: relax.BlockBuilder, x: relax.Expr, co: int) -> relax.Var:
    return convolved(builder, x, co, (1, 3, 3))


@pytest.mark.parametrize("channels", [16, 5])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_space_and_time_in_turn(channels: int, batch: int, threads: int) -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = in_time(builder, in_space(builder, x, channels), channels)
        y = builder.emit(op.nn.relu(builder.emit(op.add(y, x))))
        y = in_time(builder, in_space(builder, y, 2 * channels), channels, stride=2)
        return in_time(builder, y, channels)

    assert_same_as_plain_tvm(graph(function, (batch, channels, 6, 5, 7)), threads)


@pytest.mark.parametrize("batch", [1, 2])
def test_layers_in_time_copy_no_slices(batch: int) -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return in_time(builder, in_time(builder, in_space(builder, x, 16), 16), 8)

    found = operators(Canonicalize(NATIVE)(graph(function, (batch, 16, 6, 5, 7))))
    # What lies in columns has the order of the volume's own bytes.
    expected = {"nn.conv2d": 3, "layout_transform": 1, "permute_dims": 1, "reshape": 2}
    assert found == expected


def test_a_layer_of_pixels_takes_either_form() -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        pixels = convolved(builder, in_time(builder, x, 16), 8, (1, 1, 1))
        return in_time(builder, pixels, 16)

    found = operators(Canonicalize(NATIVE)(graph(function, (1, 16, 6, 5, 7))))
    assert found == {"nn.conv2d": 3, "reshape": 2}


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("rank", [1, 3])
def test_pools(kind: str, rank: int) -> None:
    each = {"min_size": rank, "max_size": rank}

    @examples(15)
    @given(
        st.lists(st.integers(1, 3), **each),
        st.lists(st.integers(1, 3), **each),
        st.lists(st.integers(0, 1), **{k: 2 * v for k, v in each.items()}),
        st.booleans(),
        st.booleans(),
        st.sampled_from([1, 2]),
    )
    def check(
        size: list[int],
        strides: list[int],
        pads: list[int],
        ceil_mode: bool,
        counts_padding: bool,
        batch: int,
    ) -> None:
        padding = [min(pad, window - 1) for pad, window in zip(pads, 2 * size, strict=True)]
        pool = getattr(op.nn, f"{kind}_pool{rank}d")

        def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
            y = convolved(builder, x, 16, (1, 3, 3) if rank == 3 else (3,))
            attrs = {"ceil_mode": ceil_mode, "count_include_pad": counts_padding}
            y = builder.emit(pool(y, size, strides, padding, **attrs))
            return convolved(builder, y, 8, (1,) * rank)

        mod = graph(function, (batch, 16, *(5, 6, 7)[:rank]))
        names = set(operators(Canonicalize(NATIVE)(mod)))
        assert names.isdisjoint({f"nn.{kind}_pool{rank}d"})
        assert_same_as_plain_tvm(mod)

    check()


def branches(
    builder: relax.BlockBuilder, x: relax.Var, layer: Callable[..., relax.Var]
) -> relax.Var:
    """A block of an Inception of volumes or signals."""
    y = layer(builder, x, 16)
    parts = [layer(builder, y, 16), layer(builder, y, 32), y]
    return builder.emit(op.concat(parts, axis=1))


@pytest.mark.parametrize("layer", [in_time, in_space])
@pytest.mark.parametrize("batch", [1, 2])
def test_joined_parts(layer: Callable[..., relax.Var], batch: int) -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = branches(builder, x, layer)
        y = builder.emit(op.strided_slice(y, [1], [16], [64]))
        y = in_time(builder, y, 16)
        mean = builder.emit(op.mean(y, axis=[2, 3, 4], keepdims=True))
        return op.multiply(y, builder.emit(op.sigmoid(mean)))

    mod = graph(function, (batch, 16, 4, 5, 7))
    # Each part keeps its form: no volume is turned back between the first layer and the last.
    assert operators(Canonicalize(NATIVE)(mod))["permute_dims"] <= 2
    assert_same_as_plain_tvm(mod)


def test_joined_signals_with_one_of_another_origin() -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var, other: relax.Var) -> relax.Expr:
        y = convolved(builder, x, 16, (3,))
        y = builder.emit(op.concat([y, builder.emit(op.nn.relu(other))], axis=1))
        mean = builder.emit(op.mean(y, axis=[2], keepdims=True))
        return convolved(builder, builder.emit(op.multiply(y, mean)), 16, (3,))

    assert_same_as_plain_tvm(graph(function, (2, 16, 40), (2, 8, 40)))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("sizes", "around"),
    [
        ((5, 6, 7), (1, 2, 0, 0, 0, 0)),
        ((5, 6, 7), (0, 0, 1, 0, 2, 3)),
        ((5, 6, 7), (1, 0, 0, 2, 1, 1)),
        ((9,), (2, 3)),
    ],
)
@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_padding_with_a_number(sizes: Sizes, around: Sizes, batch: int, mode: str) -> None:
    rank = len(sizes)

    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = convolved(builder, x, 16, (1, 3, 3)[-rank:])
        y = builder.emit(op.nn.pad(y, (0, 0, 0, 0, *around), mode, 0.75))
        return convolved(builder, y, 8, (3, 1, 1)[:rank])

    mod = graph(function, (batch, 16, *sizes))
    turned = operators(Canonicalize(NATIVE)(mod))["permute_dims"]
    assert mode != "constant" or turned <= 1  # the input alone
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(
    ("method", "mode", "size", "batch"),
    crossed(
        ["linear", "nearest_neighbor"],
        ["half_pixel", "align_corners", "asymmetric"],
        [(10, 12, 14), (5, 12, 14), (9, 6, 7), (3, 4, 7), (5, 6, 7)],
        [1, 2],
    ),
)
def test_resized(method: str, mode: str, size: Sizes, batch: int) -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y, other = in_space(builder, x, 16), convolved(builder, x, 8, (1, 1, 1))
        attrs = {"method": method, "coordinate_transformation_mode": mode}
        y = builder.emit(op.image.resize3d(y, size, rounding_method="floor", **attrs))
        y = in_time(builder, builder.emit(op.nn.relu(y)), 8)
        return op.add(y, other) if size == (5, 6, 7) else y

    mod = graph(function, (batch, 16, 5, 6, 7))
    found = operators(Canonicalize(NATIVE)(mod))
    assert found["image.resize3d"] == 0 and found["permute_dims"] <= 2
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(
    "attrs",
    [
        {"method": "cubic"},
        {"coordinate_transformation_mode": "tf_crop_and_resize", "roi": (0.1,) * 3 + (0.9,) * 3},
    ],
)
def test_resized_by_all_axes_at_once(attrs: dict[str, object]) -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = in_space(builder, x, 8)
        return in_time(builder, builder.emit(op.image.resize3d(y, (7, 8, 9), **attrs)), 8)

    mod = graph(function, (1, 16, 5, 6, 7))
    assert operators(Canonicalize(NATIVE)(mod))["image.resize3d"] == 1
    assert_same_as_plain_tvm(mod)


def test_parts_joined_along_another_axis_have_their_own_form() -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = in_space(builder, x, 16)
        return in_time(builder, builder.emit(op.concat([y, y], axis=2)), 8)

    assert_same_as_plain_tvm(graph(function, (1, 16, 4, 5, 7)))


@pytest.mark.parametrize("constant", [(1, 16, 1, 1, 1), (16, 4, 1, 1), (5, 7), (4, 5, 1), (7,)])
def test_constants_beside_columns(constant: Sizes) -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = builder.emit(op.multiply(in_time(builder, x, 16), relax.const(random(*constant))))
        return in_time(builder, y, 16)

    mod = graph(function, (2, 16, 4, 5, 7))
    assert operators(Canonicalize(NATIVE)(mod))["permute_dims"] == 0
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("layout", [NCHW, NHWC, Layout.blocked(8)])
@pytest.mark.parametrize("sizes", [(6, 16, 5, 7), (6, 8, 1, 4), (2, 8, 3, 3), (4, 16, 5, 1)])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_fold_in_any_layout(layout: Layout, sizes: Sizes, depth: int) -> None:
    n, c, h, w = sizes[0] // depth, *sizes[1:]

    def function(builder: relax.BlockBuilder, x: relax.Var, image: relax.Var) -> relax.Expr:
        columns = builder.normalize(columns_of(x, depth))
        back = slices_of(builder.emit(columns), w)
        assert static_shape(builder.emit(back)) == sizes
        if is_fold(columns):
            return fold_in(columns, image, layout)
        return relax.op.reshape(image, layout.shape(n, c, depth, h * w))

    array = random(*sizes)
    mod = graph(function, sizes, layout.shape(*sizes))
    lowered = relax.transform.LegalizeOps({"relax.layout_transform": lower_fold})(mod)
    plain = tvm.compile(lowered, tvm.target.Target("llvm"))
    (found,) = execute(plain, [array, np.ascontiguousarray(layout.packed(array))])
    wanted = array.reshape(n, depth, c, h * w).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(layout.unpacked(found), wanted)


def test_other_transforms_are_no_folds() -> None:
    index_map = tvm.tirx.IndexMap.from_func(lambda n, c, y, x: (n, c, x, y), 4)

    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return builder.emit(op.layout_transform(x, index_map))

    (call,) = calls(graph(function, (6, 16, 5, 7)), "layout_transform")
    assert not is_fold(call)
    assert fold_in(call, call.args[0], NHWC) is None


@pytest.mark.parametrize("channels", [16, 21])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_depthwise_volumes(channels: int, batch: int, threads: int) -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = convolved(builder, x, channels, (1, 1, 1))
        z = convolved(builder, y, channels, (3, 3, 3), groups=channels)
        z = builder.emit(op.add(z, relax.const(random(1, channels, 1, 1, 1))))
        z = builder.emit(op.add(builder.emit(op.nn.relu(z)), y))
        z = convolved(builder, z, channels, (3, 3, 3), (2, 2, 1), groups=channels)
        return convolved(builder, z, 8, (1, 1, 1))

    mod = graph(function, (batch, channels, 5, 6, 7))
    names = [op_name(call) for call in calls(Canonicalize(NATIVE)(mod))]
    # Slices of several volumes are no neighbours.
    assert names.count(VOLUME_CONVOLUTION) == (2 if batch == 1 else 0)
    assert_same_as_plain_tvm(mod, threads)


def test_depthwise_volumes_of_negative_padding() -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weights = relax.const(random(16, 1, 3, 3, 3))
        return op.nn.conv3d(x, weights, padding=[1, -1, 0, 1, 0, -1], groups=16)

    assert_same_as_plain_tvm(graph(function, (1, 16, 5, 8, 9)))


def test_depthwise_volumes_without_an_implementation() -> None:
    """They are sums of convolutions of images again."""
    layer = Conv3dWorkload(
        5, 6, 7, 8, 6, 3, 2, (2, 1), (1, 0, 1, 1), (1, 2), 6, FLOAT32, 3, 2, (1, 2), 1
    )
    data, weights = operand_values = operands.operands(layer)

    def function(_builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        padding = [1, 1, 0, 2, 1, 1]
        return volume_convolution(x, relax.const(weights), (2, 2, 1), padding, (1, 1, 2))

    mod = graph(function, data.shape)
    (call,) = calls(mod)
    assert workload_of(call) == layer
    lowered = relax.transform.LegalizeOps({VOLUME_CONVOLUTION: lower_volume})(mod)
    (found,) = execute(tvm.compile(lowered, tvm.target.Target("llvm")), [data])
    np.testing.assert_allclose(found, operands.result(layer, *operand_values), atol=1e-5)
