"""Products of two quantized tensors, neither of them constant: attention's.

    sum((a - za) * (b - zb)) = sum(a * b) - za * sum(b) - zb * sum(a) + k * za * zb

The sums of columns and of rows are computed at run time, where their zero point is not 0. Products
take b in the type of weights: bytes without sign are stored shifted by 128 there, and so is zb.
Where weights have 16 bits, both factors get them.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from tvm_blislike.operators import operator_in
from tvm_blislike.passes.quantized.emission import Emit
from tvm_blislike.passes.quantized.real import Real, Term
from tvm_blislike.tvm_seams import constant, dtype_name, op_name, static_shape

_HALF = 128
_MOST_SUM = np.iinfo(np.int32).max
# Four sums of products of bytes are added up.
_MOST_OF_A_STEP = 4 * np.iinfo(np.uint8).max ** 2


def why_not(call: relax.Call) -> str:
    """Return why a product of two quantized tensors stays in floats, "" if it does not."""
    if op_name(call) != "relax.matmul":
        return "its weights are no constants"
    if dtype_name(call) != "float32":
        return f"its result is {dtype_name(call)}"
    if operator_in(call).why_not(call):
        return operator_in(call).why_not(call)
    steps = static_shape(call.args[0])[-1]
    return "" if steps * _MOST_OF_A_STEP <= _MOST_SUM else "its sums could need more than 32 bits"


def product(emit: Emit, call: relax.Call, one: Term, other: Term, weights_dtype: str) -> Real:
    """Return a product for which `why_not` has no reason.

    Parameters
    ----------
    emit : callable
        Emits a call.
    call : relax.Call
        Of the model.
    one, other : Term
        8-bit integers in memory, of one scale and zero point each.
    weights_dtype : str
        Type of the second factor in the core's products.
    """
    a, b, za, zb = one.x, other.x, int(one.zero.item()), int(other.zero.item())
    if dtype_name(b) == "uint8" and weights_dtype == "int8":
        # The highest bit turned around is 128 less.
        turned = emit(op.bitwise_xor(b, relax.const(_HALF, "uint8")))
        b, zb = emit(op.astype(turned, "int8")), zb - _HALF
    if weights_dtype == "int16":
        # Masks of weights are made of constants: tensors are multiplied as words.
        a, b = (x if dtype_name(x) == "int16" else emit(op.astype(x, "int16")) for x in (a, b))
    total = emit(op.matmul(a, b, out_dtype="int32"))
    steps = static_shape(a)[-1]
    if za:
        total = emit(op.subtract(total, _times(emit, _sums(emit, b, -2), za)))
    if zb:
        of_rows = _times(emit, _sums(emit, a, -1), zb)
        if za:
            of_rows = emit(op.subtract(of_rows, _const(steps * za * zb)))
        total = emit(op.subtract(total, of_rows))
    return Real.of(total, one.scale.item() * other.scale.item())


def _sums(emit: Emit, x: relax.Expr, axis: int) -> relax.Var:
    wide = emit(op.astype(x, "int32"))
    return emit(op.sum(wide, axis=axis, keepdims=True))


def _times(emit: Emit, x: relax.Var, factor: int) -> relax.Var:
    return emit(op.multiply(x, _const(factor)))


def _const(value: int) -> relax.Constant:
    return constant(np.array(value, np.int32), "int32")
