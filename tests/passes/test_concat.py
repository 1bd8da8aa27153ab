"""Concatenation: which copies are left, and that every form of it computes the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import tvm
from relax_graphs import assert_same_as_plain_tvm, conv, graph, random
from tvm import relax, tirx
from tvm.relax import op

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.passes.concat import lower_concat
from tvm_blislike.pipeline import compile_module

Builder = relax.BlockBuilder
pointwise = partial(conv, k=1)


def concat(builder: Builder, *parts: relax.Expr, axis: int = 1) -> relax.Var:
    return builder.emit(op.concat(list(parts), axis))


def copies(mod: tvm.IRModule) -> Counter[str]:
    """Kernels that only move data, on a machine of 16 lanes."""
    report = compile_module(mod, Strategy(Core.named("skylake-avx512"), 1))[1]
    names = [layer.name.rstrip("0123456789") for layer in report.layers]
    return Counter(name for name in names if "conv2d" not in name)


def branches(b: Builder, x: relax.Var) -> relax.Var:
    """Two branches and what they come from."""
    x = pointwise(b, x, 32)
    return pointwise(b, concat(b, pointwise(b, x, 48), conv(b, x, 16)), 32)


def nested(b: Builder, x: relax.Var) -> relax.Var:
    """Each result is a part of the next and read by a convolution as well."""
    x = pointwise(b, x, 16)
    for _ in range(3):
        x = concat(b, x, conv(b, pointwise(b, x, 32), 16))
    return pointwise(b, x, 16)


def twice(b: Builder, x: relax.Var) -> relax.Var:
    """One part in two results, and in one of them two times."""
    x, y = pointwise(b, x, 16), pointwise(b, x, 32)
    return pointwise(b, concat(b, x, y, x), 16), pointwise(b, concat(b, y, x), 16)


def returned(b: Builder, x: relax.Var) -> tuple[relax.Var, relax.Var]:
    """A part and the whole are results of the model."""
    x, y = pointwise(b, x, 16), pointwise(b, x, 32)
    return y, concat(b, x, y)


def given(b: Builder, x: relax.Var) -> relax.Var:
    """An argument and a constant beside what is computed."""
    return concat(b, x, pointwise(b, x, 16), relax.const(random(int(x.ty.shape[0]), 16, 6, 5)))


def pooled(b: Builder, x: relax.Var) -> relax.Var:
    """Kernels that are no convolution write their part, too."""
    y = b.emit(op.nn.max_pool2d(x, (3, 3), padding=(1, 1)))
    return pointwise(b, concat(b, pointwise(b, y, 32), b.emit(op.nn.relu(y)), y), 16)


def flat(b: Builder, x: relax.Var) -> relax.Var:
    """Vectors behind a reshape."""
    means = [b.emit(op.mean(pointwise(b, x, c), [2, 3], keepdims=True)) for c in (32, 16)]
    return concat(b, *(b.emit(op.squeeze(m, [2, 3])) for m in means))


def batch(b: Builder, x: relax.Var) -> relax.Var:
    """Images, each computed on its own, that go on as a batch."""
    images = [pointwise(b, x, 32), conv(b, x, 32)]
    return pointwise(b, concat(b, *images, axis=0), 16)


GRAPHS = (branches, nested, twice, returned, given, pooled, flat, batch)


@pytest.mark.parametrize("function", GRAPHS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("batch", [1, 2])
def test_results_are_the_same(function: Callable[..., relax.Expr], batch: int) -> None:
    assert_same_as_plain_tvm(graph(function, (batch, 16, 6, 5)), threads=2)


@pytest.mark.parametrize("channels", [3, 24, 57])
def test_channels_that_fill_no_vectors(channels: int) -> None:
    def network(b: Builder, x: relax.Var) -> relax.Var:
        return pointwise(
            b, concat(b, pointwise(b, x, channels), pointwise(b, x, 24), pointwise(b, x, 32)), 16
        )

    assert_same_as_plain_tvm(graph(network, (1, 16, 7, 5)))


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_along_any_axis(axis: int) -> None:
    def network(b: Builder, x: relax.Var, y: relax.Var) -> relax.Var:
        return concat(b, b.emit(op.nn.relu(x)), b.emit(op.exp(y)), axis=axis)

    assert_same_as_plain_tvm(graph(network, (1, 16, 4, 16), (1, 16, 4, 16)))


@pytest.mark.parametrize("function", [branches, nested, batch])
def test_parts_are_computed_in_place(function: Callable[..., relax.Expr]) -> None:
    left = copies(graph(function, (1, 16, 6, 5)))
    assert not left - Counter(te_layout_transform=2), left


def test_parts_of_a_batch_may_be_batches() -> None:
    left = copies(graph(batch, (3, 16, 6, 5)))
    assert not left - Counter(te_layout_transform=2), left


def test_a_part_of_several_results_is_copied_to_the_others() -> None:
    left = copies(graph(twice, (1, 16, 6, 5)))
    # x and y can lie in one result only, and there once.
    assert left["copy"] == 3
    assert left["concatenate"] == 0


def test_images_of_a_batch_are_concatenated_by_a_kernel() -> None:
    assert copies(graph(branches, (2, 16, 6, 5)))["concatenate"] == 1


def test_parts_of_unknown_sizes_are_left_to_a_kernel() -> None:
    rows = relax.Var("x", relax.TensorType((1, tirx.Var("n", "int64")), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [rows]):
        joined = builder.emit(op.concat([rows, rows], 1))
        assert lower_concat(builder, builder.lookup_binding(joined)) is None
        builder.emit_func_output(joined)


def test_arguments_and_constants_are_copied_into_place() -> None:
    left = copies(graph(given, (1, 16, 6, 5)))
    assert left["concatenate"] == 0
    assert left["copy"] == 2
