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

import tvm
import tvm_ffi
from tvm import tirx

from tvm_blislike.model import notes
from tvm_blislike.schedules.lowering.rewrite import annotation, collect, without

# On the loop over blocks: {"axis": of the rows in the buffer, "rows": of the buffer, "step": rows
# that a block is below the one above}.
RING = "blislike.ring"
# On the loop over rows of the stage that fills the buffer: how many the block above has computed.
RING_ROWS = "blislike.ring_rows"


def insert(stmt: tirx.Stmt) -> tirx.Stmt:
    """Turn the buffers of the stages inside `RING` loops into rings."""
    return tvm_ffi.structural_map(stmt, [(tirx.For, _ring)])


def _ring(blocks: tirx.For) -> tirx.Stmt:
    spec = annotation(blocks, RING)
    if spec is None:
        return blocks
    note = notes.read(spec)
    axis, rows, step = (note[key] for key in ("axis", "rows", "step"))
    buffer, known = _stored(blocks)
    first = blocks.loop_var * step
    allocated: list[tirx.AllocBuffer] = []

    def moved(alloc: tirx.AllocBuffer) -> tirx.Stmt:
        if not alloc.buffer.same_as(buffer):
            return alloc
        allocated.append(alloc)
        return tirx.Evaluate(0)

    def turned(indices: Any) -> list[Any]:
        return [(first + i) % rows if n == axis else i for n, i in enumerate(indices)]

    def load(access: Any) -> Any:
        if not access.source.same_as(buffer):
            return access
        return tirx.BufferLoad(buffer, turned(access.indices))

    def store(access: tirx.BufferStore) -> tirx.BufferStore:
        if not access.buffer.same_as(buffer):
            return access
        return tirx.BufferStore(buffer, access.value, turned(access.indices))

    def only_new(loop: tirx.For) -> tirx.For:
        if annotation(loop, RING_ROWS) is None:
            return loop
        new = tirx.any(blocks.loop_var.equal(0), loop.loop_var >= known)
        return without(loop, RING_ROWS, body=tirx.IfThenElse(new, loop.body, None))

    changes = [
        (tirx.AllocBuffer, moved),
        (tvm.ir.TensorLoad, load),
        (tirx.BufferStore, store),
        (tirx.For, only_new),
    ]
    body = tvm_ffi.structural_map(blocks.body, changes)
    return tirx.SeqStmt([*allocated, without(blocks, RING, body=body)])


def _stored(blocks: tirx.For) -> tuple[tirx.Buffer, int]:
    """Return the buffer that the `RING_ROWS` loop fills, and the rows known from above."""
    allocated = {alloc.buffer for alloc in collect(blocks.body, tirx.AllocBuffer)}
    loops = collect(blocks.body, tirx.For)
    rows = next(loop for loop in loops if annotation(loop, RING_ROWS) is not None)
    stored = (store.buffer for store in collect(rows, tirx.BufferStore))
    buffer = next(buffer for buffer in stored if buffer in allocated)
    return buffer, int(annotation(rows, RING_ROWS))
