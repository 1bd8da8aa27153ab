"""Permutations that move nothing, in front of reshapes: gone, and the same numbers."""

from __future__ import annotations

import math

import pytest
import tvm
from relax_graphs import assert_same_as_plain_tvm, graph, operators
from tvm import relax
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.passes.canonicalize import Canonicalize

NATIVE = native_core()

Shape = tuple[int, ...]


def merged(shape: Shape, axes: list[int] | None, result: Shape, behind: bool) -> tvm.IRModule:
    """Return a permutation and a reshape of it, and whether another operator reads the former."""

    def function(b: relax.BlockBuilder, x: relax.Var) -> tuple[relax.Expr, ...]:
        moved = b.emit(op.permute_dims(x, axes))
        others = [b.emit(op.nn.relu(moved))] if behind else []
        return b.emit(op.nn.relu(b.emit(op.reshape(moved, result)))), *others

    return graph(function, shape)


@pytest.mark.parametrize(
    ("shape", "axes", "result"),
    [
        ((5, 1, 3, 4), [0, 2, 1, 3], (5, 3, 4)),
        ((5, 2, 1, 4), [0, 2, 1, 3], (5, 1, 8)),
        ((1, 6, 4), [1, 0, 2], (24,)),
        ((2, 3, 1, 4), [0, 2, 1, 3], (24,)),
        ((2, 1, 1, 3), [2, 0, 3, 1], (3, 2)),
    ],
)
def test_axes_of_one_element(shape: Shape, axes: list[int], result: Shape) -> None:
    mod = merged(shape, axes, result, behind=False)
    assert operators(Canonicalize(NATIVE)(mod)) == {"reshape": 1, "nn.relu": 1}
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(("shape", "axes"), [((2, 3, 1, 4), [3, 1, 0, 2]), ((1, 6, 1), None)])
def test_others_stay(shape: Shape, axes: list[int] | None) -> None:
    mod = merged(shape, axes, (math.prod(shape),), behind=False)
    assert operators(Canonicalize(NATIVE)(mod)).get("permute_dims") == 1
    assert_same_as_plain_tvm(mod)


def test_another_reader_keeps_the_permutation() -> None:
    mod = merged((5, 1, 3), [0, 2, 1], (15,), behind=True)
    assert operators(Canonicalize(NATIVE)(mod)) == {"permute_dims": 1, "reshape": 1, "nn.relu": 2}
    assert_same_as_plain_tvm(mod)
