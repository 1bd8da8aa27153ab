"""Blocks of C that lie across the result: transposed in registers before their epilogue.

A block computed with filters in the lanes of its vectors goes to an image whose neighbours are
pixels. Behind the k loop squares of it are transposed by shuffles of two vectors, and what comes
out of them passes through the epilogue at once. The squares are as high as a vector of pixels is
long: 14 pixels are two vectors of 8, which overlap (`cut_copies`), so three shuffles for each of
the 16 vectors that they read. A 16x16 square takes four, and two more instructions to part its
vectors of 14 again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.model.directives import Turn
from tvm_blislike.schedules.default.transpose import transpose
from tvm_blislike.schedules.lowering import cut_copies
from tvm_blislike.schedules.lowering.rewrite import collect, over_lanes, substitute

# Name of the block in the TE definitions.
_BLOCK = "acc"


def turned(loop: tirx.For, turn: Turn) -> tirx.Stmt:
    """Transpose the block of C that the epilogue of a `Turn` loop reads."""
    rows = collect(loop.body, tirx.For)[0]
    load = _load_of_block(rows.body)
    if load is None:  # an epilogue such as x - x, of which nothing is left
        return loop
    parts: list[tirx.Stmt] = []
    for column in range(0, int(loop.extent), turn.lanes):
        for row, height in cut_copies.vectors(0, int(rows.extent), turn.lanes):
            parts += _square(loop, rows, load, (row, height), (column, turn.lanes))
    return tirx.SeqStmt(parts)


def _square(
    loop: tirx.For,
    rows: tirx.For,
    load: Any,
    across: tuple[int, int],
    along: tuple[int, int],
) -> Iterator[tirx.Stmt]:
    """Load, transpose and finish (first, number) rows by (first, lanes) columns of a block."""
    (row, height), (column, lanes) = across, along
    width = min(lanes, int(loop.extent) - column)
    dtype = str(load.source.dtype)
    turned = tirx.decl_buffer((width, height), dtype, "turned")
    loads = [_vector(load, loop, rows, row + i, column, lanes) for i in range(height)]
    stmts, vectors = transpose(loads, lanes, dtype)
    yield tirx.AllocBuffer(turned)
    yield from stmts
    for i in range(width):
        square, place = divmod(i, height)
        value = vectors[place]
        if height < lanes:
            at = range(square * height, (square + 1) * height)
            value = tirx.Shuffle([value], [tirx.IntImm("int32", lane) for lane in at])
        yield tirx.BufferStore(turned, value, [i, tirx.Ramp(0, 1, height) if height > 1 else 0])
    for i in range(width):
        yield _epilogue(loop, rows, turned, (column, i), (row, height))


def _load_of_block(body: tirx.Stmt) -> Any:
    loads = collect(body, ir.TensorLoad)
    return next((load for load in loads if load.source.name.startswith(_BLOCK)), None)


def _vector(
    load: Any, loop: tirx.For, rows: tirx.For, row: int, column: int, lanes: int
) -> tirx.Expr:
    """Return a vector of a row of the block."""
    *outer, first = substitute(load, {loop.loop_var: column, rows.loop_var: row}).indices
    return tirx.BufferLoad(load.source, [*outer, tirx.Ramp(first, 1, lanes)])


def _epilogue(
    loop: tirx.For,
    rows: tirx.For,
    turned: tirx.Buffer,
    along: tuple[int, int],
    across: tuple[int, int],
) -> tirx.Stmt:
    """Return the epilogue of one column for some rows, a vector of the result."""
    (column, i), (row, height) = along, across
    lane = tirx.Var("lane", "int32")
    body = substitute(loop.body, {loop.loop_var: column + i})

    def load(access: Any) -> Any:
        if not access.source.name.startswith(_BLOCK):
            return access
        return tirx.BufferLoad(turned, [i, lane])

    def vectorized(inner: tirx.For) -> tirx.For:
        if not inner.loop_var.same_as(rows.loop_var):
            return inner
        body = tvm_ffi.structural_map(inner.body, [(ir.TensorLoad, load)])
        body = substitute(body, {rows.loop_var: lane + row})
        return over_lanes(lane, height, body)

    return tvm_ffi.structural_map(body, [(tirx.For, vectorized)])
