"""Rows of floats as three bytes, which products of integers multiply by weights of 8 bits.

A row x is rounded to steps of a power of two so that its largest magnitude takes 24 bits, the sign
included. With q[k] = round(x[k] / step) + 2 ** 23, an unsigned number of three bytes d,

    sum(x * w) = step * sum((q - 2 ** 23) * w)
               = step * (2**16 * (sum(d2 * w) - 128 * sum(w)) + 2**8 * sum(d1 * w) + sum(d0 * w))

where the sums are exact in 32 bits, and sum(w) is a constant of each column. So no weight becomes
a float. The three sums of a product are joined in fp32: the highest one without what the offset
adds, the others as they are, which are at most 2 ** -7 of the largest magnitude times sum(|w|).

The error of an output is at most half a step for each |w|, which is 2 ** -23 of the row's largest
magnitude times sum(|w|), and a few roundings of fp32. Weights were rounded before by up to half a
unit, 2 ** 14 steps of the largest magnitude and more. Rows with anything that is not finite become
NaN throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_blislike.choose.storage_choice import SPLITS
from tvm_blislike.passes import split_rows
from tvm_blislike.tvm_seams import constant

DIGITS, _ = SPLITS["int8"]
# Bits of a byte, of the mantissa of fp32 behind its first one, and of a number without its sign.
_BYTE, _MANTISSA, _MAGNITUDE = 8, 23, 23
_BIAS, _NOT_FINITE = 127, 255
# Biased exponent of the least rows with a step of their own, the smallest normal number.
_LEAST_EXPONENT = _MAGNITUDE
_OFFSET = 1 << (DIGITS * _BYTE - 1)
_MOST_BYTE, _MOST_SUM = (int(np.iinfo(dtype).max) for dtype in (np.uint8, np.int32))


def are_sums_exact(weights: np.ndarray) -> bool:
    """Whether all sums of bytes by these integers, (k, n), fit into 32 bits."""
    most = np.abs(weights.astype(np.int32)).sum(0, dtype=np.int64).max(initial=0)
    return bool(_MOST_BYTE * most <= _MOST_SUM)


def product(builder: relax.BlockBuilder, data: relax.Expr, weights: np.ndarray) -> relax.Expr:
    """Emit the product of rows of fp32 by weights of 8 bits; see `split_rows.product`.

    Parameters
    ----------
    weights : numpy.ndarray
        int8 (k, n), for which `are_sums_exact`.
    """
    offsets = (_OFFSET >> (DIGITS - 1) * _BYTE) * weights.sum(0, dtype=np.int32)
    constants = [constant(offsets, "int32")]
    return split_rows.product(builder, data, weights, digits, join, constants)


def digits(x: te.Tensor) -> list[te.Tensor]:
    """Define the bytes of rows, the highest first, uint8 (digits, m, k), and their steps, (m,).

    Parameters
    ----------
    x : te.Tensor
        float32 (m, k).
    """
    rows, k = x.shape
    step = te.reduce_axis((0, k), "s")

    def exponent(i: Any, j: Any) -> Any:
        return (tirx.reinterpret("int32", x[i, j]) >> _MANTISSA) & _NOT_FINITE

    # By integers, so that NaN counts as well.
    largest = te.compute((rows,), lambda i: te.max(exponent(i, step), axis=step), name="largest")

    def biased_step(i: Any) -> Any:
        return tirx.max(largest[i], _LEAST_EXPONENT) - (_MAGNITUDE - 1)

    def number(i: Any, j: Any) -> Any:
        scaled = te.round(x[i, j] * _power_of_two(2 * _BIAS - biased_step(i)))
        least, most = (tirx.const(at, "float32") for at in (-_OFFSET, _OFFSET - 1))
        within = tirx.max(tirx.min(scaled, most), least)
        return within.astype("int32") + _OFFSET

    def byte(d: Any, i: Any, j: Any) -> Any:
        shifted = number(i, j) >> ((DIGITS - 1 - d) * _BYTE)
        return (shifted & _MOST_BYTE).astype("uint8")

    def factor(i: Any) -> Any:
        nan = tirx.const(float("nan"), "float32")
        return tirx.Select(largest[i] < _NOT_FINITE, _power_of_two(biased_step(i)), nan)

    return [
        te.compute((DIGITS, rows, k), byte, name="bytes"),
        te.compute((rows,), factor, name="steps"),
    ]


def join(sums: te.Tensor, steps: te.Tensor, offsets: te.Tensor) -> te.Tensor:
    """Define the rows, float32 (m, n), of sums for each digit, int32 (digits, m, n).

    Parameters
    ----------
    steps : te.Tensor
        float32 (m,), of rows.
    offsets : te.Tensor
        int32 (n,), to be taken from the sums of the highest digit.
    """
    base = tirx.const(1 << _BYTE, "float32")

    def joined(i: Any, j: Any) -> Any:
        total = (sums[0, i, j] - offsets[j]).astype("float32")
        for digit in range(1, DIGITS):
            total = total * base + sums[digit, i, j].astype("float32")
        return total * steps[i]

    return te.compute(sums.shape[1:], joined, name="joined")


def _power_of_two(biased: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return the power of two of this biased exponent in fp32."""
    return tirx.reinterpret("float32", biased << _MANTISSA)
