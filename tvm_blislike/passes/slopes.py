"""PReLU in operators that any layout has: its slopes are constants."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams import constant, constant_array, dtype_name, is_constant, op_name

PRELU = "relax.nn.prelu"


@mutator
class Slopes(PyExprMutator):
    """One slope for all is a leaky ReLU; max(x, 0) + slope min(x, 0) has one for each channel."""

    def __init__(self, mod: tvm.IRModule, _func: relax.Function) -> None:
        super().__init__(mod)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite a PReLU of constant, finite slopes; any other call stays."""
        call = super().visit_call_(call)
        if op_name(call) != PRELU or not is_constant(call.args[1]):
            return call
        data, dtype = call.args[0], dtype_name(call)
        slopes = constant_array(call.args[1])
        if slopes.size == 1:
            return op.nn.leakyrelu(data, float(slopes.item()))
        # An infinite slope by a minimum of 0 is no number.
        if data.ty.ndim < 2 or not np.all(np.isfinite(slopes)):
            return call
        shape = [1] * data.ty.ndim
        shape[int(call.attrs.axis)] = -1
        emit, zero = self.builder_.emit, constant(np.zeros((), dtype), dtype)
        below = emit(op.minimum(data, zero))
        falling = emit(op.multiply(below, constant(slopes.reshape(shape), dtype)))
        return op.add(emit(op.maximum(data, zero)), falling)
