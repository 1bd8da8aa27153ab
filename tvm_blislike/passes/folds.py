"""Volumes as images in two forms, and the ways between them.

    slices    (n * d, c, h, w)    what moves along height and width is an operator of images
    columns   (n, c, d, h * w)    what moves along the depth is one, too

Where channels lie innermost (NHWC) both are the same bytes; in any other layout whole rows of
h * w pixels change places. A fold is written as `relax.layout_transform` with an index map that
nobody else writes, so that it can be had in any layout.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi
from tvm import relax, te, tirx

from tvm_blislike.model.layouts import NCHW, NHWC, Layout
from tvm_blislike.tvm_seams import op_name, static_shape


def columns_of(slices: relax.Expr, depth: int) -> relax.Expr:
    """Return the slices of volumes as columns, not yet emitted.

    Parameters
    ----------
    slices : relax.Expr
        (n * depth, c, h, w).
    depth : int
        Slices of a volume.

    Returns
    -------
    relax.Expr
        (n, c, depth, h * w).
    """
    nd, c, h, w = static_shape(slices)
    return _fold(slices, (nd // depth, c, depth, h * w), NCHW)


def slices_of(columns: relax.Expr, width: int) -> relax.Expr:
    """Return the columns of volumes as slices, not yet emitted.

    Parameters
    ----------
    columns : relax.Expr
        (n, c, d, h * width).
    width : int
        Pixels of a row.

    Returns
    -------
    relax.Expr
        (n * d, c, h, width).
    """
    n, c, d, hw = static_shape(columns)
    return _fold(columns, (n * d, c, hw // width, width), NCHW)


def is_fold(call: relax.Call) -> bool:
    """Whether a call is a fold, in whichever layout."""
    return _layout_of(call) is not None


def fold_in(call: relax.Call, source: relax.Expr, layout: Layout) -> relax.Expr | None:
    """Return a fold that is written for NCHW on an image in another layout, None of other calls."""
    if _layout_of(call) != NCHW:
        return None
    return _fold(source, static_shape(call), layout)


def lower_fold(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Return the TE definition of a fold, None for any other layout transform.

    It is computed output by output (TVM's own runs over the inputs), so that what is fused around
    it needs no copy.
    """
    layout = _layout_of(call)
    if layout is None:
        return None
    before, after = (layout.sizes(static_shape(each)) for each in (call.args[0], call))
    back = _index_map(after, before, layout)

    def define(data: te.Tensor) -> te.Tensor:
        shape = layout.shape(*after)
        return te.compute(shape, lambda *at: data[tuple(back.map_indices(at))], name="fold")

    return builder.call_te(define, call.args[0], primfunc_name_hint="fold")


def _fold(source: relax.Expr, sizes: tuple[int, ...], layout: Layout) -> relax.Expr:
    """Return a fold to images of these (n, c, h, w)."""
    before, shape = layout.sizes(static_shape(source)), layout.shape(*sizes)
    # Depths and channels change places, unless there is one of either, or they lie innermost.
    blocks = before[1] // (layout.block or 1)
    if layout == NHWC or blocks == 1 or before[0] == sizes[0]:
        return relax.op.reshape(source, shape)
    return relax.op.layout_transform(source, _index_map(before, sizes, layout))


def _index_map(before: tuple[int, ...], after: tuple[int, ...], layout: Layout) -> tirx.IndexMap:
    """Return where the elements of images of some (n, c, h, w) lie in those of others."""
    depth, width = before[0] // after[0], after[3]

    def place(*index: Any) -> tuple[Any, ...]:
        n, c, y, x, *lane = layout.in_nchw(*index)
        if depth:
            return layout.ordered(n // depth, c, n % depth, y * before[3] + x, *lane)
        return layout.ordered(n * before[2] + y, c, x // width, x % width, *lane)

    return tirx.IndexMap.from_func(place, layout.rank)


def _layout_of(call: relax.Call) -> Layout | None:
    """Return the layout in which a call folds images, None when it does something else."""
    if op_name(call) != "relax.layout_transform":
        return None
    source, result = static_shape(call.args[0]), static_shape(call)
    if source is None or result is None or len(source) != len(result) or len(source) < 4:
        return None
    layout = Layout.blocked(source[-1]) if len(source) == 5 else NCHW
    before, after = layout.sizes(source), layout.sizes(result)
    if before[1] != after[1] or math.prod(before) != math.prod(after):
        return None
    expected = _index_map(before, after, layout)
    return layout if tvm_ffi.structural_equal(call.attrs.index_map, expected) else None
