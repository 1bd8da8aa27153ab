"""From a scheduled PrimFunc to plain loops whose tile edges are exact.

A template schedules whole tiles only: every block of C is mh x mw x nr, and a loop over tiles
whose last tile is cut carries the annotation `edges.EDGE`. After TVM has lowered the blocks to
loops, this module

1. leaves copies out (`in_place`) and inserts prefetches (`prefetch`, `panels`) and rings (`rings`);
2. splits cut tiles and those at the padding off the others (`edges`);
   (k loops that are functions of LLVM are chosen by what is left, `panel_loops`; blocks of C that
   lie across the result are transposed, `turns`);
3. unrolls each `BY_INPUT` nest in the order of the input pixels, so that each is loaded once;
4. writes `UNROLL` loops out and resolves selects by their index; moves the conditions inside an
   `UNSWITCH` loop to its front;
5. turns each `VECTOR` loop into vector accesses of the given width and narrower ones for its tail;
6. keeps buffers that fit into the register file on the stack, where LLVM turns them into
   registers (TVM would put any buffer of 1024 bytes or more on the heap).
"""

from __future__ import annotations

import itertools
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tvm_blislike.microkernels import AXIS
from tvm_blislike.schedules.lowering import (
    edges,
    fresh_registers,
    in_place,
    panel_loops,
    panels,
    pieces,
    prefetch,
    rings,
    turns,
)
from tvm_blislike.schedules.lowering.accumulators import split_rows
from tvm_blislike.schedules.lowering.gathers import shuffle_gathers
from tvm_blislike.schedules.lowering.rewrite import annotation, over_lanes, sequence, substitute
from tvm_blislike.schedules.lowering.unswitch import hoist, unrolled
from tvm_blislike.schedules.lowering.vector_math import vectorize_math

# Innermost loop over contiguous elements: vector width in elements.
VECTOR = "blislike.vector"
# Outermost of the loops "ry", "rx", "mh", "mw" (`AXIS`) of a convolution: [sh, sw, dh, dw].
BY_INPUT = "blislike.by_input"
# Loop whose index selects an expression (see `unswitch`).
UNROLL = "blislike.unroll"
# Loop whose conditions are tested once per iteration.
UNSWITCH = "blislike.unswitch"
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
    # Epilogues with a sigmoid: LLVM would call `expf` for each lane.
    finished = {g: vectorize_math(f.with_body(_finish(f))) for g, f in lowered.functions_items()}
    finished_mod = _CLEAN_UP(tvm.IRModule(finished))
    result = mod.clone()
    by_name = {g.name_hint: g for g in ours}
    for g, f in finished_mod.functions_items():
        joined = f.with_body(shuffle_gathers(f.body))
        called = fresh_registers.with_sources(panel_loops.with_sources(joined))
        in_rows = split_rows(called, int(f.attrs[REGISTER_BYTES]))
        result.update_func(by_name[g.name_hint], in_rows.without_attr(REGISTER_BYTES))
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

# The edge copies define their loop variables and buffers again: rename them. TVM would vectorize
# later anyway, but simplifies a vector access far faster than a loop around a scalar one (5x less
# compile time for unrolled kernels).
_CLEAN_UP = tvm.transform.Sequential(
    [
        s_tir.transform.ConvertSSA(),
        # First: a predicate that is always true would still make a vector loop a scalar one.
        tirx.transform.StmtSimplify(),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        s_tir.transform.ConvertSSA(),
        tirx.transform.StmtSimplify(),
    ]
)


def _is_ours(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc) and bool(func.attrs) and REGISTER_BYTES in func.attrs


def _finish(func: tirx.PrimFunc) -> tirx.Stmt:
    body = in_place.read(pieces.address_by_pixel(func))
    body = panels.insert(prefetch.insert(body))
    body = fresh_registers.insert(rings.insert(body))
    body = edges.split(body)
    body = turns.insert(panel_loops.choose(body))
    body = tvm_ffi.structural_map(body, [(tirx.For, _unroll_by_input)])
    body = tvm_ffi.structural_map(body, [(tirx.For, _split_pieces)])
    body = tvm_ffi.structural_map(body, [(tirx.For, _write_out)])
    body = tvm_ffi.structural_map(body, [(tirx.For, _unswitch)])
    body = tvm_ffi.structural_map(body, [(tirx.For, _vectorize)])
    limit = int(func.attrs[REGISTER_BYTES])
    return tvm_ffi.structural_map(body, [(tirx.AllocBuffer, lambda a: _on_stack(a, limit))])


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int32", value)


def _unroll_by_input(loop: tirx.For) -> tirx.Stmt:
    """Unroll a convolution's nest over kernel and tile, sorted by the input pixel it reads.

    The order of the sum into each output stays that of the kernel, so results do not change.
    """
    steps = annotation(loop, BY_INPUT)
    if steps is None:
        return loop
    sh, sw, dh, dw = (int(step) for step in steps)
    loops = {}
    body: tirx.Stmt = loop
    while isinstance(body, tirx.For) and str(annotation(body, AXIS)) in ("ry", "rx", "mh", "mw"):
        loops[str(annotation(body, AXIS))] = body
        body = body.body
    nest = [loops[axis] for axis in ("mh", "mw", "ry", "rx")]

    def pixel(at: tuple[int, ...]) -> tuple[int, ...]:
        ih, iw, ry, rx = at
        return (ih * sh + ry * dh, iw * sw + rx * dw, *at)

    order = sorted(itertools.product(*(range(int(f.extent)) for f in nest)), key=pixel)
    variables = [f.loop_var for f in nest]
    return sequence([substitute(body, dict(zip(variables, at, strict=True))) for at in order])


def _split_pieces(loop: tirx.For) -> tirx.Stmt:
    return loop if annotation(loop, pieces.PIECES) is None else pieces.split(loop)


def _write_out(loop: tirx.For) -> tirx.Stmt:
    return loop if annotation(loop, UNROLL) is None else unrolled(loop)


def _unswitch(loop: tirx.For) -> tirx.Stmt:
    return loop if annotation(loop, UNSWITCH) is None else hoist(loop)


def _vectorize(loop: tirx.For) -> tirx.Stmt:
    width = annotation(loop, VECTOR)
    if width is None:
        return loop
    parts = []
    start, left, width = int(loop.min), int(loop.extent), int(width)
    while left:
        count = left // width
        if count:
            parts.append(_vector_part(loop, start, count, width))
        start, left, width = start + count * width, left - count * width, width // 2
    return sequence(parts)


def _vector_part(loop: tirx.For, start: int, count: int, width: int) -> tirx.Stmt:
    outer, inner = tirx.Var("jv", "int32"), tirx.Var("lane", "int32")
    index = _int(start) + outer * _int(width) + inner
    body = substitute(loop.body, {loop.loop_var: index})
    vector = over_lanes(inner, width, body)
    outer_kind = tirx.ForKind.UNROLLED if count <= _MOST_UNROLLED else tirx.ForKind.SERIAL
    return tirx.For(outer, _int(0), _int(count), outer_kind, vector)


def _on_stack(alloc: tirx.AllocBuffer, limit: int) -> tirx.AllocBuffer:
    elements = 1
    for extent in alloc.buffer.shape:
        elements *= int(extent)
    if elements * tvm.DataType(alloc.buffer.dtype).itemsize > limit:
        return alloc
    return tirx.AllocBuffer(alloc.buffer, {"disable_lower_builtin": _int(1)})
