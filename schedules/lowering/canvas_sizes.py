"""What a kernel on a canvas knows of the image that is there: its extents, at run time."""

from __future__ import annotations

import functools
from typing import Any

from tvm import tirx

from tvm_blislike.model.canvas import OnCanvas
from tvm_blislike.model.marks import CANVAS
from tvm_blislike.schedules.lowering.rewrite import INT, integer


def canvas_of(func: tirx.PrimFunc) -> OnCanvas | None:
    """Return what a function knows of its canvas; None for one without."""
    text = (func.attrs or {}).get(CANVAS)
    return None if text is None else _read(str(text))


# Several steps over one function ask for it.
_read = functools.lru_cache(maxsize=64)(OnCanvas.from_json)


def extent_at(sizes: Any, place: int, dtype: str = INT) -> Any:
    """Return an extent of the image that is there.

    Parameters
    ----------
    sizes : Buffer
        All extents, in 32 bits.
    place : int
        Which one.
    dtype : str
        Of what it is compared with.
    """
    loaded = tirx.BufferLoad(sizes, [integer(place)])
    return loaded if dtype == INT else tirx.Cast(dtype, loaded)


def extents_at(sizes: Any, axes: dict[int, int], dtype: str = INT) -> dict[int, Any]:
    """Return the extents along open axes, given as their places."""
    return {axis: extent_at(sizes, place, dtype) for axis, place in axes.items()}
