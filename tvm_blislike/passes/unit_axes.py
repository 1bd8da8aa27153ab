"""Permutations that move nothing: those of axes of one element, with a reshape behind them.

Exporters write them around recurrent layers (whose results have an axis of directions, torch's
none) and where a batch is 1. Such a reshape is one of what was permuted, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams import op_name, permuted_axes, static_shape

PERMUTE = "relax.permute_dims"


@mutator
class UnitAxes(PyExprMutator):
    """Reshapes of such permutations become ones of their operand."""

    def __init__(self, mod: tvm.IRModule, _func: relax.Function) -> None:
        super().__init__(mod)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Let a reshape skip a permutation in front of it that moves nothing."""
        call = super().visit_call_(call)
        shape = static_shape(call)
        if op_name(call) != "relax.reshape" or shape is None:
            return call
        source = call.args[0]
        before = self.lookup_binding(source) if isinstance(source, relax.Var) else None
        if op_name(before) != PERMUTE or before.attrs.axes is None:
            return call
        sizes = static_shape(before.args[0])
        if sizes is None or not moves_nothing(sizes, permuted_axes(before)):
            return call
        return op.reshape(before.args[0], shape)


def moves_nothing(sizes: Sequence[int], axes: Sequence[int]) -> bool:
    """Return whether a permutation keeps the order of all axes of several elements."""
    kept = [axis for axis in axes if sizes[axis] > 1]
    return kept == sorted(kept)
