"""Every fused PrimFunc gets its template, or the default CPU rule."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_blislike.passes.legalize import CHOICE, read_choice
from tvm_blislike.registry import get_implementation
from tvm_blislike.schedules import lowering
from tvm_blislike.schedules.common import stages
from tvm_blislike.schedules.default_rule import DefaultCPU
from tvm_blislike.strategy import Strategy

# PrimFunc attribute: the choice (as on the "unpack" block), for reports.
CHOSEN = "blislike.chosen"


def schedule(strategy: Strategy) -> tvm.transform.Pass:
    """Return the pass that leaves no PrimFunc of a module unscheduled."""

    @tvm.transform.module_pass(opt_level=0, name="blislike.Schedule")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in mod.functions_items():
            if isinstance(func, tirx.PrimFunc):
                scheduled = schedule_chosen(func, strategy)
                if scheduled is not None:
                    result.update_func(gvar, scheduled)
        result = s_tir.dlight.ApplyDefaultSchedule(DefaultCPU())(result)
        return lowering.lower(result)

    return run


def schedule_chosen(func: tirx.PrimFunc, strategy: Strategy) -> tirx.PrimFunc | None:
    """Schedule a PrimFunc by the template of its choice; None when it has none."""
    sch = s_tir.Schedule(func)
    note = _note(sch)
    if note is None:
        return None
    workload, config = read_choice(note)
    implementation = get_implementation(config.implementation)
    implementation.schedule(sch, workload, config, strategy.core, strategy.threads)
    return sch.mod["main"].with_attr(
        {
            CHOSEN: str(note[CHOICE]),
            lowering.REGISTER_BYTES: strategy.core.vector_registers
            * strategy.core.vector_bits
            // 8,
            "tirx.is_scheduled": True,
        }
    )


def _note(sch: s_tir.Schedule) -> Any | None:
    unpack = stages(sch).get("unpack")
    annotations = sch.get(unpack).annotations if unpack is not None else {}
    return annotations if CHOICE in annotations else None
