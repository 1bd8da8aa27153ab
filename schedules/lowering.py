"""From a scheduled PrimFunc to plain loops whose tile edges are exact.

A template schedules whole tiles only: every block of C is mh x mw x nr, and a loop over tiles
whose last tile is cut carries the annotation `EDGE`. After TVM has lowered the blocks to loops,
this module

1. splits the last iteration off each `EDGE` loop and shrinks the loops inside that run over the
   cut axis (`AXIS`), which makes the edge variant of the micro-kernel: no wasted FMA, no
   predicate, no access outside a tensor;
2. splits the first and last iterations off each `BORDER` loop, so that conditions on the padding
   of a convolution become constants in the interior;
3. turns each `VECTOR` loop into vector accesses of the given width and narrower ones for its tail;
4. keeps buffers that fit into the register file on the stack, where LLVM turns them into
   registers (TVM would put any buffer of 1024 bytes or more on the heap).

The same is possible with `T.where` predicates and TVM's LoopPartition, but predicates inside a
vectorized or unrolled tile come out as scalar code.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm_blislike.microkernels import AXIS

# Loop over tiles: {"mw": 8, "nr": 1, ...}, the extents of the last tile's axes.
EDGE = "blislike.edge"
# Loop inside an `EDGE` loop, over an `AXIS` that it cuts: its own `EDGE`, in that last copy only.
LAST_EDGE = "blislike.last_edge"
# Loop over tiles: how many iterations to split off at each end, as [first, last].
BORDER = "blislike.border"
# Innermost loop over contiguous elements: vector width in elements.
VECTOR = "blislike.vector"
# Vectors of a `VECTOR` loop that are written out; a longer copy stays a loop (blocks of C are
# shorter, and must be written out to stay in registers).
_MOST_UNROLLED = 32
# PrimFunc attribute: bytes of the register file; present on functions that `lower` must finish.
REGISTER_BYTES = "blislike.register_bytes"


def lower(mod: tvm.IRModule) -> tvm.IRModule:
    """Lower every PrimFunc that carries `REGISTER_BYTES` to loops with exact edges.

    Parameters
    ----------
    mod : IRModule
        Module with scheduled PrimFuncs; anything else in it is left as it is.

    Returns
    -------
    IRModule
        The module with those functions lowered below the level of blocks.
    """
    ours = {g: f for g, f in mod.functions_items() if _is_ours(f)}
    if not ours:
        return mod
    lowered = _LOWER_BLOCKS(tvm.IRModule(ours))
    finished = {g: f.with_body(_finish(f)) for g, f in lowered.functions_items()}
    finished_mod = _CLEAN_UP(tvm.IRModule(finished))
    result = mod.clone()
    by_name = {g.name_hint: g for g in ours}
    for g, f in finished_mod.functions_items():
        result.update_func(by_name[g.name_hint], f.without_attr(REGISTER_BYTES))
    return result


_LOWER_BLOCKS = tvm.transform.Sequential(
    [
        s_tir.transform.CanonicalizeLoop(),
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
    ]
)

# The edge copies define their loop variables and buffers again: rename them.
_CLEAN_UP = tvm.transform.Sequential([s_tir.transform.ConvertSSA(), tirx.transform.StmtSimplify()])


def _is_ours(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc) and bool(func.attrs) and REGISTER_BYTES in func.attrs


def _finish(func: tirx.PrimFunc) -> tirx.Stmt:
    # From the outside in: the last block of tiles may have a cut last tile (`LAST_EDGE`).
    body = tvm_ffi.structural_map(func.body, [(tirx.For, _split_tiles)], order="pre")
    body = tvm_ffi.structural_map(body, [(tirx.For, _vectorize)])
    limit = int(func.attrs[REGISTER_BYTES])
    return tvm_ffi.structural_map(body, [(tirx.AllocBuffer, lambda a: _on_stack(a, limit))])


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int32", value)


def _annotation(loop: tirx.For, key: str) -> Any:
    return loop.annotations[key] if loop.annotations and key in loop.annotations else None


def _remade(loop: tirx.For, **changes: Any) -> tirx.For:
    """Return the loop with some of its fields changed."""
    fields = {
        "loop_var": loop.loop_var,
        "min": loop.min,
        "extent": loop.extent,
        "kind": loop.kind,
        "body": loop.body,
        "thread_binding": loop.thread_binding,
        "annotations": loop.annotations,
    }
    return tirx.For(**{**fields, **changes})


def _bind(stmt: tirx.Stmt, var: tirx.Var, value: int) -> tirx.Stmt:
    return tvm_ffi.structural_map(
        stmt, [(tirx.Var, lambda v: _int(value) if v.same_as(var) else v)]
    )


def _split_tiles(loop: tirx.For) -> tirx.Stmt:
    edge, border = _annotation(loop, EDGE), _annotation(loop, BORDER)
    if edge is None and border is None:
        return loop
    extents = {str(k): int(v) for k, v in edge.items()} if edge is not None else {}
    first, last = (int(b) for b in border) if border is not None else (0, 0)
    return _peel(loop, first, max(last, 1 if extents else 0), extents)


def _peel(loop: tirx.For, first: int, last: int, extents: dict[str, int]) -> tirx.Stmt:
    """Split iterations off both ends; the very last one gets the cut extents."""
    count = int(loop.extent)
    first = min(first, count)
    last = min(last, count - first)
    plain = {k: v for k, v in loop.annotations.items() if k not in (EDGE, BORDER)}
    if loop.kind == tirx.ForKind.PARALLEL and count > 1:
        return _remade(loop, annotations=plain, body=_last_differs(loop, count, extents))
    parts = [_bind(loop.body, loop.loop_var, i) for i in range(first)]
    if count > first + last:
        middle = count - first - last
        parts.append(_remade(loop, min=_int(first), extent=_int(middle), annotations=plain))
    parts += [_bind(loop.body, loop.loop_var, i) for i in range(count - last, count)]
    parts[-1] = _cut(parts[-1], extents)
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def _last_differs(loop: tirx.For, count: int, extents: dict[str, int]) -> tirx.Stmt:
    """Body of a parallel loop: peeling would run its last iteration on one thread alone."""
    tail = _cut(_bind(loop.body, loop.loop_var, count - 1), extents)
    return tirx.IfThenElse(loop.loop_var < _int(count - 1), loop.body, tail)


def _cut(stmt: tirx.Stmt, extents: dict[str, int]) -> tirx.Stmt:
    return tvm_ffi.structural_map(stmt, [(tirx.For, lambda f: _shrink(f, extents))])


def _shrink(loop: tirx.For, extents: dict[str, int]) -> tirx.For:
    axis = _annotation(loop, AXIS)
    if axis is None or str(axis) not in extents:
        return loop
    notes = {EDGE if key == LAST_EDGE else key: note for key, note in loop.annotations.items()}
    return _remade(loop, extent=_int(extents[str(axis)]), annotations=notes)


def _vectorize(loop: tirx.For) -> tirx.Stmt:
    width = _annotation(loop, VECTOR)
    if width is None:
        return loop
    parts = []
    start, left, width = int(loop.min), int(loop.extent), int(width)
    while left:
        count = left // width
        if count:
            parts.append(_vector_part(loop, start, count, width))
        start, left, width = start + count * width, left - count * width, width // 2
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def _vector_part(loop: tirx.For, start: int, count: int, width: int) -> tirx.Stmt:
    outer, inner = tirx.Var("jv", "int32"), tirx.Var("lane", "int32")
    index = _int(start) + outer * _int(width) + inner
    body = tvm_ffi.structural_map(
        loop.body, [(tirx.Var, lambda v: index if v.same_as(loop.loop_var) else v)]
    )
    kind = tirx.ForKind.VECTORIZED if width > 1 else tirx.ForKind.SERIAL
    vector = tirx.For(inner, _int(0), _int(width), kind, body)
    outer_kind = tirx.ForKind.UNROLLED if count <= _MOST_UNROLLED else tirx.ForKind.SERIAL
    return tirx.For(outer, _int(0), _int(count), outer_kind, vector)


def _on_stack(alloc: tirx.AllocBuffer, limit: int) -> tirx.AllocBuffer:
    elements = 1
    for extent in alloc.buffer.shape:
        elements *= int(extent)
    if elements * tvm.DataType(alloc.buffer.dtype).itemsize > limit:
        return alloc
    return tirx.AllocBuffer(alloc.buffer, {"disable_lower_builtin": _int(1)})
