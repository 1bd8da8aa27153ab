"""Maxima and minima that hand on what is no number (NaN), in instructions that cost no more.

TVM's `max(a, b)` is `a > b ? a : b`: a NaN in b stays, a NaN in a becomes b. So

    x86    `vmaxps` is that very choice: a constant comes first, and the NaN of the other stays.
           For two tensors LLVM adds a comparison, which hides behind their loads.
    NEON   `fmax` keeps NaN where LLVM would take `fmaxnm`, of the same latency.

On x86, reductions (the largest so far and the next element) stay as they are.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.hardware import Core
from tvm_blislike.schedules.lowering.rewrite import collect

_INTRINSICS = {tirx.Max: "llvm.maximum", tirx.Min: "llvm.minimum"}


def keep_nan(mod: tvm.IRModule, core: Core) -> tvm.IRModule:
    """Return a module whose maxima and minima keep NaN where that costs nothing.

    Parameters
    ----------
    mod : IRModule
        Scheduled PrimFuncs; anything else in it is left as it is.
    core : Core
        What they are built for.
    """
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        changed = {store: _stored(store, core) for store in _stores_of_extrema(func.body)}
        if changed:
            stores = (tirx.BufferStore, lambda store, new=changed: new.get(store, store))
            result.update_func(gvar, func.with_body(tvm_ffi.structural_map(func.body, [stores])))
    return result


def _stores_of_extrema(body: tirx.Stmt) -> list[tirx.BufferStore]:
    """Return the stores that may be of a maximum or a minimum, found in one walk.

    They come before what is in them; one whose successor's loop has an extremum in its bounds is
    returned, too.
    """
    found: dict[tirx.BufferStore, None] = {}
    last = None
    for node in collect(body, (tirx.BufferStore, *_INTRINSICS)):
        if isinstance(node, tirx.BufferStore):
            last = node
        elif last is not None:
            found[last] = None
    return list(found)


def _stored(store: tirx.BufferStore, core: Core) -> tirx.BufferStore:
    loads = collect(store.value, ir.TensorLoad)
    reduces = any(load.source.same_as(store.buffer) for load in loads)

    def chosen(node: tirx.Max | tirx.Min) -> tirx.Expr:
        if not _is_float(node, core):
            return node
        constants = [_is_constant(operand) for operand in (node.a, node.b)]
        if core.isa.max_keeps_nan or not (reduces or any(constants)):
            return tirx.call_llvm_pure_intrin(node.ty, _INTRINSICS[type(node)], node.a, node.b)
        return type(node)(node.b, node.a) if constants == [False, True] else node

    value = tvm_ffi.structural_map(
        store.value, [(kind, chosen) for kind in _INTRINSICS], order="post"
    )
    return tirx.BufferStore(store.buffer, value, store.indices)


def _is_float(node: tirx.Expr, core: Core) -> bool:
    """Whether the core has instructions for a node's floats."""
    dtype = str(node.ty.dtype).partition("x")[0]
    return dtype == "float32" or (dtype == "float16" and core.computes(dtype))


def _is_constant(operand: Any) -> bool:
    value = operand.value if isinstance(operand, tirx.Broadcast) else operand
    return isinstance(value, tirx.FloatImm)
