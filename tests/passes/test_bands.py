"""Taps of dilated convolutions that lie on padding are left out: fewer products, same sums."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from laid_out import laid_out
from relax_graphs import assert_same_as_plain_tvm, calls, conv, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import Core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.tvm_seams import constant_array, static_shape

ZEN4 = Core.named("zen4")


def dilated(shape: tuple[int, ...], weights: tuple[int, ...], **attrs: object) -> tvm.IRModule:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        values = random(*weights) / np.float32(np.sqrt(np.prod(weights[1:])))
        made = b.emit(op.nn.conv2d(x, relax.const(values), **attrs))
        return op.nn.relu(made)

    return graph(function, shape)


def kernels(mod: tvm.IRModule) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return each convolution's kernel and its result's pixels behind the rewrites."""
    found = calls(Canonicalize(ZEN4)(mod), "nn.conv2d")
    return [(static_shape(c.args[1])[2:], static_shape(c)[2:]) for c in found]


def products(mod: tvm.IRModule) -> int:
    return sum(int(np.prod(kernel) * np.prod(pixels)) for kernel, pixels in kernels(mod))


def aspp(size: int, rate: int) -> tvm.IRModule:
    attrs = {"padding": rate, "dilation": rate}
    return dilated((1, 96, size, size), (32, 96, 3, 3), **attrs)


@pytest.mark.parametrize("rate", [24, 36])
def test_one_tap_of_nine_is_a_1x1_convolution(rate: int) -> None:
    mod = aspp(20, rate)
    (only,) = calls(Canonicalize(ZEN4)(mod), "nn.conv2d")
    assert kernels(mod) == [((1, 1), (20, 20))]
    assert [int(v) for v in (*only.attrs.padding, *only.attrs.dilation)] == [0, 0, 0, 0, 1, 1]
    assert_same_as_plain_tvm(mod)


def test_bands_have_the_taps_that_their_outputs_reach() -> None:
    mod = aspp(20, 12)
    assert sorted(set(kernels(mod))) == [
        ((1, 1), (4, 4)),
        ((1, 2), (4, 8)),
        ((2, 1), (8, 4)),
        ((2, 2), (8, 8)),
    ]
    assert len(kernels(mod)) == 9 and products(mod) == 36**2
    assert_same_as_plain_tvm(mod)


def test_bands_lie_beside_each_other_where_the_image_lies() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = conv(b, x, 64, 1)
        wide = random(64, 64, 3, 3) / np.float32(24)
        y = b.emit(op.nn.conv2d(y, relax.const(wide), padding=12, dilation=12))
        return conv(b, op.nn.relu(y), 32, 1)

    mod = graph(function, (1, 32, 20, 20))
    after = laid_out(mod)
    kinds = operators(after)
    assert kinds["concat"] == 4 and kinds["layout_transform"] == 2
    assert_same_as_plain_tvm(mod, threads=2)


@pytest.mark.parametrize(
    ("size", "rate"), [(65, 12), (20, 2), (20, 1)], ids=["most are reached", "all", "not dilated"]
)
def test_others_stay(size: int, rate: int) -> None:
    assert kernels(aspp(size, rate)) == [((3, 3), (size, size))]


def test_few_channels_stay_whole() -> None:
    """What is copied would take as long as what is saved."""
    mod = dilated((1, 4, 20, 20), (4, 4, 3, 3), padding=12, dilation=12)
    assert kernels(mod) == [((3, 3), (20, 20))]


def test_outputs_of_padding_alone_stay() -> None:
    mod = dilated((1, 96, 8, 8), (32, 96, 3, 3), padding=(30, 30), dilation=4)
    assert kernels(mod)[0][0] == (3, 3)
    assert_same_as_plain_tvm(mod)


def test_smaller_images_have_other_bands_and_pixels_that_are_read() -> None:
    def kept(mod: tvm.IRModule) -> tuple[int, ...]:
        (only,) = calls(Canonicalize(ZEN4, is_for_many=True)(mod), "nn.conv2d")
        return static_shape(only.args[1])[2:]

    assert kept(aspp(20, 12)) == (3, 3)
    assert kept(aspp(20, 24)) == (1, 1)
    # Outputs two apart leave the last row of 20 out, not that of 19.
    strided = {"padding": 24, "dilation": 24, "strides": 2}
    assert kept(dilated((1, 96, 20, 20), (32, 96, 3, 3), **strided)) == (3, 3)


def test_depthwise_of_one_tap_that_is_reached() -> None:
    mod = dilated((1, 32, 9, 9), (32, 1, 3, 3), padding=9, dilation=9, groups=32)
    assert kernels(mod) == [((1, 1), (9, 9))]
    assert_same_as_plain_tvm(mod)


def test_weights_are_those_of_the_taps() -> None:
    mod = dilated((1, 96, 5, 40), (32, 96, 3, 3), padding=(5, 1), dilation=(5, 1))
    (before,) = calls(mod, "nn.conv2d")
    (after,) = calls(Canonicalize(ZEN4)(mod), "nn.conv2d")
    expected = constant_array(before.args[1])[:, :, 1:2]
    np.testing.assert_array_equal(constant_array(after.args[1]), expected)


@given(st.data())
@examples(8)
def test_any_dilated_convolution_computes_the_same(data: st.DataObject) -> None:
    draw = data.draw
    along = [
        {
            "size": draw(st.integers(1, 24)),
            "taps": draw(st.integers(1, 4)),
            "strides": draw(st.integers(1, 3)),
            "dilation": draw(st.integers(1, 15)),
            "before": draw(st.integers(0, 30)),
            "behind": draw(st.integers(0, 30)),
        }
        for _ in range(2)
    ]
    reach = [a["size"] + a["before"] + a["behind"] - (a["taps"] - 1) * a["dilation"] for a in along]
    if min(reach) < 1:
        return
    ci, co = draw(st.sampled_from([(3, 5), (64, 48)]))
    padding = tuple(a[side] for side in ("before", "behind") for a in along)
    strides, dilation = (tuple(a[name] for a in along) for name in ("strides", "dilation"))
    sizes, taps = ([a[name] for a in along] for name in ("size", "taps"))
    mod = dilated(
        (1, ci, *sizes), (co, ci, *taps), padding=padding, strides=strides, dilation=dilation
    )
    assert products(mod) <= np.prod([*taps, *static_shape(mod["main"].body)[2:]])
    assert_same_as_plain_tvm(mod)
