"""Rows of a stage that stay from one iteration of a loop to the next, in a ring.

Blocks of rows one below the other overlap: a block of r output rows of a kernel of kh rows reads
r + kh - 1 rows of a stage, of which the block above has computed kh - 1. Here the buffer of that
stage, as `CompactBufferAllocation` leaves it, moves in front of the loop over blocks; a row lies
where its number modulo the rows of the buffer says, and only rows that are new are computed.

The blocks must run in order, on one thread. (TVM's `rolling_buffer` does the same to a block of a
schedule, but not to one that a micro-kernel reads.)
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_blislike.model.directives import Named, Ring
from tvm_blislike.schedules.lowering.rewrite import collect, is_named, redirected, without


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
        return tirx.Evaluate(0)

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
