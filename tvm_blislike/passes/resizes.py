"""Linear interpolation by tables of pixels and shares, of images and of volumes.

TVM's function finds four pixels and the share of each for every element by itself, in NCHW none of
them in vectors. The rows of a smaller image have few elements to be found like that; of these, rows
of the result are sums of two. An image that changes one size alone needs two pixels in any
layout. The tables are constants, in the arithmetic of TVM's function.

Volumes are interpolated in their slices, then in their columns: the order of TVM's function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_blislike.model.layouts import NCHW, Layout
from tvm_blislike.tvm_seams import constant, dtype_name, static_shape
from tvm_blislike.tvm_seams.attributes import FUSES_LIKE_A_MOVE, NEVER_FUSED

# How a function is fused with its neighbours.
_Fused = Mapping[str, Any]

RESIZED_VOLUME = "relax.image.resize3d"
# In these an axis that keeps its size keeps its elements.
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
    """Return functions that interpolate fp32, along rows and between them.

    None for other methods and types; for images whose both sizes change also in other layouts
    than NCHW, and where there are as many rows as elements of the result ask for.
    """
    attrs, data = call.attrs, call.args[0]
    mode, types = str(attrs.coordinate_transformation_mode), {dtype_name(data), dtype_name(call)}
    shapes = static_shape(data), static_shape(call)
    if None in shapes or attrs.method != "linear" or mode not in _MODES or types != {"float32"}:
        return None
    layout = Layout(attrs.layout)
    (_, _, height, width), (_, _, new_height, new_width) = map(layout.sizes, shapes)
    width_changes, height_changes = width != new_width, height != new_height
    both = width_changes and height_changes
    if both and (layout != NCHW or height >= 2 * new_height):
        return None

    def along(axis: int, data: relax.Expr, table: _Axis, name: str, fused: _Fused) -> relax.Expr:
        hints = {"primfunc_name_hint": name, "primfunc_attrs": dict(fused)}
        return builder.call_te(partial(_along, axis), data, *table.constants(), **hints)

    if width_changes:
        axis, table = layout.height_axis + 1, _Axis.of(mode, width, new_width)
        # What follows would find each pixel of a row anew for each row of the result.
        fused = NEVER_FUSED if both else FUSES_LIKE_A_MOVE
        data = along(axis, data, table, "resize_along_rows", fused)
    if height_changes:
        data = builder.emit(data) if both else data
        table = _Axis.of(mode, height, new_height)
        data = along(layout.height_axis, data, table, "resize_between_rows", FUSES_LIKE_A_MOVE)
    return data


def is_by_axes(call: relax.Call) -> bool:
    """Whether a resized volume is that of its slices, resized along the depth."""
    attrs = call.attrs
    return (
        str(attrs.layout) == "NCDHW"
        and attrs.method in ("linear", "nearest_neighbor")
        and attrs.coordinate_transformation_mode in _MODES
    )


def resize_image(
    call: relax.Call, image: relax.Expr, pixels: relax.Expr | tuple[int, int], **others: Any
) -> relax.Call:
    """Return an image that is resized as a call resizes another, not yet emitted.

    Parameters
    ----------
    call : relax.Call
        `resize2d` or `resize3d`.
    image : relax.Expr
        (n, c, h, w), or in the layout that is among the others.
    pixels : relax.Expr or tuple of int
        Its new height and width.
    **others
        Attributes in another form than the call's: layout and region.
    """
    attrs = call.attrs
    return relax.op.image.resize2d(
        image,
        pixels,
        method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        rounding_method=attrs.rounding_method,
        cubic_alpha=attrs.cubic_alpha,
        cubic_exclude=attrs.cubic_exclude,
        extrapolation_value=attrs.extrapolation_value,
        out_dtype=attrs.out_dtype,
        **others,
    )


def _along(
    axis: int, x: te.Tensor, first: te.Tensor, second: te.Tensor, share: te.Tensor
) -> te.Tensor:
    """Interpolate along one axis."""
    shape = [*x.shape[:axis], first.shape[0], *x.shape[axis + 1 :]]

    def element(*at: tirx.Var) -> tirx.Expr:
        before, (place, *behind) = at[:axis], at[axis:]
        one, other = (x[(*before, table[place], *behind)] for table in (first, second))
        return _between(one, other, share[place])

    return te.compute(shape, element)


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
