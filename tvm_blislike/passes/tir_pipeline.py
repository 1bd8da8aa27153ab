"""The pipeline for PrimFuncs: TVM's own, between what finishes the schedules of this package.

Templates leave loops that `schedules.lowering` turns into code with exact edges, and remainders
that LLVM must not see. This package compiles with a pipeline of its own name, and TVM's stays as it
is. Where TVM names the pipeline itself, ours takes its place (`take_over`): with MetaSchedule, with
the Relax pipeline "blislike", and in TVM's worker processes. What has no annotation of ours is left
alone, and nothing is imported for it.
"""

from __future__ import annotations

import functools
from typing import Any

import tvm
from tvm import tirx

from tvm_blislike.model.marks import OURS, UNCHECKED, is_ours, marked
from tvm_blislike.tvm_seams import pipelines

_PIPELINE = "blislike"


@functools.cache
def pipeline() -> str:
    """Return the name of the pipeline, for `tvm.compile(..., tir_pipeline=...)`."""
    pipelines.register_around(_PIPELINE, finish, last)
    return _PIPELINE


@functools.cache
def take_over() -> None:
    """Have TVM take this pipeline wherever it names its own, until the process ends."""
    pipelines.replace_default(pipeline())


def compiled(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Executable:
    """Compile a lowered Relax module, or scheduled PrimFuncs."""
    with pipelines.with_needed():
        return tvm.compile(mod, target, relax_pipeline=None, tir_pipeline=pipeline())


@tvm.transform.module_pass(opt_level=0, name="blislike.Finish")
def finish(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Finish what templates have scheduled; imports nothing where there is nothing to do."""
    if not any(is_ours(func) for _, func in mod.functions_items()):
        return mod
    from tvm_blislike.passes import schedule

    ours = next(f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    return marked(schedule.finish(mod, ours.attrs["target"]))


@tvm.transform.module_pass(opt_level=0, name="blislike.Last")
def last(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Leave out checks of arguments, and hide remainders from LLVM, where functions are ours.

    See `tvm_seams.arguments` and `lowering.remainders`.
    """
    ours = [g for g, f in mod.functions_items() if f.attrs and OURS in f.attrs]
    if not ours:
        return mod
    from tvm_blislike.schedules.lowering import remainders, rewrite
    from tvm_blislike.tvm_seams.arguments import without_checks

    result = without_checks(mod, UNCHECKED)
    for gvar in ours:
        func = result[gvar]
        result.update_func(gvar, rewrite.with_body(func, remainders.hide(func.body)))
    return result


def build(mod: tvm.IRModule, target: tvm.target.Target, _params: Any = None) -> tvm.runtime.Module:
    """Compile PrimFuncs, as TVM's builder does (a builder's `f_build`)."""
    with pipelines.with_needed(mod):
        return tirx.build(mod, target, pipeline())
