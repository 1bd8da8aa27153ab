"""Winograd passes as tensor expressions, and which transforms they use."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from tvm import tirx

from tvm_blislike.cost_models.conv2d_winograd.config import WinogradConfig
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_winograd.integers import RESIDUES, check, integral
from tvm_blislike.schedules.conv2d_winograd.programs import flat_program, program
from tvm_blislike.schedules.conv2d_winograd.transforms import (
    ACCURATE_POINTS,
    Transforms,
    by_phases,
    matrices,
)


@functools.cache
def transform(m: int, r: int, dtype: str = "float32", stride: int = 1) -> Transforms:
    """Return F(m, r) with the points that err least, in integers with those that do not."""
    taps = math.ceil(r / stride)
    if _is_integer(dtype):
        return by_phases(integral(m, taps), r, stride)
    # Two multiplications more per output pass, a quarter of the error (F(4, 3)).
    points = ACCURATE_POINTS.get(m + taps - 1) if min(m, taps) > 1 else None
    return by_phases(matrices(m, taps, points), r, stride)


def transforms_of(
    workload: Conv2dWorkload, config: WinogradConfig
) -> tuple[Transforms, Transforms]:
    """Return the transforms along the height and along the width.

    Raises
    ------
    ValueError
        When they are not exact for such integers.
    """
    w, dtype = workload, workload.types.acc
    rows = transform(config.tile_h, w.kh, dtype, w.stride[0])
    columns = transform(config.tile_w, w.kw, dtype, w.stride[1])
    if w.types.is_integer_dot:
        check(w, rows, columns)
    return rows, columns


def one_pass(
    matrix: Sequence[Sequence[Fraction]], index: Any, inputs: Sequence[Any], dtype: str = "float32"
) -> Any:
    """Return element `index` of matrix x inputs: a chain of selects.

    A loop over `index` with the directive `WriteOut` leaves one branch in each copy.
    """
    steps = program(matrix, integral=_is_integer(dtype))
    return select(index, steps.apply(inputs, constant=_of(dtype)))


def flat_pass(
    rows: Sequence[Sequence[Fraction]],
    columns: Sequence[Sequence[Fraction]],
    at: tuple[Any, Any],
    inputs: Sequence[Any],
    dtype: str = "float32",
) -> Any:
    """Return element `at` of rows x inputs x columns^T, for the inputs of a patch row by row."""
    steps = flat_program(rows, columns, integral=_is_integer(dtype))
    values = steps.apply(inputs, constant=_of(dtype))
    width = len(columns)
    return select(at[0], [select(at[1], values[i * width :][:width]) for i in range(len(rows))])


def _of(dtype: str) -> Callable[[Fraction], Any]:
    """Return what makes constants of a data type."""
    if dtype == RESIDUES:
        return lambda value: tirx.const(int(value) % (1 << 32), dtype)
    number = int if _is_integer(dtype) else float
    return lambda value: tirx.const(number(value), dtype)


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def select(index: Any, values: Sequence[Any]) -> Any:
    """Return one of several values: a chain of selects, see `one_pass`."""
    result = values[-1]
    for i in reversed(range(len(values) - 1)):
        result = tirx.Select(index == i, values[i], result)
    return result


def where(channel: Any, channels: int, value: Any, other: Any, block: int = 0) -> Any:
    """Return `value` for channels that exist, which are all where they fill blocks.

    With a block, the condition holds wherever the schedule computes anything, and is simplified
    away; naming the last lane keeps `compute_at` from cutting the block to a varying size.
    """
    if block and channels % block == 0:
        return value
    return tirx.if_then_else(channel < channels, value, other)
