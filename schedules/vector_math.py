"""Transcendental functions as vector arithmetic.

LLVM has no vector exp: a `tirx.exp` on sixteen lanes becomes sixteen calls of `expf`, a
`tirx.tanh` thirty-two. `vectorize_math` replaces such calls on float32 by polynomials that
hold nothing but additions, multiplications, selections and shifts, so they run at the width
of the loop around them. They are written with `Let`, hence an argument is computed once.

The polynomials are weighted minimax fits (Lawson's iteration on 4000 Chebyshev nodes in
extended precision); their own relative error stands beside each, rounding comes on top.
Infinities, NaN and denormal results are as in the C library; the sign of zero is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.schedules.rewrite import collect, is_if

Expr = tirx.Expr

# exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2) / 2, relative error 3.1e-9
_EXP = (0.499999934, 0.166665206, 0.041668388, 0.00836871689, 0.00138145985)
# log(1 + f) = f - f^2 / 2 + f^3 P(f) for sqrt(1/2) <= 1 + f <= sqrt(2), relative error 5.9e-9
_LOG = (
    0.333333317,
    -0.25000821,
    0.200012269,
    -0.166233573,
    0.14201758,
    -0.131601824,
    0.12761577,
    -0.0763449653,
)
# tanh(x) = x + x^3 P(x^2) for |x| <= 0.625, relative error 4.4e-9
_TANH = (-0.333332819, 0.133314422, -0.053739715, 0.020639087, -0.00570498677)
_TANH_SMALL = 0.625
# erf(x) = x P(x^2) for |x| <= 1, relative error 1.3e-9
_ERF = (
    1.12837917,
    -0.376126258,
    0.112835851,
    -0.0268538118,
    0.00518832754,
    -0.000801019245,
    7.85385775e-05,
)
# 1 - erf(x) = exp(P(x)) for 1 <= x <= 4, absolute error 1.2e-9
_ERFC = (
    -0.000312469807,
    -1.12720228,
    -0.637965,
    -0.103256201,
    0.0219064752,
    -0.00296400579,
    0.000187971653,
)

# ln(2) in two parts: the first has 12 trailing zero bits, so its product with any exponent
# of a float32 is exact.
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723212e-6
_LOG2_E = 1.44269504088896341
# Adding this rounds to an integer and leaves that integer plus 127, the exponent bias, in
# the low bits of the sum.
_ROUND_AND_BIAS = 1.5 * 2**23 + 127


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def _i32(value: int) -> Expr:
    return tirx.const(value, "int32")


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """Bind `value` to a name, so that `body` may use it often without computing it again.

    Nested bindings double TVM's time to simplify each, so cheap values are repeated instead
    and left to LLVM.
    """
    if isinstance(value, tirx.Var):
        return body(value)
    var = tirx.Var("t", str(value.ty))
    return tirx.Let(var, value, body(var))


def _polynomial(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Horner's scheme, constant term first; LLVM contracts each step to one FMA."""
    result = _f32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + _f32(coefficient)
    return result


def _clamp(v: Expr, low: float, high: float) -> Expr:
    """Limit `v`; a NaN fails both comparisons and passes."""
    below_high = tirx.Select(v > _f32(high), _f32(high), v)
    return tirx.Select(v < _f32(low), _f32(low), below_high)


def _with_sign_of(v: Expr, magnitude: Expr) -> Expr:
    return tirx.Select(v < _f32(0.0), _f32(-1.0), _f32(1.0)) * magnitude


def _power_of_two(biased: Expr) -> Expr:
    """2^n, where `biased` is n + `_ROUND_AND_BIAS`."""
    bits = tirx.reinterpret("int32", biased)
    return tirx.reinterpret("float32", tirx.shift_left(bits, _i32(23)))


def exp(x: Expr) -> Expr:
    """Return e^x for a float32 `x`, within 2 units in the last place."""
    magic = _f32(_ROUND_AND_BIAS)

    def scaled(r: Expr, n: Expr, half: Expr) -> Expr:
        # 2^n in two factors, for n = 128 and the denormals are no float32 by themselves.
        value = r * r * _polynomial(r, _EXP) + r + _f32(1.0)
        return value * _power_of_two(half) * _power_of_two(n - (half - magic) + magic)

    def reduced(v: Expr, n: Expr) -> Expr:
        rest = (v - n * _f32(_LN2_HIGH)) - n * _f32(_LN2_LOW)
        return _let(rest, lambda r: _let(n * _f32(0.5) + magic, lambda h: scaled(r, n, h)))

    def rounded(v: Expr) -> Expr:
        # Each sum with `magic` needs a name: TVM would simplify `x + magic - magic` to `x`.
        total = v * _f32(_LOG2_E) + magic
        return _let(total, lambda t: _let(t - magic, lambda n: reduced(v, n)))

    # Beyond these the result is infinite, or zero, and the exponent would not fit.
    return _let(x, lambda v: _let(_clamp(v, -104.0, 89.0), rounded))


def sigmoid(x: Expr) -> Expr:
    """Return 1 / (1 + e^-x) for a float32 `x`, also accurate where it is denormal."""
    # Beyond 30 the result is 1; e / (1 + e) needs no negation and e must not overflow.
    limited = _let(x, lambda v: tirx.Select(v > _f32(30.0), _f32(30.0), v))
    return _let(exp(limited), lambda e: e / (e + _f32(1.0)))


def tanh(x: Expr) -> Expr:
    """Return tanh(x) for a float32 `x`."""

    def small(v: Expr) -> Expr:
        return v * (v * v) * _polynomial(v * v, _TANH) + v

    def large(v: Expr, magnitude: Expr) -> Expr:
        twice = exp(magnitude + magnitude)
        return _with_sign_of(v, _f32(1.0) - _f32(2.0) / (twice + _f32(1.0)))

    def choose(v: Expr) -> Expr:
        magnitude = tirx.Select(v < _f32(0.0), _f32(0.0) - v, v)
        return _let(
            magnitude,
            lambda m: tirx.Select(m < _f32(_TANH_SMALL), small(v), large(v, m)),
        )

    return _let(x, choose)


def erf(x: Expr) -> Expr:
    """Return the error function of a float32 `x`."""

    def large(v: Expr, magnitude: Expr) -> Expr:
        # At 4 the result is 1 to the last bit.
        limited = tirx.Select(magnitude > _f32(4.0), _f32(4.0), magnitude)
        tail = _let(limited, lambda m: exp(_polynomial(m, _ERFC)))
        return _with_sign_of(v, _f32(1.0) - tail)

    def choose(v: Expr) -> Expr:
        magnitude = tirx.Select(v < _f32(0.0), _f32(0.0) - v, v)
        small = v * _polynomial(v * v, _ERF)
        return _let(magnitude, lambda m: tirx.Select(m < _f32(1.0), small, large(v, m)))

    return _let(x, choose)


def log(x: Expr) -> Expr:
    """Return the natural logarithm of a float32 `x`; NaN below zero, -inf at zero."""
    smallest = _f32(2.0**-126)

    def special(v: Expr, value: Expr) -> Expr:
        # Comparisons with NaN are false, so NaN reaches the last branch: v - v is NaN there.
        infinite = tirx.Select(v > _f32(3.4028234e38), v, value)
        positive = tirx.Select(v > _f32(0.0), infinite, _f32(0.0) * v + _f32(float("nan")))
        return tirx.Select(v == _f32(0.0), _f32(float("-inf")), positive)

    def series(f: Expr, e: Expr) -> Expr:
        tail = f * f * (f * _polynomial(f, _LOG) - _f32(0.5))
        return e * _f32(_LN2_HIGH) + (f + (tail + e * _f32(_LN2_LOW)))

    def split(bits: Expr, shift: Expr) -> Expr:
        # The exponent of x / sqrt(1/2): what remains lies in [sqrt(1/2), sqrt(2)).
        exponent = tirx.shift_right(bits - _i32(0x3F3504F3), _i32(23))
        return _let(
            exponent,
            lambda e: _let(
                tirx.reinterpret("float32", bits - tirx.shift_left(e, _i32(23))) - _f32(1.0),
                lambda f: series(f, tirx.Cast("float32", e) + shift),
            ),
        )

    def normal(v: Expr) -> Expr:
        scaled = tirx.Select(v < smallest, v * _f32(2.0**23), v)
        shift = tirx.Select(v < smallest, _f32(-23.0), _f32(0.0))
        return special(v, _let(tirx.reinterpret("int32", scaled), lambda b: split(b, shift)))

    return _let(x, normal)


def _inverse_fourth_root(v: Expr) -> Expr:
    """Return v^(-1/4) for 0 < v < infinity, by three Newton steps."""
    smallest = _f32(2.0**-126)

    def step(value: Expr, y: Expr) -> Expr:
        # Multiplied in this order nothing over- or underflows on the way.
        return y + y * (_f32(0.25) - value * y * y * (y * y) * _f32(0.25))

    def converged(value: Expr) -> Expr:
        # Shifting the bits divides exponent and, roughly, logarithm by four: within 3.2 %.
        bits = tirx.reinterpret("int32", value)
        start = tirx.reinterpret("float32", _i32(0x4F586000) - tirx.shift_right(bits, _i32(2)))
        first = _let(start, lambda y: step(value, y))
        second = _let(first, lambda y: step(value, y))
        return _let(second, lambda y: step(value, y))

    normal = tirx.Select(v < smallest, v * _f32(2.0**48), v)
    scale = tirx.Select(v < smallest, _f32(2.0**12), _f32(1.0))
    return _let(normal, converged) * scale


def _product(factors: list[Expr]) -> Expr:
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


def _quarter_power(x: Expr, quarters: int) -> Expr:
    """x^(quarters / 4) for odd `quarters`: local response normalisation has -3."""
    whole = max(-(-quarters // 4), 0)
    zero, infinite = (0.0, float("inf")) if quarters > 0 else (float("inf"), 0.0)

    def finite(v: Expr) -> Expr:
        return _let(
            _inverse_fourth_root(v),
            lambda y: _product([y] * (4 * whole - quarters) + [v] * whole),
        )

    def choose(v: Expr) -> Expr:
        at_most = tirx.Select(v < _f32(float("inf")), finite(v), _f32(infinite))
        at_zero = tirx.Select(v == _f32(0.0), _f32(zero), _f32(float("nan")))
        return tirx.Select(v > _f32(0.0), at_most, at_zero)

    return _let(x, choose)


def power(x: Expr, exponent: Expr) -> Expr | None:
    """Return x^exponent from multiplications and roots, within 5e-7.

    Returns
    -------
    Expr or None
        None unless the exponent is a constant multiple of 1/4 up to 4 (local response
        normalisation has 3/4, others 1/2, 2 and 3). With multiples of 1/2, -0 and -infinity
        are treated as `sqrt` treats them.
    """
    quarters = float(exponent.value) * 4 if isinstance(exponent, tirx.FloatImm) else 0.5
    if quarters != int(quarters) or not 0 < abs(quarters) <= 16:
        return None
    if quarters % 2:
        return _quarter_power(x, int(quarters))
    whole, root = divmod(abs(int(quarters)), 4)

    def product(v: Expr) -> Expr:
        result = _product([v] * whole + ([tirx.sqrt(v)] if root else []))
        return result if quarters > 0 else _f32(1.0) / result

    return _let(x, product)


def _divide_by_power(quotient: tirx.Div) -> Expr:
    """Turn a / x^(3/4) into a * x^(-3/4): the roots come out inverted, so no division."""
    power_call = quotient.b
    if not (isinstance(power_call, ir.Call) and isinstance(power_call.op, ir.Op)):
        return quotient
    if power_call.op.name != "tirx.pow" or str(quotient.ty) != "float32":
        return quotient
    base, exponent = power_call.args
    if not isinstance(exponent, tirx.FloatImm) or float(exponent.value) * 4 % 2 != 1:
        return quotient
    inverse = power(base, _f32(-float(exponent.value)))
    return quotient if inverse is None else quotient.a * inverse


def _is_replaced(node: Any) -> bool:
    """Whether a node is a call that `vectorize_math` replaces."""
    is_call = isinstance(node, ir.Call) and isinstance(node.op, ir.Op)
    return is_call and node.op.name in _REWRITES and str(node.ty) == "float32"


def _widened(call: ir.Call) -> Expr:
    """Return a function of float16 as one of float32 between conversions."""
    is_known = isinstance(call.op, ir.Op) and call.op.name in _REWRITES
    if not is_known or str(call.ty) != "float16":
        return call
    operands = [tirx.Cast("float32", operand) for operand in call.args]
    return tirx.Cast("float16", tirx.call_intrin("float32", call.op.name, *operands))


def _apart(loop: tirx.For) -> tirx.Stmt:
    """Give each of several functions in one expression of a vector loop a statement of its own.

    The bindings of one, inside those of the next, would cost TVM's simplifier minutes. It looks
    through names as well, so the value in between goes through a buffer; LLVM removes that.
    """
    # The tail of a vector loop may be one element.
    is_single = _is_one(loop.extent) and not _has_loop(loop.body)
    if loop.kind != tirx.ForKind.VECTORIZED and not is_single:
        return loop
    buffers: list[tirx.Buffer] = []
    split = partial(_split_store, loop=loop, buffers=buffers)
    body = tvm_ffi.structural_map(loop.body, [(tirx.BufferStore, split)])
    if not buffers:
        return loop
    fields = (loop.loop_var, loop.min, loop.extent, loop.kind, body)
    inner = tirx.For(*fields, annotations=loop.annotations)
    return tirx.SeqStmt([*map(tirx.AllocBuffer, buffers), inner])


def _is_one(extent: Expr) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _has_loop(stmt: tirx.Stmt) -> bool:
    return bool(collect(stmt, tirx.For))


def _split_store(store: tirx.BufferStore, loop: tirx.For, buffers: list[tirx.Buffer]) -> tirx.Stmt:
    calls = collect(store.value, ir.Call)
    # What a condition guards must stay behind it; a function of the choice need not.
    guarded = _guarded(calls)
    if sum(_is_replaced(call) and call not in guarded for call in calls) < 2:
        return store
    taken: list[tuple[ir.Call, tirx.Buffer]] = []
    lane = [loop.loop_var - loop.min]

    def take(call: ir.Call) -> Expr:
        if not _is_replaced(call) or call in guarded:
            return call
        # The sigmoid of x sigmoid(x) has x twice.
        known = [buffer for old, buffer in taken if tvm_ffi.structural_equal(old, call)]
        buffer = known[0] if known else tirx.decl_buffer((loop.extent,), "float32", "value")
        if not known:
            taken.append((call, buffer))
        return tirx.BufferLoad(buffer, lane)

    # Operands before the calls that use them.
    value = tvm_ffi.structural_map(store.value, [(ir.Call, take)], order="post")
    buffers += [buffer for _, buffer in taken]
    parts = [tirx.BufferStore(buffer, call, lane) for call, buffer in taken]
    return tirx.SeqStmt([*parts, tirx.BufferStore(store.buffer, value, store.indices)])


def _guarded(calls: list[ir.Call]) -> set[ir.Call]:
    """Return the calls inside a branch of an `if_then_else`."""
    branches = (branch for call in calls if is_if(call) for branch in call.args[1:])
    return {call for branch in branches for call in collect(branch, ir.Call)}


_REWRITES: dict[str, Callable[..., Expr | None]] = {
    "tirx.exp": exp,
    "tirx.sigmoid": sigmoid,
    "tirx.tanh": tanh,
    "tirx.erf": erf,
    "tirx.log": log,
    "tirx.pow": power,
}


def vectorize_math(node: Any) -> Any:
    """Replace calls of transcendental functions on float32 by vector arithmetic.

    Parameters
    ----------
    node : tirx.Expr, tirx.Stmt or tirx.PrimFunc
        What to rewrite: scalar code. Mark loops as vectorized before: there, a statement with
        several functions in it becomes several statements.

    Returns
    -------
    same kind as `node`
        With `exp`, `sigmoid`, `tanh`, `erf`, `log`, and `pow` by multiples of 1/4, replaced; those
        of float16 are computed in float32. Other types and functions are left alone.
    """

    def rewrite(call: ir.Call) -> Expr:
        known = isinstance(call.op, ir.Op) and _REWRITES.get(call.op.name)
        if not known or str(call.ty) != "float32":
            return call
        replacement = known(*call.args)
        return call if replacement is None else replacement

    if isinstance(node, tirx.PrimFunc):
        body = vectorize_math(node.body)
        return tirx.PrimFunc(node.params, body, node.ret_type, node.attrs)
    node = tvm_ffi.structural_map(node, [(ir.Call, _widened)])
    node = tvm_ffi.structural_map(node, [(tirx.For, _apart)])
    callbacks = [(ir.Call, rewrite), (tirx.Div, _divide_by_power)]
    # Before its operands: a division must still see the power below it.
    return tvm_ffi.structural_map(node, callbacks, order="pre")
