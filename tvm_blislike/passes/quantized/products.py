"""Products of 8-bit integers whose zero point is known at run time only, summed in 32 bits.

ONNX's MatMulInteger and ConvInteger, as importers write them: factors widened to 32 bits, less
their zero points. With constant weights w and the zero point z of the data,

    sum((x - z) * w) = sum(x * w) - z * sum(w)

where the last sum is a constant: of each output, and in a padded convolution of each place, as what
is outside the image adds nothing to either. Weights that need 9 bits, such as 8-bit ones less
a zero point, are shifted by a constant c of each output:

    sum((x - z) * (w + c)) = sum(x * w) + c * sum(x) - z * sum(w + c)

where sum(x) is a product with ones, of the data that an output reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from tvm_blislike.operators import operator_in, operator_of, workload_of
from tvm_blislike.passes.quantized.emission import Emit
from tvm_blislike.passes.quantized.layers import why_not_convolution
from tvm_blislike.passes.same_layer import on_operands
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    dtype_name,
    functions,
    op_name,
    static_shape,
)

_WEIGHTS = np.iinfo(np.int8)
_MOST_DATA = np.iinfo(np.uint8).max
_MOST_SUM = np.iinfo(np.int32).max
_EIGHT_BITS = ("uint8", "int8")


@dataclass(frozen=True)
class Widened:
    """8-bit integers of the model less a zero point, in 32 bits, while not yet computed.

    Parameters
    ----------
    data : relax.Expr
        Integers of 8 bits.
    zero : relax.Expr, optional
        int32, of one element; 0 where there is none.
    """

    data: relax.Expr
    zero: relax.Expr | None = None


def multiplies_integers(mod: tvm.IRModule) -> bool:
    """Whether a convolution or a matrix product has a result in int32."""
    values = (binding.value for _, func in functions(mod) for binding in bindings(func))
    return any(operator_in(value) is not None and dtype_name(value) == "int32" for value in values)


def widened(call: relax.Call, first: Widened | None) -> Widened | None:
    """Return what a call makes of 8-bit integers, None where that is something else.

    Parameters
    ----------
    call : relax.Call
        Of the model, in int32.
    first : Widened or None
        Its first operand.
    """
    name = op_name(call)
    if name == "relax.astype" and dtype_name(call.args[0]) in _EIGHT_BITS:
        return Widened(call.args[0])
    if name != "relax.subtract" or first is None or first.zero is not None:
        return None
    zero = static_shape(call.args[1])
    is_one = zero is not None and np.prod(zero) == 1 and len(zero) <= len(static_shape(call) or ())
    return Widened(first.data, call.args[1]) if is_one else None


def why_wide(call: relax.Call, data: Widened | None, weights: np.ndarray | None) -> str:
    """Return why a product of widened integers stays one of 32 bits, "" if it does not."""
    if data is None or weights is None:
        return "one of its operands is no constant, or the other one is not of 8 bits"
    if operator_in(call).why_not(call):
        return operator_in(call).why_not(call)
    narrow = _Narrow.of(weights, _output_axis(call))
    if narrow is None:
        return "its weights without their zero point need more than 9 bits"
    if op_name(call) == "relax.matmul":
        if weights.ndim != 2:
            return "its weights are no matrix"
    elif reason := why_not_convolution(call):
        return reason
    elif narrow.shift.any() and call.attrs.groups not in (1, len(weights)):
        return "its weights without their zero point need more than 8 bits, and it has groups"
    others = tuple(a for a in range(weights.ndim) if a != _output_axis(call) % weights.ndim)
    most = _MOST_DATA * np.abs(weights.astype(np.int64)).sum(others).max(initial=0)
    return "" if most <= _MOST_SUM // 2 else "its sums could need more than 32 bits"


def narrow_product(
    emit: Emit,
    call: relax.Call,
    data: relax.Expr,
    zero: relax.Expr | int,
    weights: np.ndarray,
    weights_dtype: str,
) -> relax.Expr:
    """Return a product for which `why_wide` has no reason.

    Parameters
    ----------
    emit : callable
        Emits a call.
    call : relax.Call
        Of the model, on integers of 32 bits.
    data : relax.Expr
        8-bit integers in the type of the core's products.
    zero : relax.Expr or int
        Their zero point, int32.
    weights : numpy.ndarray
        int32.
    weights_dtype : str
        Type of weights in the core's products.
    """
    narrow = _Narrow.of(weights, _output_axis(call))
    total = emit(_multiplied(call, data, narrow.weights.astype(weights_dtype)))
    if narrow.shift.any():
        shifted = op.multiply(_data_sums(emit, call, data, weights_dtype), _const(narrow.shift))
        total = emit(op.add(total, emit(shifted)))
    sums = _sums(call, data, weights)
    if isinstance(zero, int):
        return emit(op.subtract(total, _const(zero * sums))) if zero else total
    return emit(op.subtract(total, emit(op.multiply(zero, _const(sums)))))


@dataclass(frozen=True)
class _Narrow:
    """Weights of 8 bits and what is to be added to them, a number along the axis of outputs."""

    weights: np.ndarray
    shift: np.ndarray

    @staticmethod
    def of(weights: np.ndarray, axis: int) -> _Narrow | None:
        """Return integers of 32 bits as such; None where those of an output span more."""
        others = tuple(a for a in range(weights.ndim) if a != axis % weights.ndim)
        low, high = (reduce(axis=others, keepdims=True) for reduce in (weights.min, weights.max))
        if not weights.size or (high - low).max() > _WEIGHTS.max - _WEIGHTS.min:
            return None
        shift = np.maximum(high - _WEIGHTS.max, 0) + np.minimum(low - _WEIGHTS.min, 0)
        along = shift.reshape(-1) if weights.ndim == 2 else shift.reshape(1, *shift.shape[:-1])
        return _Narrow((weights - shift).astype(np.int8), along)


def _output_axis(call: relax.Call) -> int:
    return -1 if op_name(call) == "relax.matmul" else 0


def _multiplied(call: relax.Call, data: relax.Expr, weights: np.ndarray) -> relax.Call:
    return on_operands(call, data, constant(weights, str(weights.dtype)), "int32")


def _sums(call: relax.Call, data: relax.Expr, weights: np.ndarray) -> np.ndarray:
    """Return the sums of the weights that an element of the result is made of."""
    if op_name(call) == "relax.matmul":
        return weights.sum(0, dtype=np.int64)
    workload = workload_of(call)
    if not any(workload.padding):
        return weights.sum((1, 2, 3), dtype=np.int64).reshape(1, -1, 1, 1)
    ones = np.ones((1, *static_shape(data)[1:]), np.int64)
    return operator_of(workload).reference(replace(workload, n=1), ones, weights)


def _data_sums(emit: Emit, call: relax.Call, data: relax.Expr, weights_dtype: str) -> relax.Expr:
    """Return the sums of the data that an element of the result is made of."""
    if op_name(call) == "relax.matmul":
        return emit(op.sum(emit(op.astype(data, "int32")), axis=-1, keepdims=True))
    ones = np.ones((call.attrs.groups, *static_shape(call.args[1])[1:]), weights_dtype)
    return emit(_multiplied(call, data, ones))


def _const(array: np.ndarray) -> relax.Constant:
    return constant(np.asarray(array).astype(np.int32), "int32")
