"""Constants that broadcast in unusual ways behind convolutions: rank, shape and values stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from laid_out import laid_out, result_shapes
from relax_graphs import assert_same_as_plain_tvm, graph, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.tvm_seams import static_shape

CHANNELS = 16
SIZES = {1: (8,), 2: (5, 6), 3: (4, 5, 6)}
CONVOLUTIONS = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}
# Folded into the weights, or elementwise in the layout of the image.
OPERATORS = {
    "add": op.add,
    "multiply": op.multiply,
    "subtracted from": lambda y, c: op.subtract(c, y),
    "maximum": lambda y, c: op.maximum(op.nn.relu(y), c),
}


def behind_convolution(
    rank: int, shape: tuple[int, ...], operator: str, channels: int = CHANNELS, batch: int = 2
) -> tvm.IRModule:
    weights, constant = random(channels, 3, *(3,) * rank), np.abs(random(*shape)) + 1

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = b.emit(CONVOLUTIONS[rank](x, relax.const(weights), padding=1))
        return b.emit(op.nn.relu(b.emit(OPERATORS[operator](y, relax.const(constant)))))

    return graph(function, (batch, 3, *SIZES[rank]))


def shapes_of(rank: int) -> list[tuple[int, ...]]:
    """One number in any rank, and constants that differ along one or two axes, or add some."""
    full = (2, CHANNELS, *SIZES[rank])
    ones = [(1,) * axes for axes in range(rank + 5)]
    some = [
        tuple(size if axis in kept else 1 for axis, size in enumerate(full))
        for first in range(rank + 2)
        for kept in ({first}, {first, rank + 1}, {first, 1}, {first, 2})
    ]
    return [*ones, *dict.fromkeys(some), full, full[1:], full[2:], (3, *full), (3, *ones[rank + 2])]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("rank", SIZES)
def test_results_keep_their_shape(rank: int, operator: str) -> None:
    for shape in shapes_of(rank):
        mod = behind_convolution(rank, shape, operator)
        assert result_shapes(laid_out(mod)) == result_shapes(mod), shape


NUMBERS = [
    (2, (1, 1, 1, 1, 1), "add"),
    (2, (1, 1, 1, 1, 1), "multiply"),
    (2, (3, 1, 1, 1, 1), "add"),
    (1, (1, 1, 1, 1), "add"),
    (3, (1, 1, 1, 1, 1, 1), "multiply"),
    (3, (2, CHANNELS, 1, 1, 1), "add"),
    (3, (2, 1, 1, 5, 6), "maximum"),
    (3, (2, 1, 4, 1, 1), "maximum"),
    (3, (1, CHANNELS, 4, 1, 1), "add"),
]


@pytest.mark.parametrize("rank, shape, operator", NUMBERS, ids=str)
def test_results_keep_their_values(rank: int, shape: tuple[int, ...], operator: str) -> None:
    assert_same_as_plain_tvm(behind_convolution(rank, shape, operator))


@pytest.mark.parametrize("operator", ["add", "maximum"])
def test_one_channel_or_image_becomes_several(operator: str) -> None:
    assert_same_as_plain_tvm(behind_convolution(2, (1, 5, 1, 1), operator, channels=1))
    assert_same_as_plain_tvm(behind_convolution(2, (3, CHANNELS, 1, 1), operator, batch=1))


def test_parameters_of_more_axes_are_no_local_response_normalization() -> None:
    def parameter(value: float) -> relax.Expr:
        return relax.const(np.full((1,) * 5, value, "float32"))

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        squares = b.emit(op.expand_dims(b.emit(op.multiply(x, x)), axis=1))
        pool = op.nn.avg_pool3d(
            squares, (3, 1, 1), (1, 1, 1), [1, 0, 0, 1, 0, 0], count_include_pad=True
        )
        means = b.emit(op.squeeze(b.emit(pool), [1]))
        below = b.emit(op.add(b.emit(op.multiply(means, parameter(0.1))), parameter(1.0)))
        return op.divide(x, b.emit(op.power(below, parameter(0.75))))

    mod = graph(function, (1, 8, 5, 5))
    assert len(static_shape(mod["main"].body)) == 5
    assert_same_as_plain_tvm(mod)
