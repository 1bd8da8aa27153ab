"""Permutations that move nothing: those of axes of one element, with a reshape behind them.

Exporters write them around recurrent layers (whose results have an axis of directions, torch's
none) and where a batch is 1. Such a reshape is one of what was permuted, and nothing is copied.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams import op_name, static_shape


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
        if before is None or op_name(before) != "relax.permute_dims" or not _moves_nothing(before):
            return call
        return op.reshape(before.args[0], shape)


def _moves_nothing(call: relax.Call) -> bool:
    """Whether all axes of several elements keep their order."""
    sizes, axes = static_shape(call.args[0]), call.attrs.axes
    if sizes is None or axes is None:
        return False
    kept = [int(axis) for axis in axes if sizes[int(axis)] > 1]
    return kept == sorted(kept)
