"""Pools of signals and volumes as pools of images.

The largest of a window, and the mean, are found along one axis after another: a window of a volume
is one of its slices, and then one of its columns. Means without what lies around the volume count
the elements that each axis has.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from tvm_blislike.tvm_seams import op_name

# Operator: of images, and spatial axes.
POOLS = {
    f"relax.nn.{kind}_pool{rank}d": (f"{kind}_pool2d", rank)
    for kind in ("max", "avg")
    for rank in (1, 3)
}
_LAYOUTS = {1: "NCW", 3: "NCDHW"}


def is_plain(call: relax.Call) -> bool:
    """Whether a pool's layouts are those of the importer."""
    layout = _LAYOUTS[POOLS[op_name(call)][1]]
    return (str(call.attrs.layout), str(call.attrs.out_layout)) == (layout, layout)


def pool_along(call: relax.Call, image: relax.Expr, axes: Sequence[int | None]) -> relax.Call:
    """Return a pool along some of its axes, not yet emitted.

    Parameters
    ----------
    call : relax.Call
        Of signals or volumes.
    image : relax.Expr
        (n, c, h, w).
    axes : sequence of int or None
        Which spatial axes of the call are the image's height and its width.

    Returns
    -------
    relax.Call
        The pool of images.
    """
    attrs = call.attrs
    name, rank = POOLS[op_name(call)]
    padding = [int(width) for width in attrs.padding]

    def of(values: Sequence[int], usual: int) -> list[int]:
        return [usual if axis is None else int(values[axis]) for axis in axes]

    return getattr(relax.op.nn, name)(
        image,
        pool_size=of(attrs.pool_size, 1),
        strides=of(attrs.strides, 1),
        padding=[*of(padding[:rank], 0), *of(padding[rank:], 0)],
        dilation=of(attrs.dilation, 1),
        ceil_mode=attrs.ceil_mode,
        count_include_pad=attrs.count_include_pad,
    )


def moves_along(call: relax.Call, axis: int) -> bool:
    """Whether a pool's window is larger than one element of an axis, or moves by several."""
    attrs, rank = call.attrs, POOLS[op_name(call)][1]
    padding = int(attrs.padding[axis]), int(attrs.padding[rank + axis])
    return (int(attrs.pool_size[axis]), int(attrs.strides[axis]), *padding) != (1, 1, 0, 0)
