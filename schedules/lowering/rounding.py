"""Floats become integers of 8 or 16 bits by the low bits of a sum: requantization's last step.

    clip(round(x) + zero, low, high)
    -> the low bits of min(bits of max(x, low - zero) + 1.5 * 2^23 + zero, high)

At 1.5 * 2^23 the last bit of a float32 counts ones, so the sum is rounded to the nearest integer,
ties to even ones, and its low bits are that integer. An even zero point joins the constant. An odd
one would turn ties around: the 1 is added to the low bits.

Positive floats are in the order of their bits as int32, so the upper bound is one of bits: a sum
that leaves the binade is beyond it, and becomes it. Integers are compared by more units than floats
are (Zen 4: two vectors a cycle, and floats one, by the units that convert sums). The lower bound
comes before the sum where x is a product, or both would be one instruction of one rounding: faster,
but 50 * 0.11 is 5.5 in fp32 and rounded to 6 there, as QuantizeLinear does, and not quite 5.5
before. Where x is none, the lower bound is one of bits, too: negative floats are below all others.

An integer with its zero point that is needed as a float is the same sum without the constant. One
without, as a term of a residual addition is, stays a rounding between bounds: three instructions,
of which one has the units of conversions and sums, not four and two.

Where an instruction set has packs that saturate, and types and constants tell that x is an integer
of 32 bits, bounds and narrowing are left to them (`packs`):

    -> clip(lrint(x) + zero, low, high)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.schedules.lowering import packs
from tvm_blislike.schedules.lowering.ranges import Range, known_ranges, range_of
from tvm_blislike.schedules.lowering.vector_functions import f32, i32

_SMALL = ("int8", "uint8", "int16")
_ONES = 1.5 * 2**23
# LLVM's rounding to a whole number, ties to even ones: one instruction.
_WHOLE = "llvm.roundeven"
# Of bounds and zero point: the sum stays where its last bit counts ones.
_MOST = 2**21
# Of x, which a contraction of product and sum may move by its last digit: stays within 32 bits.
_INTEGERS = 2.0**31 - 2.0**16


@dataclass(frozen=True)
class _Rounded:
    """`clip(round(x) + zero, low, high)`."""

    x: Any
    zero: float
    low: float
    high: float

    @property
    def is_odd(self) -> int:
        """1 for an odd zero point, else 0."""
        return int(self.zero) % 2


def by_low_bits(node: tirx.PrimFunc) -> tirx.PrimFunc:
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
    known = known_ranges(node) if packs.joins(node) else None
    as_integer = partial(_as_integer, known=known)
    body = tvm_ffi.structural_map(node.body, [(tirx.Cast, as_integer)])
    return node.with_body(tvm_ffi.structural_map(body, [(tirx.Max, _as_float)]))


def _as_integer(cast: tirx.Cast, known: Mapping[str, Range] | None) -> Any:
    found = _rounded(cast.value) if str(cast.ty) in _SMALL else None
    if found is None:
        return cast
    if known is not None and str(cast.ty) in packs.BYTES and _is_for_packs(found, known):
        return tirx.Cast(cast.ty, _clipped(found))
    narrow = tirx.Cast(cast.ty, _inside(found))
    return narrow + tirx.const(1, str(cast.ty)) if found.is_odd else narrow


def _is_for_packs(found: _Rounded, known: Mapping[str, Range]) -> bool:
    """Whether x is an integer of 32 bits with the zero point, too."""
    low, high = range_of(found.x, known)
    return -_INTEGERS <= low and high <= _INTEGERS and abs(found.zero) <= packs.MOST_ZERO


def _clipped(found: _Rounded) -> Any:
    whole = packs.nearest(found.x)
    moved = whole + i32(int(found.zero)) if found.zero else whole
    return tirx.max(tirx.min(moved, i32(int(found.high))), i32(int(found.low)))


def _as_float(clipped: tirx.Max) -> Any:
    """Return an integer that more floats are computed from as one, without the constant."""
    found = _rounded(clipped)
    if found is None:
        return clipped
    if not found.zero:
        whole = tirx.call_llvm_pure_intrin("float32", _WHOLE, found.x)
        return tirx.max(tirx.min(whole, f32(found.high)), f32(found.low))
    return tirx.reinterpret("float32", _inside(found)) - f32(_ONES - found.is_odd)


def _inside(found: _Rounded) -> Any:
    """Return the bits of 1.5 * 2^23 and the integer, without the 1 of an odd zero point."""
    is_product = isinstance(found.x, tirx.Mul)
    x = tirx.max(found.x, f32(found.low - found.zero)) if is_product else found.x
    bits = tirx.reinterpret("int32", x + f32(_ONES + found.zero - found.is_odd))
    low, high = (_bits(bound - found.is_odd) for bound in (found.low, found.high))
    return tirx.min(bits, high) if is_product else tirx.max(tirx.min(bits, high), low)


def _bits(whole: float) -> Any:
    """Return the bits of 1.5 * 2^23 plus an integer."""
    return i32(int(np.float32(_ONES + whole).view(np.int32)))


def _rounded(value: Any) -> _Rounded | None:
    """Return what a float is, None for anything else and where sums could leave the binade."""
    if str(value.ty) != "float32":
        return None
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
    numbers = (zero, low, high)
    whole = all(abs(number) <= _MOST and number.is_integer() for number in numbers)
    return _Rounded(value.args[0], *numbers) if is_round and whole else None
