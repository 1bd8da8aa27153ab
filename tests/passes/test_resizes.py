"""Resized images: in the layout of their neighbours, and in NCHW by tables, to the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from effort import crossed, examples
from hypothesis import given
from hypothesis import strategies as st
from laid_out import BLOCKED, laid_out, layouts, moves
from relax_graphs import assert_same_as_plain_tvm, calls, conv, execute, graph, operators, run
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.passes.legalize import legalize

MODES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


def resized(shape: tuple[int, ...], size: tuple[int, int], **attrs: object) -> tvm.IRModule:
    return graph(lambda _b, x: op.image.resize2d(x, size, **attrs), shape)


def legal(mod: tvm.IRModule, is_for_many: bool = False) -> list[str]:
    """Return the names of the functions of a module without operators."""
    with tvm.target.Target("llvm"):
        made = legalize(native_core(), is_for_many)(mod)
    return [g.name_hint for g, f in made.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]


@pytest.mark.parametrize(("channels", "layout"), [(32, BLOCKED), (24, "NHWC")])
@pytest.mark.parametrize("method", ["linear", "nearest_neighbor", "cubic"])
def test_images_are_resized_where_they_lie(method: str, channels: int, layout: str) -> None:
    attrs = {"coordinate_transformation_mode": "asymmetric", "rounding_method": "floor"}

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(op.image.resize2d(conv(b, x, channels), (10, 21), method=method, **attrs))
        return conv(b, y, 16, 1)

    mod = graph(function, (2, 16, 5, 7))
    after = laid_out(mod)
    (call,) = calls(after, "image.resize2d")
    assert str(call.attrs.layout) == layout and str(call.attrs.method) == method
    assert len(moves(after)) == 2 and layouts(after)[0][1] == layout
    assert_same_as_plain_tvm(mod)


@given(st.data())
@examples(12)
def test_tables_give_the_numbers_of_tvm(data: st.DataObject) -> None:
    draw = data.draw
    height, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    mode = draw(st.sampled_from(MODES))
    # TVM divides by the distance of the corners.
    least = 2 if mode == "align_corners" else 1
    size = draw(st.integers(least, 40)), draw(st.integers(least, 40))
    mod = resized((2, 3, height, width), size, coordinate_transformation_mode=mode)
    assert_same_as_plain_tvm(mod, threads=draw(st.integers(1, 2)))


@pytest.mark.parametrize("method", ["linear", "nearest_neighbor", "cubic"])
def test_a_region_alone(method: str) -> None:
    attrs = {"method": method, "rounding_method": "floor", "extrapolation_value": 2.0}
    mode, roi = "tf_crop_and_resize", (-0.1, 0.1, 0.9, 1.2)
    mod = resized((2, 3, 6, 7), (8, 9), roi=roi, coordinate_transformation_mode=mode, **attrs)
    assert_same_as_plain_tvm(mod)


def test_larger_images_have_two_functions() -> None:
    assert legal(resized((1, 3, 20, 20), (40, 40))) == ["resize_along_rows", "resize_between_rows"]


@pytest.mark.parametrize(
    ("layout", "size", "mode"),
    crossed(
        ["NCHW", "NHWC", BLOCKED],
        [(9, 7), (5, 20), (2, 7), (5, 3), (5, 7)],
        MODES,
    ),
)
def test_one_axis_alone_in_any_layout(layout: str, size: tuple[int, int], mode: str) -> None:
    channels = 32 if layout == BLOCKED else 24

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = conv(b, x, channels) if layout != "NCHW" else x
        attrs = {"method": "linear", "coordinate_transformation_mode": mode}
        y = b.emit(op.image.resize2d(y, size, **attrs))
        return conv(b, y, 16, 1) if layout != "NCHW" else y

    mod = graph(function, (2, 16, 5, 7))
    (call,) = calls(laid_out(mod), "image.resize2d")
    assert str(call.attrs.layout) == layout
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_one_axis_alone_has_one_function(layout: str) -> None:
    shape = (1, 20, 20, 4)
    rows, columns = ((20, 8), (40, 4)) if layout == "NCHW" else ((20, 40), (40, 20))
    assert legal(resized(shape, rows, layout=layout)) == ["resize_along_rows"]
    assert legal(resized(shape, columns, layout=layout)) == ["resize_between_rows"]


@pytest.mark.parametrize(
    ("size", "attrs"),
    [
        ((10, 10), {}),
        ((40, 40), {"method": "cubic"}),
        ((40, 40), {"method": "nearest_neighbor", "rounding_method": "floor"}),
        ((40, 40), {"layout": "NHWC"}),
    ],
    ids=["many rows", "cubic", "nearest", "NHWC"],
)
def test_others_are_left_to_tvm(size: tuple[int, int], attrs: dict[str, object]) -> None:
    assert legal(resized((1, 20, 20, 20), size, **attrs)) == ["resize2d"]


def test_sizes_that_stay_open_have_no_tables() -> None:
    assert legal(resized((1, 3, 20, 20), (40, 40)), is_for_many=True) == ["resize2d"]


def test_numbers_that_are_not_finite_go_as_far_as_in_tvm() -> None:
    x = np.ones((1, 1, 4, 5), np.float32)
    x[0, 0, 1, 2], x[0, 0, 3, 0] = np.inf, np.nan
    mod = resized(x.shape, (8, 10))
    (plain,) = execute(tvm.compile(mod, tvm.target.Target("llvm")), [x])
    np.testing.assert_array_equal(run(mod, x), plain)


def test_what_follows_is_fused() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(op.image.resize2d(x, (40, 40)))
        return op.nn.relu(y)

    mod = graph(function, (1, 3, 20, 20))
    assert operators(mod)["nn.relu"] == 1
    assert_same_as_plain_tvm(mod)
