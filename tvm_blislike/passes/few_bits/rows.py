"""Rows of floats as integers of 8 bits, with a scale for each block of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

_MOST = np.iinfo(np.int8).max


def quantized(x: te.Tensor) -> list[te.Tensor]:
    """Define integers (m, blocks, block), scales and sums of the integers (m, blocks), int32.

    The largest of a block becomes 127, as in ONNX Runtime.

    Parameters
    ----------
    x : te.Tensor
        float32 (m, blocks, block).
    """
    shape, block = x.shape[:2], x.shape[2]
    step, summed = (te.reduce_axis((0, block), name) for name in ("s", "t"))
    zero, most = (tirx.const(number, "float32") for number in (0, _MOST))
    largest = te.compute(shape, lambda *at: te.max(te.abs(x(*at, step)), axis=step), name="largest")
    scales = te.compute(shape, lambda *at: largest(*at) / most, name="scales")

    def integer(i: Any, b: Any, p: Any) -> Any:
        inverse = tirx.Select(largest[i, b] > zero, most / largest[i, b], zero)
        return te.round(x[i, b, p] * inverse).astype("int8")

    steps = te.compute(x.shape, integer, name="steps")
    sums = te.compute(
        shape, lambda *at: te.sum(steps(*at, summed).astype("int32"), axis=summed), name="sums"
    )
    return [steps, scales, sums]
