"""Operators on real numbers that stay sums of terms: what is left is computed in float32.

Additions and products with constants change scales and offsets; Relu and Clip, the bounds. A mean
is one of integers; a product of two quantized tensors, one of floats that hold integers exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import op

from tvm_blislike.passes.quantized.emission import Emit, exact_float
from tvm_blislike.passes.quantized.layers import with_bias
from tvm_blislike.passes.quantized.real import Known, Real
from tvm_blislike.tvm_seams import static_shape

# A real number, a constant of floats, quantized weights, or None for any other operand.
Operand = Real | Known | np.ndarray | None
_MOST_SUMMED = np.iinfo(np.int32).max // np.iinfo(np.uint8).max


def computed(emit: Emit, call: relax.Call, operands: list[Operand]) -> Real | None:
    """Return the result of an operator, None where floats must be computed.

    Parameters
    ----------
    emit : callable
        Emits a call.
    call : relax.Call
        Of the model, in float32.
    operands : list
        One for each argument; at least one is a real number.
    """
    rule = _RULES.get(call.op.name)
    return rule(emit, call, operands) if rule else None


def _add(_emit: Emit, call: relax.Call, operands: list[Operand]) -> Real | None:
    one, other = operands if isinstance(operands[0], Real) else reversed(operands)
    if isinstance(other, Real):
        both = not one.is_bounded and not other.is_bounded
        return one.plus(other) if both else None
    if isinstance(other, Known):
        return with_bias(one, other) or _shift(call, one, other.values)
    return None if other is None else _shift(call, one, other)


def _subtract(_emit: Emit, call: relax.Call, operands: list[Operand]) -> Real | None:
    one, other = operands
    if isinstance(other, Known):
        other = other.values
    if not isinstance(one, Real) or other is None or one.is_bounded:
        return None
    if isinstance(other, Real):
        return None if other.is_bounded else one.plus(other.times(np.array(-1.0)))
    return _shift(call, one, -other)


def _shift(call: relax.Call, real: Real, shift: np.ndarray) -> Real | None:
    fits = not real.is_bounded and _is_by_channel(call, shift)
    return real.shifted(shift.astype(np.float64)) if fits else None


def _multiply(emit: Emit, call: relax.Call, operands: list[Operand]) -> Real | None:
    one, other = operands if isinstance(operands[0], Real) else reversed(operands)
    if isinstance(other, Real):
        return _product(emit, one, other)
    if isinstance(other, Known):
        other = other.values
    return _times(call, one, other)


def _divide(_emit: Emit, call: relax.Call, operands: list[Operand]) -> Real | None:
    one, other = operands
    if isinstance(other, Known):
        other = other.values
    if not isinstance(one, Real) or not isinstance(other, np.ndarray) or not np.all(other):
        return None
    return _times(call, one, 1 / other.astype(np.float64))


def _times(call: relax.Call, real: Real, factor: np.ndarray | None) -> Real | None:
    if factor is None or real.is_bounded or not _is_by_channel(call, factor):
        return None
    return real.times(factor.astype(np.float64))


def _product(emit: Emit, one: Real, other: Real) -> Real | None:
    left, right = one.steps, other.steps
    if left is None or right is None:
        return None
    product = emit(op.multiply(exact_float(emit, left), exact_float(emit, right)))
    return Real.of(product, left.scale.reshape(()) * right.scale.reshape(()))


def _is_by_channel(call: relax.Call, array: np.ndarray) -> bool:
    """Whether a finite constant has one axis at most, and adds none to the result."""
    along = array.size == max(array.shape, default=1) and array.ndim <= len(static_shape(call))
    return along and bool(np.all(np.isfinite(array)))


def _relu(_emit: Emit, _call: relax.Call, operands: list[Operand]) -> Real:
    return operands[0].clipped(0.0, np.inf)


def _maximum(_emit: Emit, _call: relax.Call, operands: list[Operand]) -> Real | None:
    real, bound = _with_number(operands)
    return None if bound is None else real.clipped(bound, np.inf)


def _minimum(_emit: Emit, _call: relax.Call, operands: list[Operand]) -> Real | None:
    real, bound = _with_number(operands)
    return None if bound is None else real.clipped(-np.inf, bound)


def _clip(_emit: Emit, call: relax.Call, operands: list[Operand]) -> Real:
    low, high = (float(arg.value) for arg in call.args[1:])
    return operands[0].clipped(low, high)


def _with_number(operands: list[Operand]) -> tuple[Real | None, float | None]:
    one, other = operands if isinstance(operands[0], Real) else reversed(operands)
    if not isinstance(other, np.ndarray) or other.size != 1 or np.isnan(other).any():
        return None, None
    return one, float(other.item())


def _mean(emit: Emit, call: relax.Call, operands: list[Operand]) -> Real | None:
    count = math.prod(static_shape(call.args[0])) // max(1, math.prod(static_shape(call)))
    return _summed(emit, call, operands[0], count, 1 / count)


def _total(emit: Emit, call: relax.Call, operands: list[Operand]) -> Real | None:
    count = math.prod(static_shape(call.args[0])) // max(1, math.prod(static_shape(call)))
    return _summed(emit, call, operands[0], count, 1.0)


def _summed(emit: Emit, call: relax.Call, real: Real, count: int, factor: float) -> Real | None:
    step = real.steps
    if step is None or count > _MOST_SUMMED:
        return None
    wide = emit(op.astype(step.x, "int32"))
    total = emit(op.sum(wide, call.attrs.axis, call.attrs.keepdims))
    return Real.of(total, step.scale.item() * factor, count * step.zero.item())


_RULES: dict[str, Callable[[Emit, relax.Call, list[Operand]], Real | None]] = {
    "relax.add": _add,
    "relax.subtract": _subtract,
    "relax.multiply": _multiply,
    "relax.divide": _divide,
    "relax.nn.relu": _relu,
    "relax.clip": _clip,
    "relax.maximum": _maximum,
    "relax.minimum": _minimum,
    "relax.mean": _mean,
    "relax.sum": _total,
}
