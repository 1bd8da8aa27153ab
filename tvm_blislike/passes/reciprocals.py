"""Divisions by constants are products with their reciprocals where no last bit counts.

A vector is divided in ten cycles and more, but multiplied in half of one; the product may differ by
the last bit. That is kept for what becomes an integer, an index or a result of the model. It is
nothing to an error function, an exponential or a softmax, also behind additions: the activations
and the scores of transformers. Nor is it to a sum of many products, whose own roundings are more:
the hard swish between convolutions, four operations a vector where an exact quotient takes nine.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
)

_FUNCTIONS = ("erf", "exp", "tanh", "sigmoid", "nn.softmax")
_SUMS = ("matmul", "mean", "nn.conv1d", "nn.conv2d", "nn.conv3d")
SMOOTH = {f"relax.{name}" for name in (*_FUNCTIONS, *_SUMS)}
_THROUGH = {"relax.add", "relax.multiply", "relax.subtract", "relax.reshape"}
# Reciprocals of numbers between these are normal.
_LEAST, _MOST = 2.0**-100, 2.0**100


@tvm.transform.module_pass(opt_level=0, name="blislike.Reciprocals")
def reciprocals(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Rewrite every Relax function."""
    result = mod.clone()
    for gvar, func in functions(mod):
        result.update_func(gvar, _Reciprocals(mod, _ends_smooth(func)).visit_expr(func))
    return result


@mutator
class _Reciprocals(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, smooth: set[relax.Var]) -> None:
        super().__init__(mod)
        self.smooth = smooth

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if binding.var in self.smooth and op_name(call) == "relax.divide" and _is_usable(call):
            data, divisor = call.args
            factor = constant(np.float32(1) / constant_array(divisor), "float32")
            product = relax.op.multiply(self.visit_expr(data), factor)
            self.set_var_remap(binding.var, self.builder_.emit(product))
            return
        super().visit_var_binding_(binding)


def _ends_smooth(func: relax.Function) -> set[relax.Var]:
    """Return the variables that end in smooth functions and sums of products only."""
    smooth: set[relax.Var] = set()
    otherwise: set[relax.Var] = set(_variables(func.body.body))
    for binding in reversed(bindings(func)):
        name, read = op_name(binding.value), _variables(binding.value)
        passes_on = name in _THROUGH and binding.var in smooth - otherwise
        (smooth if name in SMOOTH or passes_on else otherwise).update(read)
    return {v for v in smooth - otherwise if isinstance(v, relax.DataflowVar)}


def _variables(value: relax.Expr) -> list[relax.Var]:
    found: list[relax.Var] = []
    relax.analysis.post_order_visit(
        value, lambda expr: found.append(expr) if isinstance(expr, relax.Var) else None
    )
    return found


def _is_usable(call: relax.Call) -> bool:
    """Whether the divisor is a constant of fp32 whose reciprocal is normal."""
    data, divisor = call.args
    if not is_constant(divisor) or {dtype_name(data), dtype_name(divisor)} != {"float32"}:
        return False
    size = np.abs(constant_array(divisor))
    return bool(np.all((size >= _LEAST) & (size <= _MOST)))
