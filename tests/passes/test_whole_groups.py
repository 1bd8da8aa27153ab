"""Groups of zeros fill the last vector of grouped convolutions: the same numbers, where it pays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from relax_graphs import assert_same_as_plain_tvm, calls, conv, graph, operators, random
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Workload
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.tvm_seams import constant_array, static_shape

ZEN4 = Core.named("zen4")


def whole_is_sooner(layer: Workload) -> float:
    return 1e-3 if layer.ci % 16 == layer.co % 16 == 0 else 1.0


def canonical(
    mod: tvm.IRModule, seconds: Callable[[Workload], float | None] | None = whole_is_sooner
) -> tvm.IRModule:
    return Canonicalize(ZEN4, seconds=seconds)(mod)


def block(
    channels: int, groups: int, b: relax.BlockBuilder, x: relax.Var, bias: bool = True
) -> relax.Var:
    """A convolution of groups between two of 1x1, each with a bias and an activation."""
    y = conv(b, x, channels, 1)
    if bias:
        y = b.emit(op.add(y, relax.const(random(1, channels, 1, 1))))
    y = conv(b, b.emit(op.nn.relu(y)), channels, groups=groups)
    y = b.emit(op.sigmoid(b.emit(op.add(y, relax.const(random(channels, 1, 1))))))
    return conv(b, y, 16, 1)


def widths(mod: tvm.IRModule) -> list[tuple[int, int]]:
    """Channels of each convolution's data and result."""
    found = calls(mod, "nn.conv2d")
    return [(static_shape(c.args[0])[1], static_shape(c)[1]) for c in found]


@pytest.mark.parametrize("groups", [13, 5, 7])
def test_groups_fill_vectors(groups: int) -> None:
    channels, whole = 8 * groups, 8 * (groups + 1)
    mod = graph(lambda b, x: block(channels, groups, b, x), (2, 16, 6, 7))
    after = canonical(mod)
    assert widths(after) == [(16, whole), (whole, whole), (channels, 16)]
    kinds = operators(after)
    assert kinds["nn.pad"] == 0 and kinds["strided_slice"] == 1
    assert_same_as_plain_tvm(mod)
    assert_same_as_plain_tvm(mod, threads=2)


def test_added_weights_are_zeros() -> None:
    mod = graph(lambda b, x: block(104, 13, b, x), (1, 16, 6, 7))
    first, grouped, _ = calls(canonical(mod), "nn.conv2d")
    for call in (first, grouped):
        assert not constant_array(call.args[1])[104:].any()
        assert constant_array(call.args[1])[:104].all()


def test_data_that_others_read_is_filled_up() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        y = b.emit(op.nn.relu(conv(b, x, 104, 1)))
        return op.nn.relu(conv(b, y, 104, groups=13)), y

    mod = graph(function, (1, 16, 6, 7))
    after = canonical(mod)
    assert operators(after)["nn.pad"] == 1 and widths(after) == [(16, 104), (112, 112)]
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize("seconds", [None, lambda _: None, lambda layer: float(layer.groups)])
def test_nothing_changes_where_nothing_is_gained(seconds: object) -> None:
    mod = graph(lambda b, x: block(104, 13, b, x), (1, 16, 6, 7))
    assert widths(canonical(mod, seconds)) == [(16, 104), (104, 104), (104, 16)]


@pytest.mark.parametrize(("channels", "groups"), [(96, 12), (8, 1), (24, 24), (24, 3)])
def test_others_stay(channels: int, groups: int) -> None:
    """Whole vectors, one group, depthwise ones, and a third more work."""
    mod = graph(lambda b, x: block(channels, groups, b, x), (1, 16, 6, 7))
    assert widths(canonical(mod))[1] == (channels, channels)


def test_grouped_behind_grouped_stay_wide() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        y = conv(b, x, 104, 1)
        for _ in range(2):
            y = b.emit(op.nn.relu(conv(b, y, 104, groups=13)))
        return conv(b, y, 16, 1)

    mod = graph(function, (1, 16, 6, 7))
    after = canonical(mod)
    assert widths(after) == [(16, 112), (112, 112), (112, 112), (104, 16)]
    assert operators(after)["strided_slice"] == 1
    assert_same_as_plain_tvm(mod)


@given(st.data())
@examples(6)
def test_any_groups_compute_the_same(data: st.DataObject) -> None:
    draw = data.draw
    each = draw(st.sampled_from([2, 4, 8]))
    groups = draw(st.integers(5, 30))
    bias = draw(st.booleans())
    mod = graph(lambda b, x: block(each * groups, groups, b, x, bias), (1, 16, 5, 6))
    assert_same_as_plain_tvm(mod, threads=draw(st.integers(1, 2)))
