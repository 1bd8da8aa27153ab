"""One-dimensional Winograd passes as tensor expressions, and which transforms they use."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from tvm import tirx

from tvm_blislike.schedules.winograd_programs import program
from tvm_blislike.schedules.winograd_transforms import ACCURATE_POINTS, Transforms, matrices


def transform(m: int, r: int) -> Transforms:
    """Return F(m, r) with the points that err least."""
    # Two multiplications more per output pass, a quarter of the error (F(4, 3)).
    points = ACCURATE_POINTS.get(m + r - 1) if min(m, r) > 1 else None
    return matrices(m, r, points)


def one_pass(matrix: Sequence[Sequence[Fraction]], index: Any, inputs: Sequence[Any]) -> Any:
    """Return element `index` of matrix x inputs: a chain of selects.

    A loop over `index` with the annotation `lowering.UNROLL` leaves one branch in each copy.
    """
    values = program(matrix).apply(inputs, constant=lambda c: tirx.const(float(c), "float32"))
    result = values[-1]
    for i in reversed(range(len(values) - 1)):
        result = tirx.Select(index == i, values[i], result)
    return result
