"""What lies on a canvas beyond an image, as far as somebody reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_blislike.model.canvas import EDGE, LOWEST, Margin
from tvm_blislike.schedules.lowering.canvas_sizes import canvas_of, extents_at


def margins_of(func: tirx.PrimFunc) -> list[tirx.Stmt]:
    """Return the statements that fill the margins of a function's results."""
    canvas = canvas_of(func)
    if canvas is None:
        return []
    params, stmts = list(func.params), []
    for param, axes, margin in zip(params, canvas.axes, canvas.margins, strict=True):
        if margin is not None:
            stmts += filled(param, extents_at(params[canvas.sizes], axes, kind_of(param)), margin)
    return stmts


def kind_of(buffer: Any) -> str:
    """Return the type of a buffer's indices."""
    return str(buffer.shape[0].ty)


def filled(buffer: Any, extents: dict[int, Any], margin: Margin) -> list[tirx.Stmt]:
    """Return loops that fill the margin of an image.

    Parameters
    ----------
    extents : dict
        Open axes, the height first, to what the image has there, in the type of indices.
    """
    reach = {axis: margin.reach.get(axis, 0) for axis in extents}
    along = [axis for axis in extents if reach[axis]]
    return [_filled_along(buffer, extents, reach, axis, margin.value) for axis in along]


def _filled_along(
    buffer: Any, extents: dict[int, Any], reach: dict[int, int], axis: int, value: str
) -> tirx.Stmt:
    """Return the loop over what lies beyond an image along an axis, corners included."""
    kind = kind_of(buffer)
    names = [tirx.Var(f"m{place}", kind) for place in range(len(buffer.shape))]
    bounds = []
    for place, size in enumerate(buffer.shape):
        if place not in extents:
            bounds.append((tirx.IntImm(kind, 0), size))
            continue
        here = extents[place]
        most = tirx.min(here + reach[place], size)
        bounds.append((here, most - here) if place == axis else (tirx.IntImm(kind, 0), most))
    stored = _value(buffer, names, extents, value)
    stmt: tirx.Stmt = tirx.BufferStore(buffer, stored, names)
    for name, (first, extent) in reversed(list(zip(names, bounds, strict=True))):
        stmt = tirx.For(name, first, extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def _value(buffer: Any, names: Sequence[tirx.Var], extents: dict[int, Any], value: str) -> Any:
    if value == EDGE:
        indices = [
            tirx.min(name, extents[place] - 1) if place in extents else name
            for place, name in enumerate(names)
        ]
        return tirx.BufferLoad(buffer, indices)
    dtype = str(buffer.dtype)
    return tirx.min_value(dtype) if value == LOWEST else tirx.const(0, dtype)
