"""`DynamicQuantizeLinear`: one kernel for scale and zero point, one for the steps.

ONNX, DynamicQuantizeLinear: scale = (max(x, 0) - min(x, 0)) / 255, zero point = -min(x, 0) / scale,
rounded. Zeros alone have the scale 1, as in ONNX Runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op

from tvm_blislike.tvm_seams import dtype_name, static_shape
from tvm_blislike.tvm_seams.attributes import NEVER_FUSED

_STEPS = np.iinfo(np.uint8).max
# Elements of a row whose extrema are found together: long enough to fill vectors, and threads
# divide the rows.
_ROW = 256


def dynamic_quantize(
    builder: relax.BlockBuilder, operands: Sequence[relax.Expr | None], _settings: object
) -> relax.Expr | None:
    """Convert `DynamicQuantizeLinear`: (steps, scale, zero point); None for an unknown shape."""
    data = operands[0]
    shape = static_shape(data)
    if not shape or 0 in shape or dtype_name(data) != "float32":
        return None
    rows = builder.emit(op.reshape(data, _rows(shape)))
    call = builder.call_te(
        _range, rows, primfunc_name_hint="dynamic_range", primfunc_attrs=dict(NEVER_FUSED)
    )
    found = builder.emit(call)
    parts = (builder.emit(relax.TupleGetItem(found, number)) for number in range(2))
    scale, zero = (builder.emit(op.reshape(part, ())) for part in parts)
    steps = builder.emit(op.quantize(data, scale, zero, axis=-1, out_dtype="uint8"))
    return relax.Tuple([steps, scale, zero])


def _rows(shape: Sequence[int]) -> tuple[int, int]:
    """Return the shape of a matrix of the same elements whose rows are whole axes, and long."""
    inner = next(
        (axis for axis in range(len(shape) - 1, 0, -1) if math.prod(shape[axis:]) >= _ROW), 0
    )
    inner = inner or min(1, len(shape) - 1)
    return math.prod(shape[:inner]), math.prod(shape[inner:])


def _range(data: te.Tensor) -> list[te.Tensor]:
    """Define scale and zero point of a matrix, each a vector of one element."""
    low = _extremum(_extremum(data, tirx.Min), tirx.Min)
    high = _extremum(_extremum(data, tirx.Max), tirx.Max)
    zero, one, steps = (tirx.const(number, "float32") for number in (0, 1, _STEPS))

    def size(i: Any) -> Any:
        span = (tirx.Max(high[i], zero) - tirx.Min(low[i], zero)) / steps
        return tirx.Select(span == zero, one, span)

    scale = te.compute((1,), size, name="scale")

    def place(i: Any) -> Any:
        steps_below = te.round((zero - tirx.Min(low[i], zero)) / scale[i])
        return tirx.Min(tirx.Max(steps_below, zero), steps).astype("uint8")

    return [scale, te.compute((1,), place, name="zero")]


def _extremum(x: te.Tensor, smaller_or_larger: Callable[[Any, Any], Any]) -> te.Tensor:
    """Reduce the last axis; what is left of a vector is a vector of one element."""
    start = float("inf") if smaller_or_larger is tirx.Min else float("-inf")
    reduce = te.comm_reducer(
        lambda a, b: smaller_or_larger(a, b), lambda dtype: tirx.const(start, dtype)
    )
    step = te.reduce_axis((0, x.shape[-1]), "k")
    if len(x.shape) == 1:
        return te.compute((1,), lambda _: reduce(x[step], axis=step), name="extremum")
    return te.compute((x.shape[0],), lambda i: reduce(x[i, step], axis=step), name="extrema")
