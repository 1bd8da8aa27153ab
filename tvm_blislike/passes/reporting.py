"""Collect what was decided for each kernel, in order of execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_blislike.cost_models.roofline import clock_hz
from tvm_blislike.model.choice import Candidate, Choice
from tvm_blislike.model.config import Config
from tvm_blislike.model.marks import CHOSEN, DEFAULT_RULE, IMPOSSIBLE
from tvm_blislike.model.report import CandidateReport, Footprint, LayerReport, LeftOut, Report
from tvm_blislike.model.variant import MAIN
from tvm_blislike.passes import spills
from tvm_blislike.passes.plan import Plan
from tvm_blislike.tvm_seams import bindings, functions, op_name
from tvm_blislike.tvm_seams.relax_ir import runs_of_functions


def report_of(mod: tvm.IRModule, plan: Plan) -> Report:
    """Return the report of a module behind `CallTIRRewrite` and of its plan."""
    calls = _calls(mod)
    computed = [(g, runs) for g, runs in calls if IMPOSSIBLE not in mod[g].attrs]
    called = (dataclasses.replace(_layer(g, mod, plan), runs=runs) for g, runs in computed)
    layers = _with_errors(called, plan.stored)
    left_out = _left_out("weights in float32 of", plan.whole)
    left_out += _left_out("default rule for", plan.left)
    for dtype, layers_left in plan.wide.items():
        left_out += _left_out(f"in {dtype}:", layers_left)
    refused = [mod[g].attrs[IMPOSSIBLE] for g, _ in calls if IMPOSSIBLE in mod[g].attrs]
    impossible = tuple(dict.fromkeys(map(str, refused)))
    notes = (*plan.core.notes, *spills.notes(plan.core), *plan.notes)
    notes += (*map(str, left_out), *impossible)
    return Report(layers, plan.core.name, plan.threads, notes, tuple(left_out), impossible)


def _with_errors(
    layers: Iterable[LayerReport], errors: Mapping[str, list[float]]
) -> tuple[LayerReport, ...]:
    """Return layers, in order of execution, with the errors of their weights."""
    rest = {workload: iter(of_layers) for workload, of_layers in errors.items()}
    return tuple(
        dataclasses.replace(layer, weights_error=next(rest.get(layer.workload, iter(())), None))
        for layer in layers
    )


def _left_out(what: str, reasons: Mapping[str, str]) -> list[LeftOut]:
    """Say what became of layers, and why: their kernels carry the names of operators only."""
    layers: dict[str, list[str]] = {}
    for layer, reason in reasons.items():
        layers.setdefault(reason, []).append(layer)
    return [LeftOut(what, tuple(found), reason) for reason, found in layers.items()]


def _calls(mod: tvm.IRModule) -> list[tuple[tvm.ir.GlobalVar, int]]:
    """Return the kernels that are called, in order, and how often in one run.

    Those of `main`, if there is one: in a module of several sizes the largest stand for all.
    """
    names = {g.name_hint for g, _ in functions(mod)}
    runs = runs_of_functions(mod, MAIN) if MAIN in names else dict.fromkeys(names, 1)
    values = [
        (binding.value, runs[gvar.name_hint])
        for gvar, func in functions(mod)
        if gvar.name_hint in runs
        for binding in bindings(func)
    ]
    called = [(value.op, times) for value, times in values if isinstance(value, relax.Call)]
    return [
        (op, times)
        for op, times in called
        if isinstance(op, tvm.ir.GlobalVar) and _is_kernel(mod[op])
    ]


def _is_kernel(func: tvm.ir.BaseFunc) -> bool:
    return isinstance(func, tirx.PrimFunc)


def _layer(gvar: tvm.ir.GlobalVar, mod: tvm.IRModule, plan: Plan) -> LayerReport:
    func, name = mod[gvar], gvar.name_hint
    operators = plan.fused.get(name, ())
    if CHOSEN in func.attrs:
        choice = plan.noted(str(func.attrs[CHOSEN]))
        own = next((op for op in operators if op.startswith(choice.config.implementation)), None)
        beside = tuple(op for op in operators if op != own)
        return dataclasses.replace(_chosen(name, choice, plan), fused=beside)
    rule = str(func.attrs.get(DEFAULT_RULE, "unscheduled"))
    return LayerReport(name, rule, _shapes(func), "default rule", reason=rule, fused=operators[1:])


def fused_operators(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    """Return, for a module between `FuseOps` and `FuseTIR`, what each kernel is made of.

    Returns
    -------
    dict
        The kernel's name to the names of its operators in order, without their numbers.
    """
    return {
        gvar.name_hint: tuple(
            binding.value.args[0].name_hint.rstrip("0123456789")
            for binding in bindings(func)
            if op_name(binding.value) == "relax.call_tir"
        )
        for gvar, func in functions(mod)
        if "Primitive" in (func.attrs or {})
    }


def _chosen(name: str, choice: Choice, plan: Plan) -> LayerReport:
    workload, config, core = choice.workload, choice.config, plan.core
    estimate = choice.estimate
    if estimate is None:
        estimate = choice.implementation.estimate(workload, config, core, plan.threads)
    return LayerReport(
        name,
        workload.kind,
        str(workload),
        config.implementation,
        config.microkernel(core.isa.name, workload.types),
        shown_fields(config),
        tuple(_footprint(entry) for entry in estimate.footprint),
        estimate.seconds * 1e3,
        estimate.peak_fraction,
        choice.reason,
        workload.macs,
        {cause: 1e3 * c / clock_hz(core) for cause, c in estimate.cycles.items()},
        tuple(_candidate(candidate) for candidate in choice.candidates),
        None if choice.measured_seconds is None else choice.measured_seconds * 1e3,
        _derivation(choice, plan),
        dataclasses.astuple(workload.types),
    )


def _derivation(choice: Choice, plan: Plan) -> tuple[str, ...]:
    """Return what bounds the blocks of a choice; an implementation need not know it."""
    derivation = getattr(choice.implementation, "derivation", None)
    if derivation is None:
        return ()
    return derivation(choice.workload, choice.config, plan.core, plan.threads)


def shown_fields(config: Config) -> dict[str, Any]:
    """Return the fields of a configuration that its implementation uses."""
    return {k: v for k, v in dataclasses.asdict(config).items() if v not in ("", 0)}


def _candidate(candidate: Candidate) -> CandidateReport:
    ms = None if candidate.seconds is None else candidate.seconds * 1e3
    return CandidateReport(candidate.implementation, ms, candidate.reason)


def _footprint(entry: tuple[str, int, int, float]) -> Footprint:
    operand, level, size, fraction = entry
    return Footprint(operand, f"L{level}" if level else "memory", size, fraction)


def _shapes(func: tirx.PrimFunc) -> str:
    def shape(param: Any) -> str:
        # Symbolic sizes print as they are; a plain `str` would write `T.int64(7)` for 7.
        sizes = [getattr(extent, "value", extent) for extent in param.shape]
        return "x".join(map(str, sizes)) or "scalar"

    return f"{shape(func.params[0])} -> {shape(func.params[-1])}"
