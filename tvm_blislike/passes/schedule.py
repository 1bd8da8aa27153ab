"""Every fused PrimFunc gets its template, or the default CPU rule.

What a template did is said by an annotation of the root block, which a trace holds as well: so
schedules that MetaSchedule replays from a database are finished like those made here.
"""

from __future__ import annotations

import tvm
from tvm import s_tir, tirx

from tvm_blislike.choose.targets import core_of
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.marks import (
    CHOICE,
    CHOSEN,
    DEFAULT,
    ISA,
    LATER,
    PLAIN,
    REGISTER_BYTES,
    SCHEDULED,
    is_ours,
    marked,
    root_annotations,
)
from tvm_blislike.model.workload import Workload
from tvm_blislike.passes.plain_products import product_of, replaced
from tvm_blislike.passes.plan import Plan, note_of
from tvm_blislike.schedules import get_implementation, read_config
from tvm_blislike.schedules.common import root_block
from tvm_blislike.schedules.default.rule import DefaultCPU
from tvm_blislike.schedules.lowering import lower as lowering
from tvm_blislike.schedules.lowering.not_a_number import keep_nan
from tvm_blislike.schedules.lowering.rewrite import collect
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED
from tvm_blislike.tvm_seams.schedules import Schedule


def schedule(mod: tvm.IRModule, plan: Plan) -> tvm.IRModule:
    """Return a module of which no PrimFunc is left unscheduled, ready for TVM's TIR pipeline."""
    return lowered(scheduled(mod, plan), plan)


def scheduled(mod: tvm.IRModule, plan: Plan) -> tvm.IRModule:
    """Return a module of PrimFuncs that are scheduled or have a choice, for `lowered`."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and not is_ours(func) and not _is_left(func):
            note = note_in(func)
            if note is not None:
                choice = plan.noted(note)
                chosen = note_of(choice.workload, choice.config)
                notes = {CHOSEN: chosen, LATER: "template", **IS_SCHEDULED}
                result.update_func(gvar, func.with_attr(notes))
    result = _noted(result, tvm.target.Target.current())
    return s_tir.dlight.ApplyDefaultSchedule(DefaultCPU(plan.core))(result)


def lowered(mod: tvm.IRModule, plan: Plan) -> tvm.IRModule:
    """Return a module, or a part of it, whose PrimFuncs are loops.

    Templates are applied here, and slabs made. It takes most of the time, and one function has
    nothing to do with another: the threads that generate code do it, each with the kernels that it
    goes on with.
    """
    made = mod.clone()
    for gvar, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc) and _is_left(func):
            made.update_func(gvar, _made(func, plan))
    return marked(keep_nan(lowering.lower(made), plan.core))


def _is_left(func: tirx.PrimFunc) -> bool:
    return bool(func.attrs) and LATER in func.attrs


def _made(func: tirx.PrimFunc, plan: Plan) -> tirx.PrimFunc:
    """Return what a function marked `LATER` stands for."""
    notes = {key: value for key, value in func.attrs.items() if key != LATER}
    made = plan.left_function(str(func.attrs[LATER]))
    if made is None:
        plain = func.without_attr(LATER).with_attr("global_symbol", "main")
        made = schedule_chosen(plain, plan)
    if "global_symbol" not in notes:
        made = made.without_attr("global_symbol")
    return made.with_attr(notes)


def schedule_chosen(func: tirx.PrimFunc, plan: Plan) -> tirx.PrimFunc | None:
    """Schedule a PrimFunc by the template of its choice, for `lowering.lower`; None without one."""
    by_template = _by_template(func, plan)
    return None if by_template is None else _attributed(by_template)


def _by_template(func: tirx.PrimFunc, plan: Plan) -> tirx.PrimFunc | None:
    """Schedule a PrimFunc by the template of its choice, for `finish`; None without a choice."""
    note = note_in(func)
    if note is None:
        return None
    choice, sch = plan.noted(note), Schedule(func)
    apply_template(sch, choice.workload, choice.config, plan.core, plan.threads)
    return sch.mod["main"]


def note_in(func: tirx.PrimFunc) -> str | None:
    """Return the note of an unscheduled PrimFunc's choice, None for one without an implementation.

    Read from the blocks: a schedule of the function would have all of them analysed first.
    """
    for block in collect(func.body, s_tir.SBlock):
        if CHOICE in block.annotations:
            return str(block.annotations[CHOICE])
    return None


def apply_template(
    sch: s_tir.Schedule, workload: Workload, config: Config, core: Core, threads: int
) -> None:
    """Schedule a PrimFunc by the template of a configuration, for `finish` to lower."""
    get_implementation(config.implementation).schedule(sch, workload, config, core, threads)
    root = sch.get_sblock("root")
    sch.annotate(root, SCHEDULED, note_of(workload, config))
    registers = core.vector_registers * core.vector_bits // 8
    sch.annotate(root, REGISTER_BYTES, registers)
    sch.annotate(root, ISA, core.isa.name)


def finish(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Lower what a trace has scheduled, or left to the default rule; the rest stays as it is."""
    return lowering.lower(_noted(mod, target))


def _noted(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return a module whose functions say as attributes what was done, or left to be done here."""
    result = mod.clone()
    for gvar, func in mod.functions_items():
        found = root_annotations(func)
        if SCHEDULED in found:
            result.update_func(gvar, _attributed(func))
        elif PLAIN in found:
            result.update_func(gvar, _replaced(func, read_config(str(found[PLAIN])), target))
        elif DEFAULT in found:
            result.update_func(gvar, _by_default(func, target))
    return result


def _attributed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled PrimFunc with what its root block says as attributes."""
    found = root_annotations(func)
    # A trace of before has no instruction set.
    core = {key: found[key] for key in (REGISTER_BYTES, ISA) if key in found}
    return func.with_attr({CHOSEN: found[SCHEDULED], **core, **IS_SCHEDULED})


def _replaced(func: tirx.PrimFunc, config: Config, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return the configuration's schedule of what a plain product computes."""
    workload = product_of(_without_note(func, PLAIN))
    sch = Schedule(replaced(func, workload, config).with_attr("global_symbol", "main"))
    threads = int(target.attrs.get("num-cores", 1))
    apply_template(sch, workload, config, core_of(target), threads)
    return _attributed(sch.mod["main"].with_attr(dict(func.attrs)))


def _by_default(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    plain = _without_note(func, DEFAULT)
    sch = DefaultCPU(core_of(target)).apply(plain, target, False)
    return plain if sch is None else sch.mod["main"].with_attr(IS_SCHEDULED)


def _without_note(func: tirx.PrimFunc, key: str) -> tirx.PrimFunc:
    """Return a PrimFunc without an annotation of its root block."""
    sch = Schedule(func.with_attr("global_symbol", "main"))
    sch.unannotate(root_block(sch), key)
    return func.with_body(sch.mod["main"].body)
