"""Sums in another data type than their operands' become sums of operands in that type.

`relax.matmul(a, b, out_dtype=...)` and the convolutions multiply and add in `out_dtype`. Where the
core has kernels for that type, its operands are converted first: what is summed stays the same,
and the sum is one that every implementation computes. Elsewhere the call is left to TVM as it is.

Integers of 16 bits are what `passes.quantized` keeps there, values of 8, and kernels count on it:
those that a model itself multiplies become integers of 32 bits before.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.cost_models.data_types import missing_types
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import Types
from tvm_blislike.operators import operator_in
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
)


@tvm.transform.module_pass(opt_level=0, name="blislike.ConvertOperands")
class ConvertOperands:
    """Module pass that converts the operands of every such call, for a core."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        result = mod.clone()
        for gvar, func in functions(mod):
            result.update_func(gvar, _ConvertOperands(mod, self.core).visit_expr(func))
        return result


@tvm.transform.module_pass(opt_level=0, name="blislike.WidenWords")
class WidenWords:
    """Module pass that converts operands of 16-bit integers to their sums' type."""

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        result = mod.clone()
        for gvar, func in functions(mod):
            result.update_func(gvar, _WidenWords(mod).visit_expr(func))
        return result


def _with_operands(builder: relax.BlockBuilder, call: relax.Call, dtype: str) -> relax.Call:
    """Return a call whose operands have another data type."""
    args = [_converted(builder, arg, dtype) for arg in call.args]
    return builder.normalize(relax.Call(call.op, args, call.attrs))


def _converted(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    if dtype_name(value) == dtype:
        return value
    if is_constant(value):
        return constant(constant_array(value).astype(dtype), dtype)
    return builder.emit(relax.op.astype(value, dtype))


@mutator
class _ConvertOperands(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, core: Core) -> None:
        super().__init__(mod)
        self.core = core

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if operator_in(call) is None:
            return call
        dtype = dtype_name(call)
        if all(dtype_name(arg) == dtype for arg in call.args):
            return call
        if missing_types(Types.of(dtype), self.core):
            return call
        return _with_operands(self.builder_, call, dtype)


@mutator
class _WidenWords(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if operator_in(call) is None or "int16" not in map(dtype_name, call.args):
            return call
        return _with_operands(self.builder_, call, dtype_name(call))
