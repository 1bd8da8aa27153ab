"""Exponential, logarithm and their relatives as vector arithmetic, on float32.

They are nothing but additions, multiplications, selections and shifts, so they run at the width of
the loop around them. They are written with `Let`, hence an argument is computed once.

The polynomials are weighted minimax fits (Lawson's iteration on 4000 Chebyshev nodes in
extended precision); their own relative error stands beside each, rounding comes on top.
Infinities, NaN and denormal results are as in the C library, but for `sigmoid`, which has none; the
sign of zero is kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tvm import ir, tirx

Expr = tirx.Expr

# exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2) / 2, relative error 3.1e-9
_EXP = (0.499999934, 0.166665206, 0.041668388, 0.00836871689, 0.00138145985)
# exp(r) = P(r) for |r| <= ln(2) / 2, relative error 7.5e-8
_SHORT_EXP = (1.0000001, 0.9999997, 0.49998894, 0.16667575, 0.041915383, 0.008297655)
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
# sinh(x) = x + x^3 P(x^2) for |x| <= 1: Taylor's series, relative error 1.4e-10
_SINH = tuple(1 / math.factorial(n) for n in (3, 5, 7, 9, 11))
# erf(x) = x P(2 (x / 3.92)^2 - 1) for |x| <= 3.92, relative error 2.5e-8. Around the middle of
# x^2, where powers stay below 1: in powers of x^2 itself, terms up to 1e5 would cancel. Of the
# coefficients' neighbours in float32 these have the smallest error after rounding, and give 1 to
# the last bit at the end.
_ERF_END = 3.92
_ERF = (
    0.360736817,
    -0.180108622,
    0.134084567,
    -0.109179229,
    0.0905969664,
    -0.0740198195,
    0.0583959967,
    -0.04343687,
    0.0296975709,
    -0.0199950095,
    0.0142099457,
    -0.0076605496,
    0.0019199762,
    -0.00139452599,
    0.00209875708,
    -0.000843930757,
)

# ln(2) in two parts: the first has 12 trailing zero bits, so its product with any exponent
# of a float32 is exact.
_LN2_HIGH = 0.693145751953125
_LN2_LOW = 1.42860682030941723212e-6
_LOG2_E = 1.44269504088896341
# Not far above the logarithm of the smallest normal number.
_SMALLEST_EXP = -87.0
_LARGEST = 3.4028234e38
# Adding this rounds to an integer and leaves that integer plus 127, the exponent bias, in
# the low bits of the sum.
_ROUND_AND_BIAS = 1.5 * 2**23 + 127


def f32(value: float) -> Expr:
    """Return a constant of float32."""
    return tirx.const(value, "float32")


def i32(value: int) -> Expr:
    """Return a constant of int32."""
    return tirx.const(value, "int32")


def let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
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
    result = f32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + f32(coefficient)
    return result


def _clamp(v: Expr, low: float, high: float) -> Expr:
    """Limit `v`; a NaN fails both comparisons and passes."""
    below_high = tirx.Select(v > f32(high), f32(high), v)
    # Of what the first one gives, not of `v`: then LLVM makes two instructions of both.
    return tirx.Select(below_high < f32(low), f32(low), below_high)


def _magnitude(v: Expr) -> Expr:
    return tirx.Select(v < f32(0.0), f32(0.0) - v, v)


def _with_sign_of(v: Expr, magnitude: Expr) -> Expr:
    return tirx.Select(v < f32(0.0), f32(-1.0), f32(1.0)) * magnitude


def _power_of_two(biased: Expr) -> Expr:
    """2^n, where `biased` is n + `_ROUND_AND_BIAS`."""
    bits = tirx.reinterpret("int32", biased)
    return tirx.reinterpret("float32", tirx.shift_left(bits, i32(23)))


def exp(x: Expr) -> Expr:
    """Return e^x for a float32 `x`, within 2 units in the last place."""
    # Beyond these the result is infinite, or zero, and the exponent would not fit.
    return let(x, lambda v: _exp(_clamp(v, -104.0, 89.0)))


def _exp(x: Expr, factor: float = 1.0) -> Expr:
    """Return e^x times a factor near 1 for -104 <= x <= 90, overflowing where the product does."""
    magic = f32(_ROUND_AND_BIAS)

    def scaled(r: Expr, n: Expr, half: Expr) -> Expr:
        # 2^n in two factors, for n = 128 and the denormals are no float32 by themselves.
        value = r * r * _polynomial(r, _EXP) + r + f32(1.0)
        return value * f32(factor) * _power_of_two(half) * _power_of_two(n - (half - magic) + magic)

    def reduced(v: Expr, n: Expr) -> Expr:
        rest = (v - n * f32(_LN2_HIGH)) - n * f32(_LN2_LOW)
        return let(rest, lambda r: let(n * f32(0.5) + magic, lambda h: scaled(r, n, h)))

    def rounded(v: Expr) -> Expr:
        # Each sum with `magic` needs a name: TVM would simplify `x + magic - magic` to `x`.
        total = v * f32(_LOG2_E) + magic
        return let(total, lambda t: let(t - magic, lambda n: reduced(v, n)))

    return let(x, rounded)


def exp_below_one(x: Expr) -> Expr:
    """Return e^x for a float32 `x` of at most 0; NaN stays NaN.

    Within 4 units in the last place, and 8 below e^-30, on cores with fused multiply-adds: as
    weights beside a largest one of 1 such values hardly count. Those below the smallest normal
    number are 0: denormal ones would be slow.
    """

    def value(v: Expr) -> Expr:
        limited = tirx.Select(v < f32(_SMALLEST_EXP), f32(_SMALLEST_EXP), v)
        power = let(limited, _normal_exp)
        return tirx.Select(v < f32(_SMALLEST_EXP), f32(0.0), power)

    return let(x, value)


def _normal_exp(x: Expr, ln2: tuple[float, ...] = (math.log(2),)) -> Expr:
    """Return e^x where neither it nor 2^n of its factors is denormal or infinite.

    ln(2) in one part: what n of them are off by is less than what a float32 of x near them is.
    """
    magic = f32(_ROUND_AND_BIAS)

    def reduced(v: Expr, t: Expr, n: Expr) -> Expr:
        rest = functools.reduce(lambda r, part: r - n * f32(part), ln2, v)
        power = let(rest, lambda r: _polynomial(r, _SHORT_EXP))
        return power * _power_of_two(t)

    return let(x * f32(_LOG2_E) + magic, lambda t: let(t - magic, lambda n: reduced(x, t, n)))


def sigmoid(x: Expr) -> Expr:
    """Return 1 / (1 + e^-x) for a float32 `x`; below -64 it is 1.6e-28, as at -64.

    Smaller results would be no more exact where they are added to others, but denormal, or make
    products denormal: x86 cores take some 100 cycles for each such operation. (Layers of YOLOv8
    behind x sigmoid(x) took 2.9 and 5.4 times as long with images that lead to them.)
    """
    # Beyond 30 the result is 1; e / (1 + e) needs no negation and e must not overflow.
    exact = functools.partial(_normal_exp, ln2=(_LN2_HIGH, _LN2_LOW))
    power = let(x, lambda v: let(_clamp(v, -64.0, 30.0), exact))
    return let(power, lambda e: e / (e + f32(1.0)))


def by_constant(a: Expr, divisor: float) -> Expr:
    """Return a / divisor, the same to the last bit with fused multiply-adds, but 0 for -0.

    P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor"
    (1990): a product with the rounded reciprocal, corrected by its remainder. Infinities have none.
    """
    inverse = f32(1.0 / divisor)

    def corrected(v: Expr) -> Expr:
        quotient = v * inverse
        exact = quotient + inverse * (v - f32(divisor) * quotient)
        below = tirx.Select(quotient < f32(_LARGEST), exact, quotient)
        return tirx.Select(quotient > f32(-_LARGEST), below, quotient)

    # TVM's pass that makes vectors refuses some names, above all of scalars that a vector is
    # multiplied by; LLVM loads an element once.
    return corrected(a) if isinstance(a, ir.TensorLoad) else let(a, corrected)


def tanh(x: Expr) -> Expr:
    """Return tanh(x) for a float32 `x`."""

    def small(v: Expr) -> Expr:
        return v * (v * v) * _polynomial(v * v, _TANH) + v

    exact = functools.partial(_normal_exp, ln2=(_LN2_HIGH, _LN2_LOW))

    def large(v: Expr, magnitude: Expr) -> Expr:
        # At 10 the result is 1 to the last bit.
        limited = tirx.Select(magnitude > f32(10.0), f32(10.0), magnitude)
        twice = let(limited + limited, exact)
        return _with_sign_of(v, f32(1.0) - f32(2.0) / (twice + f32(1.0)))

    def choose(v: Expr) -> Expr:
        return let(
            _magnitude(v),
            lambda m: tirx.Select(m < f32(_TANH_SMALL), small(v), large(v, m)),
        )

    return let(x, choose)


def cosh(x: Expr) -> Expr:
    """Return the hyperbolic cosine of a float32 `x`."""
    return let(x, lambda v: let(_half_exp(_magnitude(v)), lambda h: h + f32(0.25) / h))


def sinh(x: Expr) -> Expr:
    """Return the hyperbolic sine of a float32 `x`."""

    def large(v: Expr) -> Expr:
        return let(_half_exp(_magnitude(v)), lambda h: _with_sign_of(v, h - f32(0.25) / h))

    def choose(v: Expr) -> Expr:
        small = v * (v * v) * _polynomial(v * v, _SINH) + v
        return tirx.Select(_magnitude(v) < f32(1.0), small, large(v))

    return let(x, choose)


def _half_exp(x: Expr) -> Expr:
    """Return e^x / 2 for x >= 0, also where e^x is too large for a float32."""
    return _exp(_clamp(x, 0.0, 90.0), factor=0.5)


def erf(x: Expr) -> Expr:
    """Return the error function of a float32 `x`, within 4 units in the last place.

    One polynomial: two pieces, of which the outer needs an exponential, take half as many
    multiplications again, and as many nested bindings more for TVM to simplify.
    """

    def inside(v: Expr) -> Expr:
        centred = v * v * f32(2.0 / _ERF_END**2) - f32(1.0)
        return let(centred, lambda t: v * _polynomial(t, _ERF))

    # Beyond its end the result is 1 to the last bit.
    return let(x, lambda v: let(_clamp(v, -_ERF_END, _ERF_END), inside))


def log(x: Expr) -> Expr:
    """Return the natural logarithm of a float32 `x`; NaN below zero, -inf at zero."""
    smallest = f32(2.0**-126)

    def special(v: Expr, value: Expr) -> Expr:
        # Comparisons with NaN are false, so NaN reaches the last branch: v - v is NaN there.
        infinite = tirx.Select(v > f32(_LARGEST), v, value)
        positive = tirx.Select(v > f32(0.0), infinite, f32(0.0) * v + f32(float("nan")))
        return tirx.Select(v == f32(0.0), f32(float("-inf")), positive)

    def series(f: Expr, e: Expr) -> Expr:
        tail = f * f * (f * _polynomial(f, _LOG) - f32(0.5))
        return e * f32(_LN2_HIGH) + (f + (tail + e * f32(_LN2_LOW)))

    def split(bits: Expr, shift: Expr) -> Expr:
        # The exponent of x / sqrt(1/2): what remains lies in [sqrt(1/2), sqrt(2)).
        exponent = tirx.shift_right(bits - i32(0x3F3504F3), i32(23))
        return let(
            exponent,
            lambda e: let(
                tirx.reinterpret("float32", bits - tirx.shift_left(e, i32(23))) - f32(1.0),
                lambda f: series(f, tirx.Cast("float32", e) + shift),
            ),
        )

    def normal(v: Expr) -> Expr:
        scaled = tirx.Select(v < smallest, v * f32(2.0**23), v)
        shift = tirx.Select(v < smallest, f32(-23.0), f32(0.0))
        return special(v, let(tirx.reinterpret("int32", scaled), lambda b: split(b, shift)))

    return let(x, normal)
