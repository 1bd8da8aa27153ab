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
from tvm import ir, tirx

from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    integer,
    redirected,
    sequence,
    substitute,
)

_POINTER = ir.Op.get("tirx.tvm_access_ptr")
# What TVM leaves on the stack is smaller than this.
_STACK_BYTES = 1024
# Scope of buffers on the heap: memory like any other's.
_HEAP = "global.workspace"
_Rows = dict[tuple[int, ...], tirx.Buffer]
# Of long rows: first elements and ends.
_Parts = tuple[tuple[int, int], ...]


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
    candidates = _candidates(func.body, limit)
    parts = _parts_of_long_rows(func.body, candidates)
    rows = {b: {} for b in candidates if b in parts or not _has_long_rows(b)}
    body = func.body
    while rows:
        unknown: set[tirx.Buffer] = set()
        body = redirected(func.body, _by_rows(rows, parts, unknown))
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


def _by_rows(
    rows: dict[tirx.Buffer, _Rows], parts: dict[tirx.Buffer, _Parts], unknown: set[tirx.Buffer]
) -> Callable[..., Any]:
    """Return where `redirected` finds the elements of buffers, whose rows are made as they occur.

    Rows that are too long come in parts. Buffers with an access to a row that nobody knows are
    added to `unknown`.
    """

    def row(buffer: tirx.Buffer, indices: Any) -> tuple[tirx.Buffer, list[Any]] | None:
        known = rows.get(buffer)
        if known is None:
            return None
        # A slice is one call: TVM's arrays take five times as long to iterate over.
        *outer, column = indices[:]
        at = tuple(map(constant, outer))
        if None in at:
            unknown.add(buffer)
            return None
        size = buffer.shape[-1]
        if buffer in parts:
            start, end = _part_of(column, parts[buffer])
            at, size, column = (*at, start), end - start, _behind(start, column)
        if at not in known:
            known[at] = _row_of(buffer, at, size)
        return known[at], [column]

    return row


def _parts_of_long_rows(body: tirx.Stmt, buffers: set[tirx.Buffer]) -> dict[tirx.Buffer, _Parts]:
    """Return the parts of rows that TVM would put on the heap, such that no access needs two.

    Left out are buffers with an access to elements that nobody knows, and with large parts.
    """
    columns: dict[tirx.Buffer, list[Any]] = {b: [] for b in buffers if _has_long_rows(b)}
    if not columns:
        return {}
    accesses = [(load.source, load.indices) for load in collect(body, ir.TensorLoad)]
    accesses += [(store.buffer, store.indices) for store in collect(body, tirx.BufferStore)]
    for buffer, indices in accesses:
        if buffer in columns:
            columns[buffer].append(_elements(indices[-1]))
    found = {b: _joined(spans) for b, spans in columns.items() if spans and None not in spans}
    return {b: parts for b, parts in found.items() if _are_small(b, parts)}


def _elements(column: Any) -> tuple[int, int] | None:
    """Return the first of elements side by side and their end, None where nobody knows."""
    base, step, lanes = column, 1, 1
    if isinstance(column, tirx.Ramp):
        base, step, lanes = column.base, constant(column.stride), int(column.lanes)
    first = constant(base)
    return (first, first + lanes) if first is not None and step == 1 else None


def _joined(spans: list[tuple[int, int]]) -> _Parts:
    """Return the spans, where those that overlap are one."""
    parts: list[tuple[int, int]] = []
    for first, end in sorted(set(spans)):
        if parts and first < parts[-1][1]:
            parts[-1] = parts[-1][0], max(parts[-1][1], end)
        else:
            parts.append((first, end))
    return tuple(parts)


def _part_of(column: Any, parts: _Parts) -> tuple[int, int]:
    first, _ = _elements(column)
    return next(part for part in parts if part[0] <= first < part[1])


def _behind(start: int, column: Any) -> Any:
    """Return a known index into a row as one into the part from `start` on."""
    if isinstance(column, tirx.Ramp):
        return tirx.Ramp(_behind(start, column.base), column.stride, column.lanes)
    return integer(constant(column) - start)


def _has_long_rows(buffer: tirx.Buffer) -> bool:
    return int(buffer.shape[-1]) * _item_bytes(buffer) >= _STACK_BYTES


def _are_small(buffer: tirx.Buffer, parts: _Parts) -> bool:
    return all((end - first) * _item_bytes(buffer) < _STACK_BYTES for first, end in parts)


def _candidates(body: tirx.Stmt, limit: int) -> set[tirx.Buffer]:
    """Return the buffers of a size to be cut whose address no function takes."""
    allocated = [alloc.buffer for alloc in collect(body, tirx.AllocBuffer)]
    wanted = {b for b in allocated if _STACK_BYTES <= _bytes(b) <= limit}
    if not wanted:
        return wanted
    pointers = [call for call in collect(body, ir.Call) if call.op.same_as(_POINTER)]
    return wanted - {pointer.args[1].args[0] for pointer in pointers}


def _bytes(buffer: tirx.Buffer) -> int:
    return math.prod(int(e) for e in buffer.shape) * _item_bytes(buffer)


def _item_bytes(buffer: tirx.Buffer) -> int:
    return tvm.DataType(buffer.dtype).itemsize


def _row_of(buffer: tirx.Buffer, at: tuple[int, ...], size: Any) -> tirx.Buffer:
    name = "_".join(
        [buffer.name, *(str(i) for i, e in zip(at, buffer.shape, strict=False) if int(e) > 1)]
    )
    return tirx.decl_buffer((size,), buffer.dtype, name)
