"""Copies of images onto a canvas, and of results from it: the only kernels of open shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import s_tir, tirx

from tvm_blislike.model.canvas import Margin
from tvm_blislike.model.marks import DEFAULT_RULE
from tvm_blislike.schedules.lowering.canvas_margins import filled, kind_of
from tvm_blislike.schedules.lowering.canvas_sizes import extents_at
from tvm_blislike.schedules.lowering.rewrite import INT, integer, sequence
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NO_ALIAS

_INDEX = "int64"


def counted(images: Sequence[tirx.Buffer], extents: Sequence[Any]) -> tirx.PrimFunc:
    """Return the function that writes all extents, which follow from the shapes of images."""
    sizes = tirx.decl_buffer((len(extents),), INT, "sizes")
    stores: list[tirx.Stmt] = [
        tirx.BufferStore(sizes, tirx.Cast(INT, extent), [integer(place)])
        for place, extent in enumerate(extents)
    ]
    return _function([*images, sizes], stores, "sizes of images")


def onto(
    image: tirx.Buffer,
    shape: Sequence[int],
    axes: Mapping[int, int],
    sizes: int,
    margin: Margin | None,
    threads: int,
) -> tirx.PrimFunc:
    """Return the function that copies an image onto its canvas.

    Parameters
    ----------
    image : Buffer
        Of open sizes.
    shape : sequence of int
        Of the canvas.
    axes : mapping of int to int
        Open axes to their place among the extents.
    sizes : int
        How many extents there are.
    margin : Margin or None
        What is to lie beyond the image.
    """
    all_sizes = tirx.decl_buffer((sizes,), INT, "sizes")
    canvas = tirx.decl_buffer(tuple(shape), image.dtype, "canvas")
    stmts = [_copy(image, canvas, image.shape, threads)]
    if margin is not None:
        stmts += filled(canvas, extents_at(all_sizes, dict(axes), kind_of(canvas)), margin)
    return _function([image, all_sizes, canvas], stmts, "copy onto a canvas")


def off(
    shape: Sequence[int], dtype: str, sizes: int, result: Sequence[Any], threads: int
) -> tirx.PrimFunc:
    """Return the function that copies what is there from a canvas."""
    canvas = tirx.decl_buffer(tuple(shape), dtype, "canvas")
    all_sizes = tirx.decl_buffer((sizes,), INT, "sizes")
    image = tirx.decl_buffer(tuple(result), dtype, "image")
    copy = _copy(canvas, image, image.shape, threads)
    return _function([canvas, all_sizes, image], [copy], "copy from a canvas")


def _copy(source: Any, target: Any, shape: Sequence[Any], threads: int) -> tirx.Stmt:
    names = [tirx.Var(f"i{axis}", _INDEX) for axis in range(len(shape))]
    stmt: tirx.Stmt = tirx.BufferStore(target, tirx.BufferLoad(source, names), names)
    divided = len(shape) - 2
    for axis, (name, size) in reversed(list(enumerate(zip(names, shape, strict=True)))):
        is_divided = threads > 1 and axis == divided
        loop = tirx.ForKind.PARALLEL if is_divided else tirx.ForKind.SERIAL
        extent = size if str(size.ty) == _INDEX else tirx.Cast(_INDEX, size)
        stmt = tirx.For(name, tirx.IntImm(_INDEX, 0), extent, loop, stmt)
    return stmt


def _function(params: list[Any], stmts: list[tirx.Stmt], rule: str) -> tirx.PrimFunc:
    block = s_tir.SBlock([], [], [], "copy", sequence(stmts))
    root = s_tir.SBlock([], [], [], "root", s_tir.SBlockRealize([], True, block))
    func = tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root))
    return func.with_attr({DEFAULT_RULE: rule, **NO_ALIAS, **IS_SCHEDULED})
