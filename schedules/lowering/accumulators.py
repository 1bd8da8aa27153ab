"""Buffers that must become registers: cut into rows that TVM leaves on the stack, with no other.

TVM puts a buffer of 1024 bytes or more on the heap (`StorageRewrite` drops the annotation that
would prevent it). LLVM may still keep a heap buffer in registers over a loop, but not across
anything else that touches memory, a prefetch for example. The accumulators of an AVX-512 block
take up to 1792 bytes; one row of a block takes 512 at most. Once every loop over rows is
unrolled, each row can be a buffer of its own.

The same pass of TVM lets buffers that are in use one after the other share their memory, of any
size: accumulators of 896 bytes that of a transform's patch, on the heap. They were then stored in
every iteration of a k loop with prefetches, and layers took a quarter longer (Winograd, 7x32, two
threads, Zen 5). Only what has the same scope is shared, so what goes to the heap has its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    redirected,
    sequence,
    substitute,
)

_POINTER = tvm.ir.Op.get("tirx.tvm_access_ptr")
# What TVM leaves on the stack is smaller than this.
_STACK_BYTES = 1024
# Scope of buffers on the heap: memory like any other's.
_HEAP = "global.workspace"
_Rows = dict[tuple[int, ...], tirx.Buffer]


def split_rows(func: tirx.PrimFunc, limit: int) -> tirx.PrimFunc:
    """Cut the buffers of `func` that fit into the register file, but not on TVM's stack.

    Parameters
    ----------
    func : PrimFunc
        Below the level of blocks, with every unrolled loop written out.
    limit : int
        Bytes of the register file. Larger buffers stay as they are, and so do those with an
        access to a row that is not known at compile time, or whose address a function takes.
    """
    rows = {buffer: {} for buffer in _candidates(func.body, limit)}
    body = func.body
    while rows:
        unknown: set[tirx.Buffer] = set()
        body = redirected(func.body, _by_rows(rows, unknown))
        if not unknown:
            break
        rows = {buffer: {} for buffer in rows if buffer not in unknown}
    if not rows:
        return func

    def allocate(alloc: tirx.AllocBuffer) -> tirx.Stmt:
        if not rows.get(alloc.buffer):
            return alloc
        parts = [tirx.AllocBuffer(part) for part in rows[alloc.buffer].values()]
        # An image of one pixel uses one row of its block.
        return sequence(parts)

    return func.with_body(tvm_ffi.structural_map(body, [(tirx.AllocBuffer, allocate)]))


def heap_apart(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let nothing that TVM leaves on the stack share the memory of what it puts on the heap."""
    allocated = [alloc.buffer for alloc in collect(func.body, tirx.AllocBuffer)]
    large = {buffer: _on_heap(buffer) for buffer in allocated if _bytes(buffer) >= _STACK_BYTES}
    return func.with_body(substitute(func.body, large)) if large else func


def _on_heap(buffer: tirx.Buffer) -> tirx.Buffer:
    return tirx.decl_buffer(
        buffer.shape,
        buffer.dtype,
        buffer.name,
        strides=buffer.strides,
        scope=_HEAP,
        data_alignment=buffer.data_alignment,
    )


def _by_rows(rows: dict[tirx.Buffer, _Rows], unknown: set[tirx.Buffer]) -> Callable[..., Any]:
    """Return where `redirected` finds the elements of buffers, whose rows are made as they occur.

    Buffers with an access to a row that nobody knows are added to `unknown`.
    """

    def row(buffer: tirx.Buffer, indices: Any) -> tuple[tirx.Buffer, list[Any]] | None:
        known = rows.get(buffer)
        if known is None:
            return None
        # A slice is one call: TVM's arrays take five times as long to iterate over.
        *outer, column = indices[:]
        at = tuple(map(constant, outer))
        if at not in known:
            if None in at:
                unknown.add(buffer)
                return None
            known[at] = _row_of(buffer, at)
        return known[at], [column]

    return row


def _candidates(body: tirx.Stmt, limit: int) -> set[tirx.Buffer]:
    """Return the buffers of a size to be cut whose address no function takes."""
    allocated = [alloc.buffer for alloc in collect(body, tirx.AllocBuffer)]
    wanted = {b for b in allocated if _STACK_BYTES <= _bytes(b) <= limit}
    if not wanted:
        return wanted
    pointers = [call for call in collect(body, tvm.ir.Call) if call.op.same_as(_POINTER)]
    return wanted - {pointer.args[1].args[0] for pointer in pointers}


def _bytes(buffer: tirx.Buffer) -> int:
    return math.prod(int(e) for e in buffer.shape) * tvm.DataType(buffer.dtype).itemsize


def _row_of(buffer: tirx.Buffer, at: tuple[int, ...]) -> tirx.Buffer:
    name = "_".join(
        [buffer.name, *(str(i) for i, e in zip(at, buffer.shape, strict=False) if int(e) > 1)]
    )
    return tirx.decl_buffer((buffer.shape[-1],), buffer.dtype, name)
