"""Signals, volumes, transposed and grouped convolutions: right results, and computed by us."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from relax_graphs import calls, graph, operators, random
from single_layers import Layer, compiled_and_checked, implementations
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.phases import PhasedAxis
from tvm_blislike.tvm_seams import static_shape

NATIVE = native_core()
AVX512 = Core.named("sapphirerapids")

MOST_MACS = 3_000_000


@st.composite
def layers(draw: st.DrawFn, operator: str, rank: int) -> Layer:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    channels = st.sampled_from([1, 2, 3, 4, 8, 12, 16, 20, 32])
    ci, co = groups * draw(channels), groups * draw(channels)
    largest = {1: 40, 2: 12, 3: 6}[rank]
    kernel, stride, dilation = each(1, 5 if rank < 3 else 3), each(1, 3), each(1, 2)
    size, pads = each(1, largest), each(0, 3) + each(0, 3)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = [pads[i] + pads[i + rank] for i in range(rank)]
    out_pad: tuple[int, ...] = ()
    if operator == "Conv":
        assume(all(s + p >= r for s, p, r in zip(size, padding, reach, strict=True)))
    else:
        out_pad = tuple(draw(st.integers(0, s - 1)) for s in stride)
        sizes = zip(size, stride, reach, padding, out_pad, strict=True)
        assume(all((n - 1) * s + r - p + o >= 1 for n, s, r, p, o in sizes))
    assume(np.prod(size) * np.prod(kernel) * ci * co // groups <= MOST_MACS)
    return Layer(
        operator,
        ci,
        co,
        size,
        kernel,
        stride,
        pads,
        dilation,
        out_pad,
        groups,
        batch=draw(st.sampled_from([1, 1, 2])),
        constant=draw(st.sampled_from([True, True, False])),
        relu=draw(st.booleans()),
    )


@pytest.mark.parametrize("rank", [1, 3])
def test_convolutions_of_signals_and_volumes(rank: int) -> None:
    @examples(12)
    @given(layers("Conv", rank), st.sampled_from([1, 2]))
    def check(layer: Layer, threads: int) -> None:
        assert implementations(compiled_and_checked(layer, threads))

    check()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_transposed_convolutions(rank: int) -> None:
    @examples(12)
    @given(layers("ConvTranspose", rank), st.sampled_from([1, 2]))
    def check(layer: Layer, threads: int) -> None:
        assert implementations(compiled_and_checked(layer, threads))

    check()


@given(
    size=st.integers(1, 9),
    kernel=st.integers(1, 7),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    padding=st.integers(0, 6),
    extra=st.integers(0, 5),
)
def test_phases_meet_each_product_once(
    size: int, kernel: int, stride: int, dilation: int, padding: int, extra: int
) -> None:
    out = (size - 1) * stride + (kernel - 1) * dilation + 1 - padding - extra
    assume(out >= 1)
    axis = PhasedAxis(size, out, kernel, stride, dilation, padding)
    products = {
        (o, i, k)
        for i in range(size)
        for k in range(kernel)
        if 0 <= (o := stride * i + dilation * k - padding) < out
    }
    alone = [range(u, u + 1) for u in range(stride)]
    assert set().union(*(met(axis, phases) for phases in alone)) == products
    assert met(axis.together(), range(stride)) == products


def met(axis: PhasedAxis, phases: range) -> set[tuple[int, int, int]]:
    """(output, input, kernel element) of all products that the table of some phases names."""
    first, _ = axis.union(phases)
    step = axis.dilation if axis.stride == 1 else 1
    table = axis.table(phases)
    assert table.shape == (len(phases), axis.elements(phases))
    found = [
        (axis.stride * t + phase - axis.skip, t + first + step * number, int(k))
        for phase, row in zip(phases, table, strict=True)
        for number, k in enumerate(row)
        for t in range(axis.count)
    ]
    wanted = [
        (o, i, k)
        for o, i, k in found
        if k < axis.kernel and 0 <= i < axis.size and 0 <= o < axis.out
    ]
    assert len(wanted) == len(set(wanted))
    return set(wanted)


def transposed(
    channels: int, kernel: int, core: Core = AVX512, dtype: str = "float32", **attributes: object
) -> dict[str, int]:
    """Operators that a transposed convolution of 32 channels becomes, and its multiplications."""

    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        weights = relax.const(random(32, channels, kernel, kernel).astype(dtype))
        return op.nn.conv2d_transpose(op.astype(x, dtype), weights, **attributes)

    mod = Canonicalize(core)(graph(function, (1, 32, 8, 8)))
    counts = dict(operators(mod))
    counts.pop("astype", None)
    macs = 0
    for call in calls(mod, "nn.conv2d"):
        co, ci, kh, kw = static_shape(call.args[1])
        macs += np.prod(static_shape(call)[2:]) * co * ci * kh * kw
    return {**counts, "macs": int(macs)}


def test_equal_windows_are_one_convolution() -> None:
    found = transposed(16, 2, strides=2)
    assert found == {"nn.conv2d": 1, "layout_transform": 1, "macs": 64 * 32 * 16 * 4}


def test_shifted_windows_are_one_convolution() -> None:
    found = transposed(1, 4, strides=2, padding=1)
    # One row and column of outputs more than there are inputs.
    assert found == {
        "nn.conv2d": 1,
        "layout_transform": 1,
        "strided_slice": 1,
        "macs": 81 * 32 * 16,
    }


def test_windows_of_different_size_stay_apart() -> None:
    found = transposed(64, 3, strides=2, padding=1, output_padding=1)
    assert found == {
        "nn.conv2d": 4,
        "concat": 1,
        "layout_transform": 1,
        "macs": 64 * 32 * 64 * 9,
    }


@pytest.mark.parametrize(
    ("core", "dtype", "convolutions"),
    [
        # 4 x 3 channels: one vector instead of four, and 16 products instead of 9.
        ("sapphirerapids", "float32", 1),
        ("neoverse-n1", "float16", 1),
        # 12 channels are three vectors of four.
        ("neoverse-n1", "float32", 4),
    ],
)
def test_few_channels_fill_vectors_together(core: str, dtype: str, convolutions: int) -> None:
    found = transposed(3, 3, Core.named(core), dtype, strides=2, padding=1, output_padding=1)
    assert found["nn.conv2d"] == convolutions


def test_stride_1_is_one_convolution_without_interleave() -> None:
    assert transposed(16, 3, padding=1) == {"nn.conv2d": 1, "macs": 64 * 32 * 16 * 9}


def test_a_chain_of_signals_stays_in_one_form() -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = x
        for _ in range(3):
            y = builder.emit(op.nn.conv1d(y, relax.const(random(16, 16, 3)), padding=1))
            y = builder.emit(op.add(y, relax.const(random(1, 16, 1))))
            y = builder.emit(op.nn.relu(y))
        return op.add(y, x)

    found = operators(Canonicalize(NATIVE)(graph(function, (1, 16, 50))))
    assert found == {"nn.conv2d": 3, "add": 4, "nn.relu": 3, "reshape": 2}


def test_a_chain_of_volumes_stays_in_one_form() -> None:
    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = x
        for _ in range(3):
            y = builder.emit(
                op.nn.conv3d(y, relax.const(random(16, 16, 1, 3, 3)), padding=[0, 1, 1])
            )
            y = builder.emit(
                op.nn.relu(builder.emit(op.add(y, relax.const(random(1, 16, 1, 1, 1)))))
            )
        return y

    found = operators(Canonicalize(NATIVE)(graph(function, (1, 16, 4, 7, 7))))
    expected = {"nn.conv2d": 3, "add": 3, "nn.relu": 3, "reshape": 2, "permute_dims": 2}
    assert found == expected


@pytest.mark.parametrize("rank", [1, 3])
def test_batch_normalization_folds_into_the_weights(rank: int) -> None:
    size, kernel = (6,) * rank, (3,) * rank

    def function(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        convolution = op.nn.conv1d if rank == 1 else op.nn.conv3d
        y = builder.emit(convolution(x, relax.const(random(16, 8, *kernel))))
        parameters = [relax.const(np.abs(random(16)) + 1) for _ in range(4)]
        y = builder.emit(op.nn.batch_norm(y, *parameters, axis=1, training=False))
        return relax.TupleGetItem(y, 0)

    found = operators(Canonicalize(NATIVE)(graph(function, (1, 8, *size))))
    assert found["nn.conv2d"] == 1
    assert found["add"] == 1
    assert found["multiply"] == 0
