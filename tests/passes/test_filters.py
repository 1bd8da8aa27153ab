"""Filters of few results: outputs in a row as channels, the same numbers, where it pays."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from relax_graphs import assert_same_as_plain_tvm, calls, graph, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import Core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.tvm_seams import constant_array, static_shape

ZEN4 = Core.named("zen4")
# Of a resampler from 24 to 8 kHz.
RESAMPLER = ((1, 1, 1, 3000), (1, 1, 1, 41), {"strides": (1, 3), "padding": (0, 19, 0, 22)})


def filtered(
    shape: tuple[int, ...], weights: tuple[int, ...], attrs: dict[str, object]
) -> tvm.IRModule:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        made = b.emit(op.nn.conv2d(x, relax.const(random(*weights)), **attrs))
        return op.nn.relu(made)

    return graph(function, shape)


def kernel_of(mod: tvm.IRModule, core: Core = ZEN4) -> tuple[tuple[int, ...], list[int]]:
    """Return the kernel and strides of the only convolution behind the rewrites."""
    (conv,) = calls(Canonicalize(core)(mod), "nn.conv2d")
    return static_shape(conv.args[1]), [int(stride) for stride in conv.attrs.strides]


def test_outputs_of_a_resampler_become_channels() -> None:
    mod = filtered(*RESAMPLER)
    kernel, strides = kernel_of(mod)
    count = kernel[0]
    assert count % 16 == 0 and kernel == (count, 1, 1, 41 + (count - 1) * 3)
    assert strides == [1, 3 * count]
    (conv,) = calls(Canonicalize(ZEN4)(mod), "nn.conv2d")
    weights = constant_array(conv.args[1])
    assert np.count_nonzero(weights) == count * 41
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(
    ("shape", "weights", "attrs"),
    [
        # Channels enough for a vector.
        ((1, 1, 1, 3000), (16, 1, 1, 41), {}),
        # Few taps beside the stride: as many would be zeros.
        ((1, 1, 1, 30000), (4, 1, 1, 5), {"strides": (1, 40)}),
        # Too few outputs, two axes, several input channels, gaps, rows of padding.
        ((1, 1, 1, 60), (1, 1, 1, 41), {}),
        ((1, 1, 40, 40), (1, 1, 3, 3), {}),
        ((1, 2, 1, 3000), (1, 2, 1, 41), {}),
        ((1, 1, 1, 3000), (1, 1, 1, 41), {"dilation": (1, 2)}),
        ((1, 1, 1, 3000), (1, 1, 1, 41), {"padding": (1, 0, 0, 0)}),
    ],
)
def test_others_stay(
    shape: tuple[int, ...], weights: tuple[int, ...], attrs: dict[str, object]
) -> None:
    assert kernel_of(filtered(shape, weights, attrs))[0] == weights


@given(st.data())
@examples(6)
def test_any_filter_computes_the_same(data: st.DataObject) -> None:
    draw = data.draw
    taps, stride, channels = (
        draw(st.integers(2, 60)),
        draw(st.integers(1, 7)),
        draw(st.integers(1, 4)),
    )
    before, behind = (draw(st.integers(0, taps - 1)) for _ in range(2))
    size, across, images = (
        draw(st.integers(200, 900)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
    )
    along_rows = draw(st.booleans())

    def placed(along: int, other: int) -> tuple[int, int]:
        return (other, along) if along_rows else (along, other)

    attrs = {
        "strides": placed(stride, draw(st.integers(1, 2))),
        "padding": (*placed(before, 0), *placed(behind, 0)),
    }
    shape = (images, 1, *placed(size, across))
    assert_same_as_plain_tvm(filtered(shape, (channels, 1, *placed(taps, 1)), attrs))
