"""Accesses that go elsewhere than the schedule says.

Images (`Image`) are addressed pixel by pixel, with one index for row and column.

Copies (`InPlace`) are not made: what they would copy is read where it is. A definition packs its
operand into panels. Where the operand lies as the micro-kernel can read it (rows of pixels, for
windows of one pixel), the copy is scheduled like any other, and its target replaced by its source
in every access behind it.

Rows of a stage (`Ring`) stay from one iteration of a loop to the next. Blocks of rows one below the
other overlap: a block of r output rows of a kernel of kh rows reads r + kh - 1 rows of a stage, of
which the block above has computed kh - 1. The buffer of that stage, as `CompactBufferAllocation`
leaves it, moves in front of the loop over blocks; a row lies where its number modulo the rows of
the buffer says, and only rows that are new are computed. The blocks must run in order, on one
thread. (TVM's `rolling_buffer` does the same to a block of a schedule, but not to one that a
micro-kernel reads.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.model.directives import Image, InPlace, Ring
from tvm_blislike.model.loop_names import Named
from tvm_blislike.schedules.lowering.rewrite import (
    at_directives,
    collect,
    is_named,
    redirected,
    sequence,
    substitute,
    without,
)


def by_pixel(body: tirx.Stmt, params: Iterable[Any]) -> tirx.Stmt:
    """Return a body with one index per pixel for images of the sizes that `Image` names."""
    sizes = _sizes(body)
    views: dict[Any, Any] = {}

    def view(buffer: Any) -> Any:
        shape = [int(e) for e in buffer.shape]
        if tuple(shape[-2:]) not in sizes:
            return None
        if buffer not in views:
            pixels = (*shape[:-2], shape[-2] * shape[-1])
            views[buffer] = tirx.decl_buffer(pixels, buffer.dtype, f"{buffer.name}_pixels")
        return views[buffer]

    def place(buffer: Any, indices: Any) -> tuple[Any, list[Any]] | None:
        image = view(buffer)
        if image is None:
            return None
        *outer, y, x = indices
        return image, [*outer, sym.Analyzer().simplify(y * buffer.shape[-1] + x)]

    def allocate(alloc: Any) -> Any:
        image = view(alloc.buffer)
        return alloc if image is None else tirx.AllocBuffer(image, alloc.annotations)

    body = tvm_ffi.structural_map(redirected(body, place), [(tirx.AllocBuffer, allocate)])
    declared = [tirx.DeclBuffer(views[p], data=p.data) for p in params if p in views]
    return sequence([*declared, body])


def _sizes(body: tirx.Stmt) -> set[tuple[int, ...]]:
    found: set[tuple[int, ...]] = set()
    for image in map(Image.of, collect(body, tirx.For)):
        if image is not None:
            # Constants of an epilogue may be the same along a row.
            found.update({(image.height, image.width), (image.height, 1)})
    return found


def in_place(body: tirx.Stmt) -> tirx.Stmt:
    """Leave out the copies in `InPlace` loops and read their sources."""
    copies: dict[tirx.Buffer, tirx.BufferStore] = {}

    def left_out(loop: tirx.For, _directive: InPlace) -> tirx.Stmt:
        copies.update({store.buffer: store for store in collect(loop, tirx.BufferStore)})
        return _nothing()

    body = at_directives(body, InPlace, left_out)

    def place(buffer: Any, indices: Any) -> tuple[Any, list[Any]] | None:
        return _source(copies[buffer], indices) if buffer in copies else None

    def allocate(alloc: tirx.AllocBuffer) -> tirx.Stmt:
        return _nothing() if alloc.buffer in copies else alloc

    return tvm_ffi.structural_map(redirected(body, place), [(tirx.AllocBuffer, allocate)])


def _nothing() -> tirx.Stmt:
    return tirx.Evaluate(tirx.IntImm("int32", 0))


def _source(copy: tirx.BufferStore, indices: Any) -> tuple[Any, list[Any]]:
    """Return where the element, or vector, lies that a copy put at some place of its target."""
    values = {at: value for at, value in zip(copy.indices, indices, strict=True)}
    original = _original(copy.value)
    analyzer = sym.Analyzer()
    *outer, last = original.indices
    lanes = indices[-1] if isinstance(indices[-1], tirx.Ramp) else None
    if lanes is not None:
        values[copy.indices[-1]] = lanes.base
    at = [analyzer.simplify(substitute(index, values)) for index in (*outer, last)]
    if lanes is not None:
        at[-1] = tirx.Ramp(at[-1], lanes.stride, lanes.lanes)
    return original.source, at


def _original(value: Any) -> Any:
    """Return the load that is copied, beside which a condition may let zeros be stored."""
    while not isinstance(value, ir.TensorLoad):
        value = value.args[1]
    return value


def in_ring(blocks: tirx.For, ring: Ring) -> tirx.Stmt:
    """Turn the buffer of a stage inside a loop over blocks into a ring."""
    rows_of_stage = next(loop for loop in collect(blocks, tirx.For) if is_named(loop, "ring"))
    buffer = _stored(rows_of_stage, blocks)
    first = blocks.loop_var * ring.step
    allocated: list[tirx.AllocBuffer] = []

    def moved(alloc: tirx.AllocBuffer) -> tirx.Stmt:
        if not alloc.buffer.same_as(buffer):
            return alloc
        allocated.append(alloc)
        return _nothing()

    def turned(accessed: Any, indices: Any) -> tuple[Any, list[Any]] | None:
        if not accessed.same_as(buffer):
            return None
        at = [(first + i) % ring.rows if n == ring.axis else i for n, i in enumerate(indices)]
        return buffer, at

    def only_new(loop: tirx.For) -> tirx.For:
        if not loop.loop_var.same_as(rows_of_stage.loop_var):
            return loop
        new = tirx.any(blocks.loop_var.equal(0), loop.loop_var >= ring.rows - ring.step)
        return without(loop, Named, body=tirx.IfThenElse(new, loop.body, None))

    body = redirected(blocks.body, turned)
    body = tvm_ffi.structural_map(body, [(tirx.AllocBuffer, moved), (tirx.For, only_new)])
    return tirx.SeqStmt([*allocated, without(blocks, Ring, body=body)])


def _stored(rows: tirx.For, blocks: tirx.For) -> tirx.Buffer:
    """Return the buffer, of those inside `blocks`, that a loop over its rows fills."""
    allocated = {alloc.buffer for alloc in collect(blocks.body, tirx.AllocBuffer)}
    stored = (store.buffer for store in collect(rows, tirx.BufferStore))
    return next(buffer for buffer in stored if buffer in allocated)
