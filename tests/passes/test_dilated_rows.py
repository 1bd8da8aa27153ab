"""Dilated signals as images with rows as long as the dilation: the same numbers, where it pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from relax_graphs import assert_same_as_plain_tvm, calls, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload, Workload
from tvm_blislike.operators import operator_of
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.dilated_rows import DilatedRows
from tvm_blislike.tvm_seams import static_shape

ZEN4 = Core.named("zen4")


def signal(length: int, taps: int, dilation: int, before: int, after: int) -> Conv2dWorkload:
    padding = (before, 0, after, 0)
    return Conv2dWorkload(1, 3, length, 1, 5, taps, 1, padding=padding, dilation=(dilation, 1))


def gapless_is_sooner(layer: Workload) -> float:
    """Predict that any layer with gaps between its taps takes long."""
    return 1.0 if max(layer.dilation) > 1 else 0.1


def gapless_is_slower(layer: Workload) -> float:
    return 0.1 if max(layer.dilation) > 1 else 1.0


def canonical(mod: tvm.IRModule, seconds: object = gapless_is_sooner) -> tvm.IRModule:
    return Canonicalize(ZEN4, seconds=seconds)(mod)


def dilated(
    b: relax.BlockBuilder, x: relax.Expr, co: int, dilation: int, padding: int
) -> relax.Var:
    ci = static_shape(x)[1]
    weights = random(co, ci, 3) / np.float32(np.sqrt(3 * ci))
    return b.emit(op.nn.conv1d(x, relax.const(weights), dilation=dilation, padding=padding))


@given(st.data())
@examples(40)
def test_the_image_has_the_elements_of_the_signal(data: st.DataObject) -> None:
    """By the references of both layers, which compute each element by itself."""
    draw = data.draw
    dilation, taps = draw(st.integers(2, 9)), draw(st.integers(2, 5))
    length = draw(st.integers(1, 60))
    before, after = dilation * draw(st.integers(0, 4)), draw(st.integers(0, 40))
    if length + before + after <= dilation * (taps - 1):
        return
    layer = signal(length, taps, dilation, before, after)
    rows = DilatedRows.of(layer)
    assert rows is not None
    x, weights = operator_of(layer).random(layer)
    expected = operator_of(layer).reference(layer, x, weights)
    filled = np.pad(x, ((0, 0), (0, 0), (0, rows.added), (0, 0)))
    image = rows.layer(layer)
    made = operator_of(image).reference(image, filled.reshape(image.images[0]), weights)
    column = made.reshape(1, layer.co, -1, 1)[:, :, : layer.oh]
    assert made.size // layer.co - rows.left == layer.oh
    np.testing.assert_array_equal(column, expected)


@pytest.mark.parametrize(
    "change",
    [
        {"dilation": (1, 1)},
        {"padding": (3, 0, 3, 0)},
        {"stride": (2, 1)},
        {"groups": 3, "co": 3},
        {"w": 2},
        {"padding": (2, 1, 2, 1), "w": 1},
    ],
    ids=["no gaps", "padding between rows", "stride", "depthwise", "image", "beside"],
)
def test_others_have_no_such_image(change: dict[str, object]) -> None:
    assert DilatedRows.of(replace(signal(40, 3, 2, 2, 2), **change)) is None


def network(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Residual blocks of growing dilation, causal ones of a length that not all divide."""
    x = dilated(b, x, 32, 1, 1)
    for dilation in (2, 4, 8):
        bias = relax.const(random(32, 1))
        y = b.emit(op.nn.relu(b.emit(op.add(dilated(b, x, 32, dilation, dilation), bias))))
        x = b.emit(op.add(x, y))
    return x


@pytest.mark.parametrize("length", [64, 52, 37])
def test_networks_compute_the_same(length: int) -> None:
    mod = graph(network, (2, 16, length))
    convolutions = calls(canonical(mod), "nn.conv2d")
    widths = [static_shape(call)[3] for call in convolutions]
    assert widths == [1, 2, 4, 8]
    assert all(int(d) == 1 for call in convolutions for d in call.attrs.dilation)
    kinds = operators(canonical(mod))
    assert kinds["nn.pad"] == sum(length % d != 0 for d in (2, 4, 8))
    assert_same_as_plain_tvm(mod)
    assert_same_as_plain_tvm(mod, threads=2)


def test_residuals_end_in_the_layer_that_was_computed_last() -> None:
    """So that they are added in its epilogue; of the other operand a view is read."""
    after = canonical(graph(network, (1, 16, 64)))
    for call in calls(after, "nn.conv2d")[1:]:
        assert static_shape(call)[2] * static_shape(call)[3] == 64
    sums = [static_shape(call) for call in calls(after, "add")]
    assert sums == [(1, 32, 64 // d, d) for d in (2, 4, 8) for _ in range(2)]


def test_slower_images_are_not_made() -> None:
    mod = graph(network, (1, 16, 64))
    for seconds in (gapless_is_slower, None, lambda _layer: None):
        widths = {static_shape(call)[3] for call in calls(canonical(mod, seconds), "nn.conv2d")}
        assert widths == {1}


def test_lengths_that_stay_open_have_no_such_image() -> None:
    mod = graph(network, (1, 16, 64))
    after = Canonicalize(ZEN4, is_for_many=True, seconds=gapless_is_sooner)(mod)
    assert {static_shape(call)[3] for call in calls(after, "nn.conv2d")} == {1}


def test_constants_along_a_signal_take_its_form() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = dilated(b, x, 32, 4, 4)
        y = b.emit(op.add(y, relax.const(random(1, 1, 40))))
        y = b.emit(op.multiply(y, relax.const(random(32, 40))))
        return dilated(b, b.emit(op.maximum(y, relax.const(random(32, 1)))), 16, 2, 2)

    mod = graph(function, (1, 16, 40))
    assert [static_shape(call)[3] for call in calls(canonical(mod), "nn.conv2d")] == [4, 2]
    assert_same_as_plain_tvm(mod)


def test_channels_are_split_in_any_form() -> None:
    def gated(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        both = dilated(b, x, 64, 4, 4)
        parts = b.emit(op.split(both, 2, axis=1))
        one = b.emit(op.tanh(b.emit(parts[0])))
        other = b.emit(op.sigmoid(b.emit(op.strided_slice(both, [1], [32], [64]))))
        return dilated(b, b.emit(op.multiply(one, other)), 32, 2, 2)

    mod = graph(gated, (1, 32, 40))
    after = canonical(mod)
    assert operators(after)["split"] == 0 and operators(after)["reshape"] <= 3
    assert_same_as_plain_tvm(mod)
