"""Permutations meet their inverses behind what lies between; repetitions are computed once."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from relax_graphs import assert_same_as_plain_tvm, calls, conv, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.permutations import permutations
from tvm_blislike.tvm_seams import constant, static_shape

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
SHAPE = (2, 6, 5, 4)

Between = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]


def number(*shape: int) -> relax.Constant:
    return relax.const(1 + np.abs(random(*shape)))


def between(function: Between, shape: tuple[int, ...] = SHAPE) -> tvm.IRModule:
    """Return a permutation, something of channels that lie last, and the way back."""

    def body(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        made = b.emit(function(b, b.emit(op.permute_dims(x, LAST))))
        return b.emit(op.permute_dims(made, FIRST))

    return graph(body, shape)


def permuted(mod: tvm.IRModule) -> int:
    """How many permutations are left."""
    return operators(permutations(mod))["permute_dims"]


FOLLOWING: dict[str, Between] = {
    "activation": lambda b, x: op.nn.relu(x),
    "number": lambda b, x: op.add(x, relax.const(2.0, "float32")),
    "number of one axis": lambda b, x: op.subtract(number(1), x),
    "channels": lambda b, x: op.multiply(x, number(6)),
    "columns and channels": lambda b, x: op.divide(x, number(4, 6)),
    "image": lambda b, x: op.maximum(x, number(1, 5, 4, 6)),
    "rows": lambda b, x: op.minimum(number(5, 1, 1), x),
    "itself": lambda b, x: op.multiply(x, b.emit(op.sigmoid(x))),
    "mean of pixels": lambda b, x: op.subtract(x, b.emit(op.mean(x, [1, 2], keepdims=True))),
    "largest channel": lambda b, x: op.subtract(x, b.emit(op.max(x, -1, keepdims=True))),
    "zeros": lambda b, x: op.nn.pad(x, [0, 0, 0, 1, 2, 3, 0, 0]),
    "more channels": lambda b, x: op.nn.pad(x, [1, 0, 0, 0, 0, 0, 2, 1], "constant", 3.0),
    "mirrored": lambda b, x: op.nn.pad(x, [0, 0, 2, 1, 1, 2, 0, 0], "reflect"),
    "slice": lambda b, x: op.strided_slice(x, [1, -1], [1, 0], [4, 5], [1, 2]),
    "joined": lambda b, x: op.concat([x, b.emit(op.exp(x))], -1),
    "joined rows": lambda b, x: op.concat([x, x], 1),
    "clipped": lambda b, x: op.clip(x, 0, 1),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_both_are_gone(name: str) -> None:
    mod = between(FOLLOWING[name])
    assert permuted(mod) == 0
    assert_same_as_plain_tvm(mod)


def test_steps_of_bytes() -> None:
    scales, zero = relax.const(np.linspace(0.02, 0.04, 6, dtype=np.float32)), np.zeros(6, np.int8)

    def steps(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        stored = b.emit(op.quantize(x, scales, constant(zero, "int8"), -1, "int8"))
        return op.dequantize(stored, scales, constant(zero, "int8"), 3, "float32")

    mod = between(steps)
    assert permuted(mod) == 0
    found = calls(permutations(mod), "quantize", "dequantize")
    assert [int(call.attrs.axis) for call in found] == [1, 1]
    assert_same_as_plain_tvm(mod)


def keras(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Channels last between convolutions, as TensorFlow's graphs have them."""
    made = b.emit(op.permute_dims(conv(b, x, 16), LAST))
    made = b.emit(op.nn.relu(b.emit(op.add(made, number(16)))))
    around = b.emit(op.nn.pad(made, [0, 0, 0, 1, 0, 1, 0, 0]))
    image = b.emit(op.permute_dims(around, FIRST))
    weights = relax.const(random(16, 1, 3, 3))
    made = b.emit(op.nn.conv2d(image, weights, strides=2, groups=16))
    made = b.emit(op.permute_dims(made, LAST))
    squeezed = b.emit(op.permute_dims(b.emit(op.mean(made, [1, 2], keepdims=True)), FIRST))
    excited = b.emit(op.permute_dims(conv(b, squeezed, 16, 1), LAST))
    scaled = b.emit(op.multiply(made, b.emit(op.sigmoid(excited))))
    last = conv(b, op.permute_dims(scaled, FIRST), 8, 1)
    return b.emit(op.mean(b.emit(op.permute_dims(last, LAST)), [1, 2]))


@pytest.mark.parametrize("threads", [1, 2])
def test_network(threads: int) -> None:
    mod = graph(keras, (1, 3, 15, 14))
    kinds = operators(Canonicalize(native_core())(mod))
    assert kinds["permute_dims"] == 0
    assert kinds["nn.pad"] == 0  # the second convolution's own
    assert_same_as_plain_tvm(mod, threads)


def test_volumes_and_signals() -> None:
    def volume(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        made = b.emit(op.add(b.emit(op.permute_dims(x, (0, 2, 3, 4, 1))), number(3)))
        return b.emit(op.permute_dims(made, (0, 4, 1, 2, 3)))

    def signal(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        made = b.emit(op.nn.relu(b.emit(op.permute_dims(x, (0, 2, 1)))))
        return b.emit(op.mean(made, 1))

    for mod in (graph(volume, (2, 3, 4, 5, 6)), graph(signal, (2, 3, 7))):
        assert permuted(mod) == 0
        assert_same_as_plain_tvm(mod)


def temporal(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Signals (n, w, c) as images of one row between convolutions, as Keras has them."""
    weights = [relax.const(random(8, ci, 1, 3)) for ci in (5, 8)]
    made, last = x, None
    for dilation, kernel in enumerate(weights, 1):
        around = b.emit(op.nn.pad(made, [0, 0, 2 * dilation, 0, 0, 0]))
        row = b.emit(op.permute_dims(b.emit(op.expand_dims(around, 1)), FIRST))
        made = b.emit(op.nn.conv2d(row, kernel, dilation=(1, dilation)))
        made = b.emit(op.squeeze(b.emit(op.permute_dims(made, LAST)), [-3]))
        made = b.emit(op.nn.relu(b.emit(op.add(made, number(8)))))
        made = made if last is None else b.emit(op.add(made, last))
        last = made
    return b.emit(op.mean(made, [1]))


def test_signals_in_rows() -> None:
    mod = graph(temporal, (2, 17, 5))
    kinds = operators(permutations(mod))
    # Of what the model takes, and of what it returns.
    assert (kinds["permute_dims"], kinds["expand_dims"], kinds["squeeze"]) == (1, 1, 0)
    assert kinds["reshape"] == 1
    assert_same_as_plain_tvm(mod)


def channels_first(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    """Signals (n, c, w) as images of one row, in which tf2onnx leaves them."""
    made = conv(b, x, 8, 1)
    signal = b.emit(op.nn.leakyrelu(b.emit(op.squeeze(made, [2]))))
    around = b.emit(op.nn.pad(b.emit(op.add(signal, number(8, 1))), [0, 0, 0, 0, 1, 2]))
    made = conv(b, b.emit(op.expand_dims(around, 2)), 4, 1)
    rows = b.emit(op.permute_dims(b.emit(op.squeeze(made, [2])), (0, 2, 1)))
    centered = b.emit(op.subtract(rows, b.emit(op.mean(rows, 2, keepdims=True))))
    made = conv(b, b.emit(op.permute_dims(b.emit(op.expand_dims(centered, 1)), FIRST)), 8, 1)
    return b.emit(op.mean(b.emit(op.nn.relu(b.emit(op.squeeze(made, [2])))), -1))


def test_rows_that_are_not_permuted() -> None:
    mod = graph(channels_first, (2, 3, 1, 17))
    kinds = operators(permutations(mod))
    assert not kinds["permute_dims"] + kinds["expand_dims"] + kinds["squeeze"]
    assert kinds["reshape"] == 1  # of what the model returns
    assert_same_as_plain_tvm(mod)


def test_what_reads_a_row_as_it_is() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        row = b.emit(op.permute_dims(x, LAST))
        signal = b.emit(op.exp(b.emit(op.squeeze(row, [1]))))
        mean = b.emit(op.mean(signal, -1, keepdims=True))
        few = b.emit(op.subtract(b.emit(op.subtract(signal, mean)), number(2, 1, 1)))
        back = b.emit(op.permute_dims(b.emit(op.expand_dims(few, 1)), FIRST))
        product = b.emit(op.matmul(signal, number(6, 3)))
        return back, product, b.emit(op.permute_dims(signal, (2, 0, 1))), few

    mod = graph(function, (2, 6, 1, 7))
    assert_same_as_plain_tvm(mod)
    assert operators(permutations(mod))["permute_dims"] == 3  # those of the last three


def test_three_make_one() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        made = b.emit(op.nn.relu(b.emit(op.permute_dims(x, LAST))))
        turned = b.emit(op.exp(b.emit(op.permute_dims(made, (1, 0, 2, 3)))))
        return b.emit(op.nn.relu(b.emit(op.permute_dims(made, FIRST)))), turned

    mod = graph(function, SHAPE)
    assert [
        tuple(map(int, call.attrs.axes)) for call in calls(permutations(mod), "permute_dims")
    ] == [(2, 0, 3, 1)]
    assert_same_as_plain_tvm(mod)


def test_others_get_what_they_read() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        made = b.emit(op.nn.relu(b.emit(op.permute_dims(x, LAST))))
        product = b.emit(op.matmul(made, number(6, 3)))
        rows = b.emit(op.reshape(made, (2 * 5 * 4, 6)))
        return b.emit(op.permute_dims(made, FIRST)), product, rows, made

    mod = graph(function, SHAPE)
    assert permuted(mod) == 1
    assert_same_as_plain_tvm(mod)


def test_nothing_is_permuted_that_was_not() -> None:
    """A second image that has its channels last would have to be permuted for the first."""

    def function(b: relax.BlockBuilder, x: relax.Var, y: relax.Var) -> relax.Expr:
        made = b.emit(op.add(b.emit(op.permute_dims(x, LAST)), b.emit(op.exp(y))))
        return b.emit(op.permute_dims(made, FIRST))

    mod = graph(function, SHAPE, (2, 5, 4, 6))
    assert permuted(mod) == 2
    assert_same_as_plain_tvm(mod)
    # Of one with fewer numbers than that costs nothing.
    few = graph(function, SHAPE, (1, 1, 1, 6))
    assert [static_shape(call) for call in calls(permutations(few), "permute_dims")] == [
        (1, 6, 1, 1)
    ]
    assert_same_as_plain_tvm(few)


@pytest.mark.parametrize("readers", ["none", "another order", "softmax"])
def test_others_stay(readers: str) -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        made = b.emit(op.nn.relu(b.emit(op.permute_dims(x, LAST))))
        if readers == "none":
            return made
        made = b.emit(op.nn.softmax(made)) if readers == "softmax" else made
        return b.emit(op.permute_dims(made, LAST if readers == "another order" else FIRST))

    mod = graph(function, SHAPE)
    assert operators(permutations(mod)) == operators(mod)
    assert_same_as_plain_tvm(mod)


@st.composite
def chains(draw: st.DrawFn) -> tvm.IRModule:
    """Return a random chain between a random permutation and its inverse, read in between."""
    rank = draw(st.integers(2, 5))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank)))
    axes = tuple(draw(st.permutations(range(rank))))
    steps = draw(st.lists(st.integers(0, 7), max_size=5))
    places = draw(st.lists(st.integers(0, rank - 1), min_size=5, max_size=5))
    read = draw(st.integers(0, 5))

    def apply(b: relax.BlockBuilder, x: relax.Var, step: int, axis: int) -> relax.Expr:
        sizes = static_shape(x)
        if step == 0:
            return op.nn.relu(x)
        if step == 1:
            return op.add(x, number(*(size if i >= axis else 1 for i, size in enumerate(sizes))))
        if step == 2:
            return op.multiply(x, number(*sizes[axis:]))
        if step == 3:
            return op.subtract(x, b.emit(op.mean(x, axis, keepdims=True)))
        if step == 4:
            widths = [int(i in (2 * axis, 2 * axis + 1)) for i in range(2 * rank)]
            return op.nn.pad(x, widths)
        if step == 7 and sizes[axis] == 1 and rank > 1:
            less = b.emit(op.nn.relu(b.emit(op.squeeze(x, [axis]))))
            more = b.emit(op.add(less, number(*static_shape(less)[-1:])))
            return op.expand_dims(more, axis)
        if step == 5:
            return op.strided_slice(x, [axis], [0], [max(1, sizes[axis] - 1)])
        return op.concat([x, b.emit(op.exp(op.negative(b.emit(op.abs(x)))))], axis)

    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        values = [b.emit(op.permute_dims(x, axes))]
        for step, axis in zip(steps, places, strict=False):
            values.append(b.emit(apply(b, values[-1], step, axis)))
        back = tuple(axes.index(axis) for axis in range(rank))
        return b.emit(op.permute_dims(values[-1], back)), values[min(read, len(values) - 1)]

    return graph(function, shape)


@examples(12)
@given(chains())
def test_any_chain(mod: tvm.IRModule) -> None:
    assert permuted(mod) <= 1  # of what is read as it is
    assert_same_as_plain_tvm(mod)


def test_what_is_written_twice_is_computed_once() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        kernels = [relax.const(w) for w in itertools.repeat(random(4, 3, 1, 1), 2)]
        made = [b.emit(op.nn.conv2d(b.emit(op.exp(x)), kernel)) for kernel in kernels]
        return b.emit(op.add(*made)), b.emit(op.nn.conv2d(b.emit(op.exp(x)), number(4, 3, 1, 1)))

    mod = graph(function, (1, 3, 5, 4))
    kinds = operators(Canonicalize(native_core())(mod))
    assert (kinds["exp"], kinds["nn.conv2d"]) == (1, 2)
    assert_same_as_plain_tvm(mod)
