"""What makes TVM's own build functions finish the schedules of this package.

Templates leave loops that `schedules.lowering` turns into code with exact edges. Where TVM builds
a PrimFunc that a trace has scheduled, in a builder's worker process for instance, that must happen
too. TVM imports the plugins of the entry point group "tvm.backends" wherever it is imported
itself, and lets them register pipelines: this one puts a pass in front of TVM's, which leaves
alone what has no annotation of ours.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

# Annotations of the root block. What a template has scheduled: the note of its choice.
SCHEDULED = "blislike.scheduled"
# A plain product: JSON of the configuration that is to take its place.
PLAIN = "blislike.plain"
# Left to the default rule.
DEFAULT = "blislike.default"
# Attribute of every PrimFunc that has gone through this package.
OURS = "blislike.ours"
# The name that TVM resolves "default" to.
_PIPELINE = "s_tir"


def root_annotations(func: Any) -> Mapping[str, Any]:
    """Return the annotations of the root block of a PrimFunc; none for any other function."""
    body = getattr(func, "body", None)
    block = getattr(body, "block", None) if isinstance(func, tirx.PrimFunc) else None
    return {} if block is None else block.annotations


def is_ours(func: Any) -> bool:
    """Whether a function is to be finished."""
    return not root_annotations(func).keys().isdisjoint({SCHEDULED, PLAIN, DEFAULT})


@functools.cache
def register() -> None:
    """Have TVM's pipeline for PrimFuncs begin with `finish` and end with `hide_remainders`."""
    pipeline, host, *others = tirx.get_tir_pipeline(_PIPELINE)
    ours = tvm.transform.Sequential([finish, pipeline], name="blislike.TIR")

    def last() -> tvm.transform.Pass:
        return tvm.transform.Sequential([hide_remainders, host()], name="blislike.Host")

    tirx.register_tir_pipeline(_PIPELINE, lambda: (ours, last, *others))


@tvm.transform.module_pass(opt_level=0, name="blislike.Finish")
def finish(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Finish what templates have scheduled; imports nothing where there is nothing to do."""
    if not any(is_ours(func) for _, func in mod.functions_items()):
        return mod
    from tvm_blislike.passes import schedule

    ours = next(f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc))
    return marked(schedule.finish(mod, ours.attrs["target"]))


def marked(mod: tvm.IRModule) -> tvm.IRModule:
    """Mark every PrimFunc as one of this package's, whose remainders are to be hidden."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            result.update_func(gvar, func.with_attr(OURS, True))
    return result


@tvm.transform.module_pass(opt_level=0, name="blislike.HideRemainders")
def hide_remainders(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Hide remainders from LLVM where functions are ours; see `schedules.remainders`."""
    ours = [(g, f) for g, f in mod.functions_items() if f.attrs and OURS in f.attrs]
    if not ours:
        return mod
    from tvm_blislike.schedules.lowering import remainders

    result = mod.clone()
    for gvar, func in ours:
        result.update_func(gvar, func.with_body(remainders.hide(func.body)))
    return result


def build(mod: tvm.IRModule, target: tvm.target.Target, _params: Any) -> tvm.runtime.Module:
    """Compile PrimFuncs, as TVM's builder does (a builder's `f_build`)."""
    return tirx.build(mod, target)
