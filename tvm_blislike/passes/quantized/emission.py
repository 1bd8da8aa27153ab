"""Real numbers become Relax operators: floats, or steps of 8 bits.

The steps of a sum, in this order, all elementwise so that they join the kernel of the layer:

    add        to 32-bit sums the bias and what zero points add to them
    astype     to float32
    multiply   by scale / scale of the result, and the same of further terms
    add        to the last term what is left as one constant: offset and zero points of several
               terms; then the terms, so that each sum is one instruction with a product
    round      half to even
    add        the zero point of the result: behind rounding, as the standard has it
    clip       to the range of 8 bits and to the bounds, which keep their order
    astype     to the type in memory

A float that no layer made is divided by the scale instead, as it is in the simulation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax
from tvm.relax import op

from tvm_blislike.passes.quantized.real import Real, Term
from tvm_blislike.passes.quantized.steps import Rounded, Steps, Stored, shift_between
from tvm_blislike.tvm_seams import constant, dtype_name

Emit = Callable[[relax.Expr], relax.Var]


def floats(emit: Emit, real: Real) -> relax.Var:
    """Return a real number as float32."""
    value = _sum(emit, real, 1.0)
    if real.low > -np.inf:
        value = emit(op.maximum(value, _const(np.float32(real.low))))
    return emit(op.minimum(value, _const(np.float32(real.high)))) if real.high < np.inf else value


def stored(emit: Emit, real: Real, steps: Steps, dtype: str) -> Stored:
    """Return the steps of a real number in memory, for integers of the model of type `dtype`."""
    if steps.are_of(real):
        return Stored(real.terms[0].x, dtype, _rounded(real.terms[0], steps))
    plain = real.terms[0].is_plain and len(real.terms) == 1 and not real.offset.any()
    if plain:
        value = emit(op.divide(real.terms[0].x, _const(steps.scale)))
    else:
        value = _sum(emit, real, 1.0 / float(steps.scale))
    low, high = steps.at(real.low), steps.at(real.high)
    rounded = Rounded(emit(op.round(value)), steps.zero, low, high)
    value = _plus(emit, rounded.var, np.float32(steps.zero))
    value = emit(op.clip(value, float(low), float(high)))
    return Stored(emit(op.astype(value, steps.memory)), dtype, rounded)


def _rounded(term: Term, steps: Steps) -> Rounded | None:
    if term.precise is None:
        return None
    return Rounded(term.precise, steps.zero, steps.at(-np.inf), steps.at(np.inf))


def centered(emit: Emit, rounded: Rounded) -> relax.Var:
    """Return integers without their zero point as float32, from before they were stored."""
    low, high = (float(bound - rounded.zero) for bound in (rounded.low, rounded.high))
    return emit(op.clip(rounded.var, low, high))


def in_memory(emit: Emit, var: relax.Expr, memory: str) -> Stored:
    """Return integers of the model in the type of the core's products."""
    dtype = dtype_name(var)
    return Stored(_shifted(emit, var, shift_between(dtype, memory), memory), dtype)


def integers(emit: Emit, value: Stored) -> relax.Expr:
    """Return the model's integers."""
    return _shifted(emit, value.var, -value.shift, value.dtype)


def exact_float(emit: Emit, term: Term) -> relax.Var:
    """Return `x - zero` of 8-bit integers as float32, which holds it exactly."""
    if term.precise is not None:
        return term.precise
    return _plus(emit, _unshifted(emit, term), -term.zero.astype(np.float32))


def _shifted(emit: Emit, var: relax.Expr, shift: int, dtype: str) -> relax.Expr:
    if dtype_name(var) == dtype:
        return var
    if shift:
        var = emit(op.add(emit(op.astype(var, "int32")), relax.const(shift, "int32")))
    return emit(op.astype(var, dtype))


def _sum(emit: Emit, real: Real, factor: float) -> relax.Var:
    """Return `factor` times the sum of terms and offset as float32."""
    several = len(real.terms) > 1
    products, rest = [], real.offset * factor
    for term in real.terms:
        value, zero = _as_float(emit, term, keeps_zero=several)
        scale = (term.scale * factor).astype(np.float32)
        rest = rest - scale.astype(np.float64) * zero
        products.append(value if np.all(scale == 1) else emit(op.multiply(value, _const(scale))))
    *others, total = products
    total = _plus(emit, total, rest.astype(np.float32))
    for product in reversed(others):
        total = emit(op.add(product, total))
    return total


def _as_float(emit: Emit, term: Term, keeps_zero: bool) -> tuple[relax.Var, np.ndarray | int]:
    """Return x of a term as float32 and what is still to be subtracted from it."""
    if dtype_name(term.x) == "int32":
        x = term.x
        if term.zero.any():
            x = emit(op.add(x, _const((-term.zero).astype(np.int32))))
        return emit(op.astype(x, "float32")), 0
    if term.precise is not None or not keeps_zero:
        return exact_float(emit, term), 0
    return _unshifted(emit, term), term.zero


def _unshifted(emit: Emit, term: Term) -> relax.Var:
    """Return x of a term, of at most 8 bits or a float, as float32."""
    return term.x if dtype_name(term.x) == "float32" else emit(op.astype(term.x, "float32"))


def _plus(emit: Emit, value: relax.Var, shift: np.ndarray) -> relax.Var:
    return emit(op.add(value, _const(shift))) if np.any(shift) else value


def _const(array: np.ndarray) -> relax.Constant:
    array = np.asarray(array)
    array = array.reshape(()) if array.size == 1 else array
    return constant(array, str(array.dtype))
