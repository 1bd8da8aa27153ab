"""Weights that are lost in every sum become zero.

Trained models hold them: weight decay shrinks the weights of dead channels until they are denormal
(1 % of those of PP-OCRv4's reader). They change no result, but x86 cores take some 100 cycles for
each operation that reads or yields a denormal number: that model is 4 % faster without them.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.adapter import constant, constant_array, dtype_name, is_constant, op_name

# Operators that add what their constants contribute.
_SUMS = ("relax.nn.conv2d", "relax.matmul", "relax.add")
# Relative to the largest weight. fp32 sums have 24 bits; the rest leaves room for activations that
# differ by as much, and still keeps products of small ones normal.
_LEAST = np.float32(2.0**-100)
# Elements that are looked at together.
_BLOCK = 1 << 18


@mutator
class WithoutDenormals(PyExprMutator):
    """Rewriter of the constants that a function's sums add up, float32 only."""

    def __init__(self, mod: tvm.IRModule, _func: relax.Function) -> None:
        super().__init__(mod)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Return the call with its constants flushed."""
        call = super().visit_call_(call)
        if op_name(call) not in _SUMS:
            return call
        args = [flushed(arg) for arg in call.args]
        if all(new is old for new, old in zip(args, call.args, strict=True)):
            return call
        return self.builder_.normalize(relax.Call(call.op, args, call.attrs, call.ty_args))


def flushed(operand: relax.Expr) -> relax.Expr:
    """Return a constant without values that are tiny beside its largest; else the operand."""
    if not is_constant(operand) or dtype_name(operand) != "float32":
        return operand
    values = constant_array(operand).reshape(-1)
    least = max(values.max(initial=0), -values.min(initial=0)) * _LEAST
    # A block at a time: beside a whole matrix of 400 MB there would be as much again.
    blocks = (values[start : start + _BLOCK] for start in range(0, values.size, _BLOCK))
    if not any(_is_tiny(block, least).any() for block in blocks):
        return operand
    array = constant_array(operand)
    return constant(np.where(_is_tiny(array, least), np.float32(0), array), "float32")


def _is_tiny(values: np.ndarray, least: np.float32) -> np.ndarray:
    return (np.abs(values) < least) & (values != 0)
