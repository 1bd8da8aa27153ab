"""TVM's `FoldConstant`, which leaves kernels of ours to run time."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tvm_blislike.passes.schedule import note_in
from tvm_blislike.tvm_seams import bindings, functions, is_constant, op_name
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED

_FOLD = relax.transform.FoldConstant()


@tvm.transform.module_pass(opt_level=0, name="blislike.FoldConstants")
def fold_constants(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Compute what depends on constants alone, but for what a kernel of ours would compute.

    `FoldConstant` compiles for any processor of the machine's kind, where our kernels hold what
    only some of them have: LLVM ends the process over such an instruction, or computes in words
    what a kernel defines for bytes behind masks.
    """
    kernels = {gvar: mod[gvar] for gvar in _of_constants(mod) if _is_ours(mod[gvar])}
    if not kernels:
        return _FOLD(mod)
    held = mod.clone()
    for gvar in kernels:
        held.update_func(gvar, relax.ExternFunc(gvar.name_hint))
    result = _FOLD(held).clone()
    for gvar, func in kernels.items():
        result.update_func(gvar, func)
    return result


def _of_constants(mod: tvm.IRModule) -> set[GlobalVar]:
    """Return the PrimFuncs that are called with nothing but what constants lead to."""
    found: set[GlobalVar] = set()
    for _, func in functions(mod):
        known: set[relax.Var] = set()
        for binding in bindings(func):
            operands = list(_operands(binding.value))
            if operands and all(is_constant(arg) or arg in known for arg in operands):
                known.add(binding.var)
                if op_name(binding.value) == "relax.call_tir":
                    found.add(binding.value.args[0])
    return found


def _operands(value: relax.Expr) -> Iterator[relax.Expr]:
    """Yield the tensors that a value is made of."""
    if isinstance(value, relax.Tuple):
        for field in value.fields:
            yield from _operands(field)
    elif isinstance(value, relax.TupleGetItem):
        yield from _operands(value.tuple_value)
    elif op_name(value) == "relax.call_tir":
        yield from _operands(value.args[1])
    elif isinstance(value, relax.Var) or is_constant(value):
        yield value


def _is_ours(func: tirx.PrimFunc) -> bool:
    """Whether a PrimFunc is a kernel: already scheduled, or with an implementation."""
    if IS_SCHEDULED.keys() & (func.attrs or {}).keys():
        return True
    return note_in(func) is not None
