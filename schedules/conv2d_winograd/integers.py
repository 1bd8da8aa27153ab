"""Winograd convolutions of integers, exact: every sum modulo 2^32, one division at the end.

The matrices of F(m, r) with rows multiplied until all are integers compute s times the result,

    s y = AT [ (s G g) * (BT d) ],        s = s_h s_w in two dimensions.

Transformed operands of 8-bit integers fit into 16 bits, and products of those are what dot products
of pairs take (`vpmaddwd`). Sums of them may leave 32 bits, in the products and in the output
transform; but additions and multiplications modulo 2^32 are exact whatever is in between. With
s = 2^e q, q odd and therefore invertible modulo 2^32,

    q^-1 (s y) = 2^e y  modulo 2^32,

and an arithmetic shift by e gives y, if y itself fits into 32 - e bits. So points are chosen
for a small e and small entries of all matrices (of all sets of 0 and fractions up to 4 the ones
below are best): e = 1 an axis, where the usual 2 and -2 of F(4, 3) have e = 3.

Code for AVX2 on one core of Zen 4, fastest of many runs in ms, by turns, integers requantized:

    channels, size    F(2, 3)    F(4, 3)    direct    fp32 F(4, 3)
    64, 56            0.65       0.43       1.30      0.73
    128, 28           0.61       0.41       1.32      0.71
    256, 14           0.62       0.50       1.33      0.78
    512, 7            0.83       1.16       1.45      1.56

Beside dot products of bytes (`vpdpbusd`), which multiply twice as many a cycle, on the same core
with vectors of 512 bits:

    channels, size    F(2, 3)    F(4, 3)    direct
    64, 56            0.65       0.36       0.50
    128, 28           0.54       0.37       0.50
    256, 14           0.61       0.46       0.49
    512, 7            0.82       0.55       0.50

Residues instead of rounding, as in Liu and Mattina, "Efficient Residue Number System Based Winograd
Convolution", ECCV 2020, who need several moduli, of few bits each, for larger tiles.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import tirx

from tvm_blislike.cost_models.conv2d_winograd.integers import shift_of
from tvm_blislike.model.types import data_range, weights_range
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_winograd.transforms import Matrix, Transforms, matrices, verify

# By the number of points, infinity included.
POINTS = {
    3: (0, 1),
    4: (0, 1, -1),
    5: (0, 1, -1, 2),
    6: (0, 1, -1, 2, Fraction(-1, 2)),
}
# In which the output transform computes.
RESIDUES = "uint32"
_BITS = 32
_WORD = np.iinfo(np.int16)


@functools.cache
def integral(m: int, r: int) -> Transforms:
    """Return F(m, r) in integers; G is multiplied by `Transforms.scale`.

    Raises
    ------
    ValueError
        When there are no points for so many outputs and taps.
    """
    if min(m, r) == 1:
        return matrices(m, r)
    if m + r - 1 not in POINTS:
        raise ValueError(f"no F({m}, {r}) in integers of 16 bits: choose m + r - 1 of {[*POINTS]}")
    exact = matrices(m, r, POINTS[m + r - 1])
    bt, g = [], []
    for b_row, g_row in zip(exact.bt, exact.g, strict=True):
        factor = math.lcm(*(value.denominator for value in b_row))
        factor = Fraction(factor, math.gcd(*(int(value * factor) for value in b_row)))
        bt.append(tuple(value * factor for value in b_row))
        g.append(tuple(value / factor for value in g_row))
    scale = math.lcm(*(value.denominator for row in g for value in row))
    scaled = tuple(tuple(value * scale for value in row) for row in g)
    return verify(replace(exact, g=scaled, bt=tuple(bt), scale=scale))


def check(workload: Conv2dWorkload, rows: Transforms, columns: Transforms) -> None:
    """Prove that no transformed operand leaves 16 bits and that the result can be divided.

    Raises
    ------
    ValueError
        When some data or weights would make it wrong.
    """
    w = workload
    data, weights = data_range(w.types), weights_range(w.types)
    for what, (low, high) in (
        ("data", _range(rows.bt, columns.bt, data)),
        ("weights", _range(rows.g, columns.g, weights)),
    ):
        if low < _WORD.min or high > _WORD.max:
            raise ValueError(
                f"F({rows.m}, {rows.r}) by F({columns.m}, {columns.r}) of {w.types} make {what} "
                f"{low} to {high}, which do not fit into 16 bits: choose smaller tiles"
            )
    most = w.ci * w.kh * w.kw * max(map(abs, data)) * max(map(abs, weights))
    shift = shift_of(rows.scale * columns.scale)
    if most >= 1 << (_BITS - 1 - shift):
        raise ValueError(
            f"sums of {w.ci * w.kh * w.kw} products do not fit into {_BITS - shift} bits: "
            "choose smaller tiles or another algorithm"
        )


def _range(rows: Matrix, columns: Matrix, values: tuple[int, int]) -> tuple[int, int]:
    """Return the least and the largest element of R d C^T for all d of such values."""
    low, high = values
    found = []
    for row in rows:
        for column in columns:
            factors = [a * b for a in row for b in column]
            ups = sum(factor for factor in factors if factor > 0)
            downs = sum(factor for factor in factors if factor < 0)
            found += [ups * low + downs * high, ups * high + downs * low]
    return int(min(found)), int(max(found))


def transform_weights(weights: np.ndarray, rows: Transforms, columns: Transforms) -> np.ndarray:
    """Return s G g G^T of every kernel (co, ci, kh, kw): int16, (rows.n, columns.n, ci, co)."""
    g_h, g_w = (np.array(t.g, "float64").astype("int64") for t in (rows, columns))
    half = np.tensordot(g_h, weights.astype("int64"), axes=(1, 2))
    points = np.tensordot(g_w, half, axes=(1, 3)).transpose(1, 0, 3, 2)
    return np.ascontiguousarray(points, "int16")


def residue(value: Any) -> Any:
    """Return a sum of int32 modulo 2^32: TVM takes int32 for integers that never overflow."""
    return tirx.reinterpret(RESIDUES, value)


def divided(value: Any, scale: int) -> Any:
    """Return the int32 of which a residue is `scale` times as much."""
    shift = shift_of(scale)
    inverse = pow(scale >> shift, -1, 1 << _BITS)
    odd = value if inverse == 1 else value * tirx.const(inverse, RESIDUES)
    signed = tirx.reinterpret("int32", odd)
    return tirx.shift_right(signed, tirx.const(shift, "int32")) if shift else signed
