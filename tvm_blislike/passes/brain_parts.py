"""Rows of floats in two parts of bfloat16, which multiply weights of 8 bits.

The first part is a number cut off behind 8 bits of its mantissa, the second one the rest, rounded
to as many: together they are off by 2 ** -16 of the number, where e4m3 rounds weights by up to
2 ** -4. Products of bfloat16 are exact, sums are fp32; processors take denormal parts and sums for
zeros. Rows with anything that is not finite become NaN throughout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_blislike.passes import split_rows

# The sign, the exponent and what bfloat16 has of the mantissa.
_UPPER_HALF = -0x10000


def product(builder: relax.BlockBuilder, data: relax.Expr, weights: np.ndarray) -> relax.Expr:
    """Emit the product of rows of fp32 by weights of fp8; see `split_rows.product`."""
    return split_rows.product(builder, data, weights, parts, add)


def parts(x: te.Tensor) -> te.Tensor:
    """Define both parts of rows, bfloat16 (2, m, k), the larger one first.

    Parameters
    ----------
    x : te.Tensor
        float32 (m, k).
    """

    def part(number: Any, i: Any, j: Any) -> Any:
        bits = tirx.reinterpret("int32", x[i, j]) & tirx.const(_UPPER_HALF, "int32")
        first = tirx.reinterpret("float32", bits)
        return tirx.Select(number == 0, first, x[i, j] - first).astype("bfloat16")

    return te.compute((2, *x.shape), part, name="parts")


def add(sums: te.Tensor) -> te.Tensor:
    """Define the sums of both parts of rows, (m, n) of (2, m, n)."""
    return te.compute(sums.shape[1:], lambda i, j: sums[0, i, j] + sums[1, i, j], name="added")
