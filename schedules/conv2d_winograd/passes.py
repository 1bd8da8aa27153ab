"""Winograd passes as tensor expressions, and which transforms they use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from tvm import tirx

from tvm_blislike.schedules.conv2d_winograd.programs import flat_program, program
from tvm_blislike.schedules.conv2d_winograd.transforms import ACCURATE_POINTS, Transforms, matrices


def transform(m: int, r: int) -> Transforms:
    """Return F(m, r) with the points that err least."""
    # Two multiplications more per output pass, a quarter of the error (F(4, 3)).
    points = ACCURATE_POINTS.get(m + r - 1) if min(m, r) > 1 else None
    return matrices(m, r, points)


def one_pass(
    matrix: Sequence[Sequence[Fraction]], index: Any, inputs: Sequence[Any], dtype: str = "float32"
) -> Any:
    """Return element `index` of matrix x inputs: a chain of selects.

    A loop over `index` with the directive `WriteOut` leaves one branch in each copy.
    """
    return select(index, program(matrix).apply(inputs, constant=_of(dtype)))


def flat_pass(
    rows: Sequence[Sequence[Fraction]],
    columns: Sequence[Sequence[Fraction]],
    at: tuple[Any, Any],
    inputs: Sequence[Any],
    dtype: str = "float32",
) -> Any:
    """Return element `at` of rows x inputs x columns^T, for the inputs of a patch row by row."""
    values = flat_program(rows, columns).apply(inputs, constant=_of(dtype))
    width = len(columns)
    return select(at[0], [select(at[1], values[i * width :][:width]) for i in range(len(rows))])


def _of(dtype: str) -> Callable[[Fraction], Any]:
    """Return what makes constants of a data type."""
    return lambda value: tirx.const(float(value), dtype)


def select(index: Any, values: Sequence[Any]) -> Any:
    """Return one of several values: a chain of selects, see `one_pass`."""
    result = values[-1]
    for i in reversed(range(len(values) - 1)):
        result = tirx.Select(index == i, values[i], result)
    return result
