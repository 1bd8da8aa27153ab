"""What the default rule makes of a function on a canvas: loops as far as the image goes.

A loop over an open axis of a result or of what is summed up stays alone, and ends where the image
does (`Nest.open`); vectors and tiles are whole, since the canvas has room for what lies behind. A
mean divides by how many numbers there are.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, tirx

from tvm_blislike.model.canvas import OnCanvas
from tvm_blislike.schedules.default.nest import Nest
from tvm_blislike.schedules.lowering.canvas_margins import margins_of
from tvm_blislike.schedules.lowering.canvas_sizes import canvas_of, extent_at
from tvm_blislike.schedules.lowering.rewrite import collect, integer, sequence


def extents_of(func: tirx.PrimFunc) -> frozenset[int]:
    """Return the numbers of a canvas that are open axes of a function's parameters."""
    canvas = canvas_of(func)
    if canvas is None:
        return frozenset()
    pairs = zip(func.params, canvas.axes, strict=True)
    return frozenset(int(param.shape[axis]) for param, axes in pairs for axis in axes)


def open_stores(func: tirx.PrimFunc, nest: Nest, store: tirx.BufferStore) -> None:
    """Have the loops over open axes of a result end where the image does."""
    _open(func, nest, nest.loops, [(store.buffer, store.indices)])


def open_sums(
    func: tirx.PrimFunc, nest: Nest, loops: list[tirx.For], update: tirx.BufferStore
) -> None:
    """Have the loops over open axes of what is summed up end there; a mean counts them."""
    loads = [(load.source, load.indices) for load in collect(update.value, ir.TensorLoad)]
    _open(func, nest, loops, loads)


def counted(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function whose means divide by how many numbers there are.

    The number of a canvas may stand in another stage than the sum.
    """
    canvas = canvas_of(func)
    if canvas is None:
        return func
    for block in collect(func.body, s_tir.SBlock):
        sums = [each for each in block.iter_vars if each.iter_type == tirx.IterVar.CommReduce]
        places = _open_sums_of(func, canvas, block, [each.var for each in sums])
        if places:
            every = math.prod(int(each.dom.extent) for each in sums)
            opened = [int(e.dom.extent) for e in sums if e.var in places]
            count: Any = integer(every // math.prod(opened))
            for place in places.values():
                count = count * extent_at(func.params[canvas.sizes], place)
            func = func.with_body(_with_count(func.body, every, count))
    return func


def _open_sums_of(
    func: tirx.PrimFunc, canvas: OnCanvas, block: s_tir.SBlock, sums: list[tirx.Var]
) -> dict[tirx.Var, int]:
    """Return the variables that a block sums over open axes with, each with its extent's place."""
    axes = list(zip(func.params, canvas.axes, strict=True))
    return {
        load.indices[axis]: place
        for load in collect(block.body, ir.TensorLoad)
        for param, each in axes
        if load.source.same_as(param)
        for axis, place in each.items()
        if any(load.indices[axis].same_as(var) for var in sums)
    }


def _open(func: tirx.PrimFunc, nest: Nest, loops: list[tirx.For], accesses: list[Any]) -> None:
    canvas = canvas_of(func)
    if canvas is None:
        return
    params = list(func.params)
    for buffer, indices in accesses:
        place = next((i for i, param in enumerate(params) if buffer.same_as(param)), None)
        for axis, extent in canvas.axes[place].items() if place is not None else ():
            for loop in loops:
                if loop.loop_var.same_as(indices[axis]):
                    sizes, kind = params[canvas.sizes], str(loop.loop_var.ty)
                    nest.open[loop.loop_var] = extent_at(sizes, extent, kind)


def _with_count(body: tirx.Stmt, every: int, count: Any) -> tirx.Stmt:
    """Return a statement that divides by a count in place of the number of a canvas."""

    def visit(number: tirx.FloatImm) -> Any:
        value = float(number.value)
        if value == every:
            return tirx.Cast(str(number.ty), count)
        if math.isclose(value * every, 1, rel_tol=1e-6):
            return tirx.const(1, str(number.ty)) / tirx.Cast(str(number.ty), count)
        return number

    return tvm_ffi.structural_map(body, [(tirx.FloatImm, visit)])


def with_margins(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function that fills the margins of its results."""
    if canvas_of(func) is None:
        return func
    stmts = margins_of(func)
    if not stmts:
        return func
    root = func.body.block
    body = sequence([root.body, _opaque(stmts)])
    block = s_tir.SBlock(
        [], root.reads, root.writes, "root", body, None, root.alloc_buffers, None, root.annotations
    )
    return func.with_body(s_tir.SBlockRealize([], True, block))


def _opaque(stmts: list[tirx.Stmt]) -> tirx.Stmt:
    block = s_tir.SBlock([], [], [], "margin", sequence(stmts))
    return s_tir.SBlockRealize([], True, block)
