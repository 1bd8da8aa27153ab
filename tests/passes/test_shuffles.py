"""Channel shuffles and parts of them: one operator, in every layout the same numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tvm
from guard import GuardedArrays
from hypothesis import given, settings
from hypothesis import strategies as st
from relax_graphs import assert_same_as_plain_tvm, conv, graph, operators
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import native_core
from tvm_blislike.model.layouts import NCHW, NHWC, Layout
from tvm_blislike.passes import shuffles, tir_pipeline
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.image_operators import may_lie
from tvm_blislike.passes.shuffles import Shuffle
from tvm_blislike.pipeline import compile_module
from tvm_blislike.tvm_seams import bindings

NATIVE = native_core()
LANES = NATIVE.lanes("float32")


def shuffle(b: relax.BlockBuilder, x: relax.Expr, parts: int) -> relax.Var:
    """Emit a shuffle as exporters write it."""
    n, c, h, w = (int(size) for size in x.ty.shape.values)
    apart = b.emit(op.reshape(x, (n, parts, c // parts, h, w)))
    return b.emit(op.reshape(b.emit(op.permute_dims(apart, [0, 2, 1, 3, 4])), (n, c, h, w)))


def channels(b: relax.BlockBuilder, x: relax.Expr, begin: int, end: int) -> relax.Var:
    return b.emit(op.strided_slice(x, [1], [begin], [end]))


def between_layers(each: int, parts: int, cuts: Sequence[int], images: int = 1) -> tvm.IRModule:
    """Return layers whose joined results are shuffled, cut, and read by other layers."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        joined = b.emit(op.concat([conv(b, x, each, 1) for _ in range(parts)], axis=1))
        turned = shuffle(b, joined, parts)
        ends = [*cuts, each * parts]
        taken = [channels(b, turned, *pair) for pair in zip([0, *cuts], ends, strict=True)]
        return tuple(conv(b, one, 8, 1) for one in (taken if cuts else [turned]))

    return graph(function, (images, 6, 5, 7))


@pytest.mark.parametrize(
    ("each", "parts", "cuts"),
    [
        (LANES, 2, [LANES]),
        (2 * LANES, 2, []),
        (58, 2, [58]),
        (LANES // 2, 2, []),
        (LANES, 4, [2 * LANES]),
        (20, 3, [30]),
        (20, 3, [10]),
        (7, 2, [6]),
        (3, 11, [11]),
    ],
)
@pytest.mark.parametrize("images", [1, 2])
def test_shuffle_between_layers(each: int, parts: int, cuts: list[int], images: int) -> None:
    mod = between_layers(each, parts, cuts, images)
    found = operators(Canonicalize(NATIVE)(mod))
    layers = parts + len(cuts) + 1
    assert found == {"nn.conv2d": layers, "concat": 1, "take": len(cuts) + 1}
    assert_same_as_plain_tvm(mod)


def test_threads_share_a_large_one() -> None:
    assert_same_as_plain_tvm(between_layers(64 * LANES, 2, [64 * LANES]), threads=2)


def test_nothing_moves_but_the_shuffles() -> None:
    """Blocks of channels go from layer to layer, neither joined nor through NCHW."""
    mod = between_layers(2 * LANES, 2, [2 * LANES])
    _, report = compile_module(mod, Strategy(NATIVE, 1))
    names = [layer.name for layer in report.layers]
    assert sum(name.startswith("shuffle") for name in names) == 2
    assert not any(word in name for name in names for word in ("concat", "slice", "reshape"))


def test_whoever_reads_the_whole_gets_it() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        joined = b.emit(op.concat([conv(b, x, LANES, 1), conv(b, x, LANES, 1)], axis=1))
        turned = shuffle(b, joined, 2)
        part = channels(b, turned, LANES, 2 * LANES)
        return conv(b, part, 8, 1), conv(b, turned, 8, 1), conv(b, joined, 8, 1), turned

    assert_same_as_plain_tvm(graph(function, (1, 6, 5, 7)))


def test_parts_of_other_sizes_are_joined() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        parts = [conv(b, x, 24, 1), conv(b, x, 8, 1), conv(b, x, 32, 1)]
        return conv(b, shuffle(b, b.emit(op.concat(parts, axis=1)), 2), 8, 1)

    assert_same_as_plain_tvm(graph(function, (1, 6, 5, 7)))


def test_a_slice_of_rows_or_every_other_channel_is_none() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        turned = shuffle(b, conv(b, x, 2 * LANES, 1), 2)
        rows = b.emit(op.strided_slice(turned, [2], [1], [3]))
        every_other = b.emit(op.strided_slice(turned, [1], [0], [2 * LANES], [2]))
        return conv(b, rows, 8, 1), conv(b, every_other, 8, 1)

    mod = graph(function, (1, 6, 5, 7))
    assert operators(Canonicalize(NATIVE)(mod))["strided_slice"] == 2
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(
    ("apart", "axes", "result"),
    [
        ((1, 2, 12, 5, 7), [0, 2, 1, 4, 3], (1, 24, 7, 5)),
        ((1, 24, 5, 7, 1), [0, 1, 2, 3, 4], (1, 24, 5, 7)),
        ((1, 24, 1, 5, 7), [0, 2, 1, 3, 4], (1, 24, 5, 7)),
        ((1, 2, 12, 7, 5), [0, 2, 1, 3, 4], (1, 24, 5, 7)),
        ((1, 2, 12, 5, 7), [0, 2, 1, 3, 4], (1, 12, 10, 7)),
    ],
)
def test_other_permutations_stay(
    apart: tuple[int, ...], axes: list[int], result: tuple[int, ...]
) -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        moved = b.emit(op.permute_dims(b.emit(op.reshape(x, apart)), axes))
        return b.emit(op.reshape(moved, result))

    mod = graph(function, (1, 24, 5, 7))
    assert "take" not in operators(Canonicalize(NATIVE)(mod))
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("places", [[3, 1, 2], [5], [0, 12, 0, 12], [4, 5, 6]])
def test_other_channels_are_taken_as_before(places: list[int]) -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        taken = b.emit(op.take(x, relax.const(np.array(places, "int64")), axis=1))
        return conv(b, taken, 8, 1)

    mod = graph(function, (1, 24, 5, 7))
    assert all(shuffles.shuffle_of(b.value) is None for b in bindings(mod["main"]))
    assert_same_as_plain_tvm(mod)


def test_open_images_keep_what_goes_through_any_part() -> None:
    mod = between_layers(LANES, 2, [LANES])
    found = operators(Canonicalize(NATIVE, is_for_many=True)(mod))
    assert found["permute_dims"] == 1
    assert "take" not in found


def test_layouts_that_it_may_have() -> None:
    def layouts(parts: int, first: int, count: int, each: int) -> list[Layout]:
        one = Shuffle(parts, parts * each, first, count)
        call = op.take(
            relax.Var("x", relax.TensorType((1, parts * each, 5, 7), "float32")),
            relax.const(one.sources()),
            axis=1,
        )
        return [layout for layout in (Layout.blocked(8), NHWC, NCHW) if may_lie(call, layout)]

    assert layouts(2, 8, 16, 12) == [Layout.blocked(8), NHWC, NCHW]
    assert layouts(2, 4, 16, 12) == [NHWC, NCHW]
    assert layouts(3, 0, 24, 8) == [NHWC, NCHW]
    assert layouts(2, 5, 16, 12) == [NCHW]
    assert layouts(11, 0, 33, 3) == [NCHW]


@st.composite
def kernels(draw: st.DrawFn) -> tuple[Shuffle, Layout, tuple[int, int, int, int], int]:
    """Draw what fits into a layout: a shuffle, the layout, the result's sizes and the images."""
    layout = draw(st.sampled_from([Layout.blocked(4), Layout.blocked(16), NHWC]))
    parts = draw(st.sampled_from([2, 4] if layout.block else [2, 3, 5, 8]))
    several = draw(st.booleans())
    step = layout.block or 1
    each = (
        step * draw(st.integers(1, 5))
        if several
        else max(1, step // parts) * draw(st.integers(1, 9))
    )
    unit = layout.block or parts
    if layout.block and each * parts % unit:
        each *= unit
    first = unit * draw(st.integers(0, each * parts // unit - 1))
    most = each * parts - first
    count = (
        unit * draw(st.integers(1, most // unit)) if layout.block else draw(st.integers(1, most))
    )
    n, h, w = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    found = Shuffle(parts, parts * each, first, count)
    return found, layout, (n, count, h, w), parts if several else 1


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "float64"])
@settings(deadline=None, max_examples=15)
@given(drawn=kernels())
def test_kernels_stay_inside_and_move_each_element(drawn: tuple, dtype: str) -> None:
    one, layout, (n, count, h, w), images = drawn
    assert one.fits(layout)
    func = shuffles.kernel(one, layout, (n, count, h, w), dtype, images)
    built = tir_pipeline.build(
        tvm.IRModule({"main": func}), tvm.target.Target(NATIVE.target_config(1))
    )
    memory = GuardedArrays()
    whole = np.arange(n * one.channels * h * w).reshape(n, one.channels, h, w).astype(dtype)
    arrays = []
    for part in np.split(whole, images, axis=1):
        packed = layout.packed(part)
        arrays.append(memory.at_end(packed.shape, dtype))
        arrays[-1][...] = packed
    result = memory.at_end(layout.shape(n, count, h, w), dtype)
    tensors = [tvm.runtime.from_dlpack(array) for array in (*arrays, result)]
    built["main"](*tensors)
    memory.check()
    np.testing.assert_array_equal(layout.unpacked(result), whole[:, one.sources()])
