"""Between which numbers a float of an epilogue lies, as far as types and constants tell.

Each operation is one of float32 on the ends: rounding keeps the order of numbers, so no result lies
beyond the rounded ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvm_blislike.model.marks import RANGES
from tvm_blislike.schedules.lowering.rewrite import collect, is_if

Range = tuple[np.float32, np.float32]
# Of what may be any number, or none.
ANY: Range = (np.float32(-np.inf), np.float32(np.inf))


def known_ranges(func: tirx.PrimFunc) -> dict[str, Range]:
    """Return what a function says of the constants that it is given, by the names of buffers."""
    said = func.attrs[RANGES] if func.attrs and RANGES in func.attrs else {}
    inner = {alloc.buffer.name for alloc in collect(func.body, tirx.AllocBuffer)}
    return {
        str(name): (np.float32(low), np.float32(high))
        for name, (low, high) in said.items()
        if str(name) not in inner
    }


def range_of(value: Any, known: Mapping[str, Range]) -> Range:
    """Return the least and the greatest number that a float32 can be.

    Parameters
    ----------
    value : tirx.Expr
        In scalar code.
    known : mapping of str to Range
        What lies in buffers, by their names.

    Returns
    -------
    Range
        `ANY` for what may be no number, and for expressions that are not known here.
    """
    low, high = _range_of(value, known)
    return ANY if np.isnan(low) or np.isnan(high) else (low, high)


def _range_of(value: Any, known: Mapping[str, Range]) -> Range:
    if isinstance(value, tirx.FloatImm):
        return np.float32(value.value), np.float32(value.value)
    if isinstance(value, ir.TensorLoad):
        return known.get(value.source.name, ANY)
    if isinstance(value, tirx.Cast):
        return _of_type(str(value.value.ty))
    if is_if(value):
        return _both(*(range_of(branch, known) for branch in value.args[1:]))
    if not isinstance(value, (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min)):
        return ANY
    return _combined(value, range_of(value.a, known), range_of(value.b, known))


def _combined(value: Any, a: Range, b: Range) -> Range:
    if isinstance(value, tirx.Max):
        return max(a[0], b[0]), max(a[1], b[1])
    if isinstance(value, tirx.Min):
        return min(a[0], b[0]), min(a[1], b[1])
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(value, tirx.Add):
            return a[0] + b[0], a[1] + b[1]
        if isinstance(value, tirx.Sub):
            return a[0] - b[1], a[1] - b[0]
        ends = [x * y for x, y in itertools.product(a, b)]
        return np.min(ends), np.max(ends)


def _both(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])


def _of_type(dtype: str) -> Range:
    """Return the range of an integer type in float32."""
    if not dtype.lstrip("u").startswith("int"):
        return ANY
    info = np.iinfo(dtype)
    return np.float32(info.min), np.float32(info.max)
