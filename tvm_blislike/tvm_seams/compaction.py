"""Buffers no larger than what is accessed of them, without a look at values that say nothing of it.

Before it looks at what `if_then_else` chooses from, TVM's pass solves the condition for each of its
variables, and the opposite of the condition as well: 0.3 s for the patches of ResNet-50's Winograd
kernels, whose pixels may lie outside the image. Which parts of parameters are read it does not ask,
though: while it works, a name stands for each value that is made of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

_COMPACT = s_tir.transform.CompactBufferAllocation()
_IF_THEN_ELSE = ir.Op.get("prim.if_then_else")


@tvm.transform.module_pass(opt_level=0, name="blislike.CompactBuffers")
def compact_buffers(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Make of functions what `CompactBufferAllocation` makes of them."""
    values: dict[tirx.Var, ir.Expr] = {}
    named = _each(mod, lambda func: _named(func, values))
    return _each(_COMPACT(named), lambda func: _unnamed(func, values))


def _named(func: tirx.PrimFunc, values: dict[tirx.Var, ir.Expr]) -> tirx.PrimFunc:
    """Return a function with names in place of values, which are added to these."""
    given = set(func.params)

    def name(store: tirx.BufferStore) -> tirx.BufferStore:
        if not _chooses_from(store.value, given):
            return store
        var = tirx.Var("value", store.value.ty)
        values[var] = store.value
        return tirx.BufferStore(store.buffer, var, store.indices)

    return _mapped(func, name)


def _unnamed(func: tirx.PrimFunc, values: dict[tirx.Var, ir.Expr]) -> tirx.PrimFunc:
    """Return a function with the values again."""

    def restore(store: tirx.BufferStore) -> tirx.BufferStore:
        value = values.get(store.value) if isinstance(store.value, tirx.Var) else None
        return store if value is None else tirx.BufferStore(store.buffer, value, store.indices)

    return _mapped(func, restore) if values else func


def _chooses_from(value: ir.Expr, given: set[tirx.Var]) -> bool:
    """Whether a value has conditions, and names numbers and parameters of a function alone."""
    calls: list[ir.Call] = []
    names: list[tirx.Var] = []
    tvm_ffi.structural_walk(value, [(ir.Call, calls.append), (tirx.Var, names.append)])
    return any(call.op.same_as(_IF_THEN_ELSE) for call in calls) and all(
        isinstance(name.ty, ir.PrimType) or name in given for name in names
    )


def _each(mod: tvm.IRModule, change: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> tvm.IRModule:
    """Return a module with each of its PrimFuncs changed."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            result.update_func(gvar, change(func))
    return result


def _mapped(
    func: tirx.PrimFunc, change: Callable[[tirx.BufferStore], tirx.BufferStore]
) -> tirx.PrimFunc:
    """Return a function with its stores changed."""
    body = tvm_ffi.structural_map(func.body, [(tirx.BufferStore, change)])
    return func if body.same_as(func.body) else func.with_body(body)
