"""Powers by multiples of 1/4 as vector arithmetic, on float32: multiplications and roots."""

from __future__ import annotations

from tvm import tirx

from tvm_blislike.schedules.lowering.vector_functions import Expr, f32, i32, let


def _inverse_fourth_root(v: Expr) -> Expr:
    """Return v^(-1/4) for 0 < v < infinity, by three Newton steps."""
    smallest = f32(2.0**-126)

    def step(value: Expr, y: Expr) -> Expr:
        # Multiplied in this order nothing over- or underflows on the way.
        return y + y * (f32(0.25) - value * y * y * (y * y) * f32(0.25))

    def converged(value: Expr) -> Expr:
        # Shifting the bits divides exponent and, roughly, logarithm by four: within 3.2 %.
        bits = tirx.reinterpret("int32", value)
        start = tirx.reinterpret("float32", i32(0x4F586000) - tirx.shift_right(bits, i32(2)))
        first = let(start, lambda y: step(value, y))
        second = let(first, lambda y: step(value, y))
        return let(second, lambda y: step(value, y))

    normal = tirx.Select(v < smallest, v * f32(2.0**48), v)
    scale = tirx.Select(v < smallest, f32(2.0**12), f32(1.0))
    return let(normal, converged) * scale


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
        return let(
            _inverse_fourth_root(v),
            lambda y: _product([y] * (4 * whole - quarters) + [v] * whole),
        )

    def choose(v: Expr) -> Expr:
        at_most = tirx.Select(v < f32(float("inf")), finite(v), f32(infinite))
        at_zero = tirx.Select(v == f32(0.0), f32(zero), f32(float("nan")))
        return tirx.Select(v > f32(0.0), at_most, at_zero)

    return let(x, choose)


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
        return result if quarters > 0 else f32(1.0) / result

    return let(x, product)
