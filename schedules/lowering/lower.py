"""From a scheduled PrimFunc to plain loops whose tile edges are exact.

A template schedules whole tiles only, every block of C is mh x mw x nr, and says by directives
(`model.directives`) what TVM has no primitive for. After TVM has lowered the blocks to loops, this
module does what they say, in the order of `STEPS`, and takes buffers that fit into the register
file apart, or TVM would put those of 1024 bytes or more on the heap (`accumulators`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import ir, s_tir, tirx

from tvm_blislike.model import directives as d
from tvm_blislike.model.directive import Directive, check
from tvm_blislike.model.marks import AXES, REGISTER_BYTES
from tvm_blislike.schedules.lowering import (
    accesses,
    by_input,
    canvas,
    cut_copies,
    dots,
    edges,
    in_result,
    k_loop_calls,
    llvm_functions,
    loop_code,
    narrowing,
    packs,
    prefetch,
    register_transposes,
    residues,
    tiles,
    words,
)
from tvm_blislike.schedules.lowering.accumulators import heap_apart, split_rows
from tvm_blislike.schedules.lowering.bias_first import bias_first
from tvm_blislike.schedules.lowering.gathers import shuffle_gathers
from tvm_blislike.schedules.lowering.opaque_names import opaque_names
from tvm_blislike.schedules.lowering.open_rows import opened
from tvm_blislike.schedules.lowering.rewrite import at_directives, collect, with_body
from tvm_blislike.schedules.lowering.rounding import by_low_bits
from tvm_blislike.schedules.lowering.vector_math import vectorize_math
from tvm_blislike.tvm_seams.pipelines import lower_blocks

# Bytes of 32 registers of 64: what is as large has vectors whose divisions take long.
_WIDE_REGISTERS = 2048

_Change = Callable[[tirx.For, Any], tirx.Stmt]
_Step = tuple[tuple[type[Directive], ...], Callable[[tirx.Stmt, Any], tirx.Stmt]]
_Rewrite = tuple[tuple[str, ...], Callable[[tirx.PrimFunc], tirx.PrimFunc]]


def _each(kind: type[Directive], change: _Change) -> _Step:
    """Return the step that changes each loop with a directive."""
    return (kind,), lambda body, _params: at_directives(body, kind, change)


# The directives that a step reads, and what it makes of a body and the function's parameters. A
# step is left out where none of them stands.
STEPS: tuple[_Step, ...] = (
    # First, or what reads the source of a copy that is left out would not be contiguous.
    ((d.Image,), accesses.by_pixel),
    # `Edge` and `Border` take iterations out of their loop, where its other directives are gone
    # and its variable is a number. So before them comes what concerns all iterations of a loop,
    # or counts by its variable:
    ((d.InResult,), lambda body, _params: in_result.in_result(body)),
    ((d.InPlace,), lambda body, _params: accesses.in_place(body)),
    _each(d.NextWeights, prefetch.next_weights),
    _each(d.NextPanel, prefetch.next_panel),
    _each(d.Ahead, prefetch.ahead),
    _each(d.TermsAhead, prefetch.terms_ahead),
    _each(d.Ring, accesses.in_ring),
    _each(d.FreshRegisters, llvm_functions.emptied),
    _each(d.InTurn, llvm_functions.in_turn),
    (
        (d.Edge, d.LastBlock, d.LastEdge, d.Border, d.SharedBorder, d.Apart),
        lambda body, _params: edges.split(body),
    ),
    # Behind them, what makes something else of a loop that they may have cut:
    ((d.KLoopCall,), lambda body, _params: k_loop_calls.called(body)),
    ((d.TileCall,), lambda body, _params: tiles.in_tiles(body)),
    _each(d.Turn, register_transposes.turned),
    ((d.ByInput,), by_input.written_out),
    _each(d.Dot, dots.by_instruction),
    _each(d.Pieces, cut_copies.split),
    # Before `AskOnce`: conditions on the index of a loop that is written out depend on nothing
    # inside the body any more.
    _each(d.WriteOut, lambda loop, _directive: loop_code.unrolled(loop)),
    _each(d.AskOnce, lambda loop, _directive: loop_code.hoist(loop)),
    _each(d.Vector, loop_code.vectorized),
)

# Behind them: what changes the function's parameters, too. It leaves a function without its
# directives alone.
OF_FUNCTIONS: tuple[
    tuple[tuple[type[Directive], ...], Callable[[tirx.PrimFunc], tirx.PrimFunc]], ...
] = (((d.OpenRows,), opened),)


def _body(change: Callable[[tirx.Stmt], tirx.Stmt]) -> Callable[[tirx.PrimFunc], tirx.PrimFunc]:
    return lambda func: with_body(func, change(func.body))


# What is rewritten in every function, directives or not, and what it is about: functions that are
# called, data types of what is written and given. It is left out where none of these occurs.
OF_SCALARS: tuple[_Rewrite, ...] = ((("tirx.nearbyint",), by_low_bits),)
OF_VECTORS: tuple[_Rewrite, ...] = (
    ((), _body(shuffle_gathers)),
    (("uint32",), _body(residues.by_functions)),
    (("bfloat16",), words.of_bfloat16),
    (("int32",), bias_first),
    # Before what narrows vectors by themselves:
    (packs.BYTES, packs.packed),
    (("int8", "uint8"), narrowing.by_permutation),
    ((), llvm_functions.with_sources),
    ((), _body(opaque_names)),
)


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
    lowered = lower_blocks(tvm.IRModule({g: _in_axes(f) for g, f in ours.items()}))
    finished = {g: _without_calls(_finished(f)) for g, f in lowered.functions_items()}
    finished_mod = _CLEAN_UP(tvm.IRModule(finished))
    result = mod.clone()
    by_name = {g.name_hint: g for g in ours}
    for g, f in finished_mod.functions_items():
        in_rows = split_rows(_rewritten(f, OF_VECTORS), int(f.attrs[REGISTER_BYTES]))
        done = heap_apart(in_rows).without_attr(REGISTER_BYTES)
        result.update_func(by_name[g.name_hint], done)
    return result


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


def _in_axes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Simplify a function one of whose blocks got other axes (`AXES`).

    Their indices, x // w * w + x % w, are what TVM looks at in each access and pass: a product by
    Strassen's algorithm compiles in half the time.
    """
    if not any(AXES in block.annotations for block in collect(func.body, s_tir.SBlock)):
        return func
    (simple,) = s_tir.transform.StmtSimplify()(tvm.IRModule({"main": func})).functions.values()
    return simple


def _without_calls(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function in vector arithmetic: of a sigmoid LLVM would call `expf` for each lane."""
    divides = int(func.attrs[REGISTER_BYTES]) < _WIDE_REGISTERS
    return vectorize_math(_rewritten(func, OF_SCALARS), divides)


def _rewritten(func: tirx.PrimFunc, rewrites: Sequence[_Rewrite]) -> tirx.PrimFunc:
    present = occurring(func)
    for about, rewrite in rewrites:
        if not about or not present.isdisjoint(about):
            func = rewrite(func)
    return func


def occurring(func: tirx.PrimFunc) -> set[str]:
    """Return the names of functions that a PrimFunc calls, and data types that it gets or writes.

    Those of scalars: that of a vector's elements.
    """
    written = {node.buffer for node in collect(func.body, (tirx.AllocBuffer, tirx.BufferStore))}
    given = [str(getattr(param, "dtype", None) or param.ty) for param in func.params]
    types = {dtype.partition("x")[0] for dtype in (*map(str, (b.dtype for b in written)), *given)}
    return types | {str(getattr(call.op, "name", "")) for call in collect(func.body, ir.Call)}


def _is_ours(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc) and bool(func.attrs) and REGISTER_BYTES in func.attrs


def _finished(func: tirx.PrimFunc) -> tirx.PrimFunc:
    # Before all that takes loops apart, and behind it: what threads divide is one loop still.
    bounded = canvas.bounded(func)
    func = canvas.closed(bounded.func.with_body(_finish(bounded.func)), bounded.left)
    for _reads, run in OF_FUNCTIONS:
        func = run(func)
    return func


def _finish(func: tirx.PrimFunc) -> tirx.Stmt:
    body, params = func.body, func.params
    present = check(body)
    for reads, run in STEPS:
        if not present.isdisjoint(reads):
            body = run(body, params)
    return body
