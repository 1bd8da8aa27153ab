"""The Relax pipeline "blislike": from an imported module to scheduled kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from tvm_blislike import progress
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.offers import Predictor
from tvm_blislike.choose.strategy import Override, Strategy
from tvm_blislike.choose.targets import explain_target
from tvm_blislike.choose.type_choice import may_gain, why_floats
from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.cost_models.parallel import written_alike
from tvm_blislike.hardware import Core
from tvm_blislike.model.variant import MAIN, function_name
from tvm_blislike.passes import spills, tir_pipeline
from tvm_blislike.passes.batches.depth_first import depth_first, of_batches
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.canvas.module import Images, of_images
from tvm_blislike.passes.concat import concat_in_place
from tvm_blislike.passes.constant_kernels import fold_constants
from tvm_blislike.passes.constant_ranges import constant_ranges
from tvm_blislike.passes.gates import Gates
from tvm_blislike.passes.kernel_code import compiled_kernels
from tvm_blislike.passes.legalize import NarrowIndices, legalize
from tvm_blislike.passes.lengths.module import SIZE, Lengths, functions_of, of_lengths
from tvm_blislike.passes.lower import lower
from tvm_blislike.passes.lower_precision import LowerPrecision
from tvm_blislike.passes.parameters import warn_of_weights
from tvm_blislike.passes.plan import Plan, plan_of
from tvm_blislike.passes.reporting import fused_operators, report_of
from tvm_blislike.passes.schedule import lowered, scheduled
from tvm_blislike.passes.slabs import join_layers
from tvm_blislike.passes.stored_weights import StoreWeights
from tvm_blislike.probe.native import core_of
from tvm_blislike.records.book import RecordBook
from tvm_blislike.tvm_seams.executables import calling, relax_part, taking_weights
from tvm_blislike.tvm_seams.pipelines import (
    VIEWS,
    dispatch_passes,
    lowering_passes,
    machine_passes,
)
from tvm_blislike.tvm_seams.relax_ir import Signature, signature_at, signatures

if TYPE_CHECKING:
    from tvm_blislike.model.report import Report
    from tvm_blislike.model.types import Types
    from tvm_blislike.model.variant import Batches
    from tvm_blislike.model.workload import Workload
    from tvm_blislike.tvm_seams.loaded import Weights


def blislike_pipeline(
    core: Core | None = None,
    threads: int | None = None,
    override: Override | None = None,
    constraints: Constraints | None = None,
    records: RecordBook | None = None,
    predictor: Predictor | None = None,
) -> tvm.transform.Pass:
    """Return the pipeline; `relax.get_pipeline("blislike", ...)` takes the same arguments.

    Parameters
    ----------
    core : Core, optional
        What to generate kernels for; by default the core that fits the current target.
    threads : int, optional
        Threads of one inference; by default the target's `num-cores`.
    override : callable, optional
        The user's own strategy: gets a workload, returns a config or None.
    constraints : Constraints, optional
        Limits of the choice.
    records : RecordBook, optional
        What was measured; it overrules the cost model. Where a database of MetaSchedule is
        current (`with database:`), its schedules are replayed.
    predictor : Predictor, optional
        Corrects the cost model, such as a `LearnedModel`.

    Returns
    -------
    tvm.transform.Pass
        To be used as `tvm.compile(mod, target, relax_pipeline=...)`.
    """
    # Whoever runs it goes on with TVM's own pipeline for PrimFuncs.
    tir_pipeline.take_over()

    @tvm.transform.module_pass(opt_level=0, name="blislike.Pipeline")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        target = tvm.target.Target.current() or _target_of(mod)
        if target is None and core is None:
            target = tvm.target.Target.current(allow_none=False)  # which says what is missing
        target = target or tvm.target.Target(core.target_config(threads))
        strategy = strategy_for(target, core, threads, override, constraints, records, predictor)
        with compiler_lock(), target:
            calls, plan = scheduled_calls(mod, strategy, target)
            return lowered(for_machine(calls, strategy, target), plan)

    return run


def _target_of(mod: tvm.IRModule) -> tvm.target.Target | None:
    """Return the target that a module says it is for, as TVM's `relax_dynamo` has it."""
    return mod.attrs["target"] if mod.attrs and "target" in mod.attrs else None


def strategy_for(
    target: tvm.target.Target,
    core: Core | None = None,
    threads: int | None = None,
    override: Override | None = None,
    constraints: Constraints | None = None,
    records: RecordBook | None = None,
    predictor: Predictor | None = None,
) -> Strategy:
    """Return the strategy for a target; `core` and `threads` take the place of what it says."""
    count = threads or int(target.attrs.get("num-cores", 1))
    limits, book = constraints or Constraints(), records or RecordBook()
    core = core or core_of(target)
    explain_target(target, core)
    return Strategy(core, count, override, limits, book, predictor)


def scheduled_calls(
    mod: tvm.IRModule,
    strategy: Strategy,
    target: tvm.target.Target,
    batches: Batches | None = None,
    lengths: Lengths | None = None,
    images: Images | None = None,
) -> tuple[tvm.IRModule, Plan]:
    """Return a module of scheduled PrimFuncs and of calls on allocated tensors, and the plan.

    The PrimFuncs are for `passes.schedule.lowered`.

    This is TVM's own CPU pipeline, with our passes where it would lower operators to naive loops.
    """
    if lengths is not None:
        return _open_lengths(lengths, strategy, target)
    if images is not None:
        ways = partial(_chosen, target=target), partial(_fused_views, target=target)
        mod, plan = of_images(images, strategy, *ways)
        return _with_calls(scheduled(mod, plan), target), plan
    mod, plan = fused_kernels(mod, strategy, target, batches)
    tuned = _tuned_by_meta_schedule()
    if not tuned:
        # A database knows layers by themselves.
        mod = join_layers(mod, plan, strategy)
    # Views before scheduling: afterwards a reshape is no longer recognized as one, and TVM's
    # look at some functions fails.
    mod = tvm.transform.Sequential([VIEWS, *tuned])(mod)
    return _with_calls(scheduled(mod, plan), target), plan


def _with_calls(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    return tvm.transform.Sequential([*lowering_passes(target), concat_in_place])(mod)


def _open_lengths(
    lengths: Lengths, strategy: Strategy, target: tvm.target.Target
) -> tuple[tvm.IRModule, Plan]:
    """Return `scheduled_calls` of one function for all sizes of a range."""
    ways = partial(_chosen, target=target), partial(_fused_views, target=target)
    mod, plan = of_lengths(lengths, strategy, *ways)
    return _with_calls(scheduled(mod, plan), target), plan


def _chosen(mod: tvm.IRModule, strategy: Strategy, target: tvm.target.Target) -> Plan:
    """Return the plan of an imported module."""
    return plan_of(prepare(target, strategy)(mod), strategy)


def _fused_views(
    mod: tvm.IRModule, strategy: Strategy, target: tvm.target.Target
) -> tuple[tvm.IRModule, Plan]:
    """Return fused kernels, reshapes of which are views, and their plan."""
    fused, plan = fused_kernels(mod, strategy, target)
    return VIEWS(fused), plan


def for_machine(mod: tvm.IRModule, strategy: Strategy, target: tvm.target.Target) -> tvm.IRModule:
    """Return `scheduled_calls` with what TVM's virtual machine needs, such as its memory plan."""
    kind_of = partial(written_alike, core=strategy.core, threads=strategy.threads)
    return tvm.transform.Sequential(machine_passes(target, kind_of))(mod)


def fused_kernels(
    mod: tvm.IRModule,
    strategy: Strategy,
    target: tvm.target.Target,
    batches: Batches | None = None,
) -> tuple[tvm.IRModule, Plan]:
    """Return a module of fused PrimFuncs, each with a note of its choice, and the plan of these.

    With `batches` it has a `main` for each of them.
    """
    mod = prepare(target, strategy)(mod)
    progress.begin("choice")
    mod, plan = of_batches(mod, batches, strategy) if batches else depth_first(mod, strategy)
    progress.begin("lowering")
    warn_of_weights(mod, plan)
    before = [
        legalize(strategy.core, strategy.is_for_many),
        NarrowIndices(),
        relax.transform.AnnotateTIROpPattern(),
        fold_constants,
        relax.transform.FuseOps(),
    ]
    mod = tvm.transform.Sequential(before)(lower(mod, plan))
    plan.fused = fused_operators(mod)
    behind = [
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(),
        constant_ranges,
        # Once more: TVM's `compile_relax` does so before it looks functions up, attributes
        # included.
        relax.transform.AnnotateTIROpPattern(),
    ]
    return tvm.transform.Sequential(behind)(mod), plan


def _tuned_by_meta_schedule() -> list[tvm.transform.Pass]:
    """Return the pass that replays the schedules of the present database, if there is one."""
    tuned = ms.database.Database.current() is not None
    return [relax.transform.MetaScheduleApplyDatabase()] if tuned else []


def prepare(target: tvm.target.Target, strategy: Strategy) -> tvm.transform.Pass:
    """Return the passes before any choice: what they leave are the workloads of a model."""
    core = strategy.core

    def in_floats(layer: Workload, types: Types) -> str:
        if not may_gain(core, layer, types):
            return ""
        for each in (layer.types, types):
            spills.ensure(core, each)
        return why_floats(strategy, layer, types)

    def seconds(layer: Workload) -> float | None:
        spills.ensure(core, layer.types)
        estimate = strategy.choose(layer).estimate
        return None if estimate is None else estimate.seconds

    return tvm.transform.Sequential(
        [
            *dispatch_passes(target),
            Canonicalize(core, in_floats, strategy.threads, strategy.is_for_many, seconds),
            spills.known(core),
            *([LowerPrecision(strategy)] if strategy.constraints.precision != "fp32" else []),
            StoreWeights(strategy),
            Gates(strategy),
        ]
    )


@compiler_lock()
def explain_module(
    mod: tvm.IRModule,
    strategy: Strategy,
    batches: Batches | None = None,
    lengths: Lengths | None = None,
    images: Images | None = None,
) -> Report:
    """Return the report that `compile_module` would give, without generating code."""
    target = tvm.target.Target(strategy.core.target_config(strategy.threads))
    with target:
        return report_of(*scheduled_calls(mod, strategy, target, batches, lengths, images))


@dataclass(frozen=True)
class Made:
    """A compiled module.

    Parameters
    ----------
    executable : Executable
        To run: its functions take their weights behind what the model's take.
    weights : mapping of str to sequence of Tensor
        Of each function.
    report : Report
        Of what was chosen for each layer.
    exportable : callable
        Makes another executable, whose functions have their weights. Not one that has run is
        exported: a virtual machine leaves a note about each constant in its own, a fault of TVM,
        which logs a warning for each then, and so does whoever loads the library.
    functions : list of tuple
        The function of each size with what goes in and out, the largest last.
    """

    executable: tvm.runtime.Executable
    weights: Weights
    report: Report
    exportable: Callable[[], tvm.runtime.Executable]
    functions: list[tuple[str, Signature]]


def compile_module(mod: tvm.IRModule, strategy: Strategy) -> tuple[tvm.runtime.Executable, Report]:
    """Compile an imported module for the core of a strategy.

    Returns
    -------
    tuple
        The executable to run or to export, and the report of what was chosen for each layer.
    """
    made = compile_functions(mod, strategy)
    return made.exportable(), made.report


@compiler_lock()
def compile_functions(
    mod: tvm.IRModule,
    strategy: Strategy,
    batches: Batches | None = None,
    lengths: Lengths | None = None,
    images: Images | None = None,
) -> Made:
    """Compile an imported module of a function for each of several sizes.

    Parameters
    ----------
    mod : IRModule
        Of `main` for the largest sizes, and of any others.
    strategy : Strategy
        Chooses.
    batches : Batches, optional
        Smaller ones that `main` is to be made for as well.
    lengths : Lengths, optional
        Sizes of which one function is to take any; `mod` is not looked at then.
    images : Images, optional
        Heights and widths, likewise.

    Raises
    ------
    SizesMeetError
        When images of a batch do not stay apart, or a part of the model cannot have an open size.
    """
    target = tvm.target.Target(strategy.core.target_config(strategy.threads))
    with target:
        calls, plan = scheduled_calls(mod, strategy, target, batches, lengths, images)
        report = report_of(calls, plan)
        machine = for_machine(calls, strategy, target)
    progress.begin("code")
    kernels = compiled_kernels(machine, target, plan)
    linked = compiler_lock()(partial(calling, relax_part(machine), kernels))
    functions = _functions(calls, lengths, images)
    return Made(*taking_weights(machine, kernels), report, linked, functions)


def _functions(
    calls: tvm.IRModule, lengths: Lengths | None, images: Images | None
) -> list[tuple[str, Signature]]:
    """Return the function of each size with what goes in and out, the largest last."""
    if images is not None:
        return [(MAIN, signature_at(calls[MAIN], each)) for each in images.combinations()]
    if lengths is not None:
        functions, least = [], lengths.least
        for name, most in functions_of(calls):
            sizes = range(least, most + 1)
            functions += [(name, signature_at(calls[name], {SIZE: n})) for n in sizes]
            least = most + 1
        return functions
    found = signatures(calls)
    names = [*map(function_name, range(len(found) - 1)), MAIN]
    return [(name, found[name]) for name in names]
