"""Linear interpolation of images in NCHW: along the rows first, by tables of pixels and shares.

TVM's function finds four pixels and the share of each for every element by itself, none of them in
vectors. The rows of a smaller image have few elements to be found like that; of these, rows of the
result are sums of two. The tables are constants, in the arithmetic of TVM's function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from tvm_blislike.model.layouts import NCHW
from tvm_blislike.tvm_seams import constant, dtype_name, static_shape
from tvm_blislike.tvm_seams.attributes import NEVER_FUSED

_MODES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


@dataclass(frozen=True)
class _Axis:
    """Where the elements of a result lie along an axis.

    Parameters
    ----------
    first, second : ndarray of int32
        The pixels around each of them.
    share : ndarray of float32
        Of the second one.
    """

    first: np.ndarray
    second: np.ndarray
    share: np.ndarray

    @staticmethod
    def of(mode: str, size: int, new_size: int) -> _Axis:
        """Return an axis of so many pixels with so many elements."""
        at = _coordinates(mode, size, new_size)
        low = np.floor(at)
        first = np.clip(low, 0, size - 1).astype(np.int32)
        second = np.clip(low + 1, 0, size - 1).astype(np.int32)
        return _Axis(first, second, (at - low).astype(np.float32))

    def constants(self) -> list[relax.Expr]:
        """Return the tables."""
        pairs = ((self.first, "int32"), (self.second, "int32"), (self.share, "float32"))
        return [constant(table, dtype) for table, dtype in pairs]


def lower_resize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Return two functions that interpolate fp32, along rows and between them.

    None for other methods, layouts and types, and where there are as many rows as elements of the
    result ask for.
    """
    attrs, data = call.attrs, call.args[0]
    before, after = static_shape(data), static_shape(call)
    mode, types = str(attrs.coordinate_transformation_mode), {dtype_name(data), dtype_name(call)}
    if before is None or after is None or attrs.method != "linear" or mode not in _MODES:
        return None
    if attrs.layout != NCHW or types != {"float32"} or before[2] >= 2 * after[2]:
        return None
    (_, _, height, width), (_, _, new_height, new_width) = before, after
    along = builder.emit(
        builder.call_te(
            _along_rows,
            data,
            *_Axis.of(mode, width, new_width).constants(),
            primfunc_name_hint="resize_along_rows",
            primfunc_attrs=dict(NEVER_FUSED),
        )
    )
    rows = _Axis.of(mode, height, new_height).constants()
    return builder.call_te(_between_rows, along, *rows, primfunc_name_hint="resize_between_rows")


def _along_rows(x: te.Tensor, first: te.Tensor, second: te.Tensor, share: te.Tensor) -> te.Tensor:
    return te.compute(
        (*x.shape[:3], first.shape[0]),
        lambda n, c, h, w: _between(x[n, c, h, first[w]], x[n, c, h, second[w]], share[w]),
    )


def _between_rows(x: te.Tensor, first: te.Tensor, second: te.Tensor, share: te.Tensor) -> te.Tensor:
    return te.compute(
        (*x.shape[:2], first.shape[0], x.shape[3]),
        lambda n, c, h, w: _between(x[n, c, first[h], w], x[n, c, second[h], w], share[h]),
    )


def _between(one: tirx.Expr, other: tirx.Expr, share: tirx.Expr) -> tirx.Expr:
    return one * (np.float32(1) - share) + other * share


def _coordinates(mode: str, size: int, new_size: int) -> np.ndarray:
    """Return where the elements of a result lie, in pixels, each operation rounded to fp32."""
    index, half = np.arange(new_size, dtype=np.float32), np.float32(0.5)
    if mode == "align_corners":
        return index * (np.float32(size - 1) / np.float32(max(1, new_size - 1)))
    scale = np.float32(size) / np.float32(new_size)
    if mode == "asymmetric":
        return index * scale
    if mode == "pytorch_half_pixel" and new_size == 1:
        return np.zeros(1, np.float32)
    return (index + half) * scale - half
