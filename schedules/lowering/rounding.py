"""Floats become integers of 8 or 16 bits in four instructions, not six: requantization's last step.

    clip(round(x) + zero, low, high)
    -> the low bits of clip(x, low - zero, high - zero) + 1.5 * 2^23 + zero

At 1.5 * 2^23 the last bit of a float32 counts ones, so the sum is rounded to the nearest integer,
ties to even ones, and its low bits are that integer. Clipped before, no sum leaves that binade; the
bounds are integers, so clipping before rounding is clipping after it. An even zero point joins the
constant. An odd one would turn ties around: it is added to the integer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.schedules.lowering.vector_functions import f32, i32

_SMALL = ("int8", "uint8", "int16")
_ONES = 1.5 * 2**23
# Of bounds and zero point: the sum stays where its last bit counts ones.
_MOST = 2**21


@dataclass(frozen=True)
class _Rounded:
    """`clip(round(x) + zero, low, high)`."""

    x: Any
    zero: float
    low: float
    high: float


def by_low_bits(node: Any) -> Any:
    """Replace roundings of float32 to small integers within bounds, in scalar code.

    Parameters
    ----------
    node : tirx.PrimFunc
        Loops may be marked as vectorized, none may be a vector yet.

    Returns
    -------
    tirx.PrimFunc
        Of equal results, but for what is no number.
    """
    body = tvm_ffi.structural_map(node.body, [(tirx.Cast, _replaced)])
    return node.with_body(body)


def _replaced(cast: tirx.Cast) -> Any:
    is_small = str(cast.ty) in _SMALL and str(cast.value.ty) == "float32"
    found = _rounded(cast.value) if is_small else None
    if found is None or max(map(abs, (found.zero, found.low, found.high))) > _MOST:
        return cast
    odd = int(found.zero) % 2
    inside = tirx.max(tirx.min(found.x, f32(found.high - found.zero)), f32(found.low - found.zero))
    bits = tirx.reinterpret("int32", inside + f32(_ONES + found.zero - odd))
    return tirx.Cast(cast.ty, bits + i32(1) if odd else bits)


def _rounded(value: Any) -> _Rounded | None:
    """Return what a float is, None for anything else."""
    low, high = float("-inf"), float("inf")
    while isinstance(value, (tirx.Max, tirx.Min)) and isinstance(value.b, tirx.FloatImm):
        bound = float(value.b.value)
        if isinstance(value, tirx.Max):
            low, high = max(low, bound), max(high, bound)
        else:
            low, high = min(low, bound), min(high, bound)
        value = value.a
    zero = 0.0
    if isinstance(value, tirx.Add) and isinstance(value.b, tirx.FloatImm):
        zero, value = float(value.b.value), value.a
    # What `relax.op.round` becomes; `tirx.round` need not turn ties to even numbers.
    is_round = isinstance(value, ir.Call) and getattr(value.op, "name", "") == "tirx.nearbyint"
    whole = all(number.is_integer() for number in (zero, low, high) if abs(number) <= _MOST)
    return _Rounded(value.args[0], zero, low, high) if is_round and whole else None
