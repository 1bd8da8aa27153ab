"""The plug for MetaSchedule: the templates of this package as a space of schedules.

    module = tvm_blislike.meta_schedule.prepare(module, target)
    database = ms.relax_integration.tune_relax(
        module,
        {},
        target,
        work_dir,
        trials,
        space=tvm_blislike.meta_schedule.space(),
        builder=tvm_blislike.meta_schedule.builder(),
    )
    executable = ms.relax_integration.compile_relax(database, module, target, {})

`prepare` decides what is fixed once weights are packed: algorithm, register block and layouts.
The space of a layer is then what its configurations may still differ in, such as cache blocking and
loop order; each is one schedule with the micro-kernel tensorized. A schedule's trace replays from a
database; what follows it, `schedules.lowering`, runs in front of TVM's own pipeline for PrimFuncs:
importing this module puts it there (`tir_pipeline.take_over`). It also spares who makes a
`TuneContext` a minute of parsing (`tvm_seams.scripts`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Override, Strategy
from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.model.config import Config, KernelConfig
from tvm_blislike.model.marks import CHOICE, DEFAULT, PLAIN
from tvm_blislike.model.workload import Workload
from tvm_blislike.passes import tir_pipeline
from tvm_blislike.passes.plain_products import product_of, sums_windows
from tvm_blislike.passes.plan import read_note
from tvm_blislike.passes.schedule import apply_template, note_in
from tvm_blislike.pipeline import fused_kernels, strategy_for
from tvm_blislike.records.book import RecordBook
from tvm_blislike.schedules.common import root_block, stages
from tvm_blislike.tuning import kernels
from tvm_blislike.tuning.traces import register_intrinsics
from tvm_blislike.tvm_seams import measuring, scripts

__all__ = ["builder", "prepare", "register_intrinsics", "space"]

tir_pipeline.take_over()
scripts.know_importers()

# Schedules of a layer, unless asked for otherwise.
CANDIDATES = 16
# Steps of k per iteration; the model's configurations have 4.
_STEPS = (2, 8)


@compiler_lock()
def prepare(
    mod: tvm.IRModule,
    target: tvm.target.Target | dict[str, Any],
    override: Override | None = None,
    constraints: Constraints | None = None,
    records: RecordBook | None = None,
) -> tvm.IRModule:
    """Return a Relax module whose layers are fused PrimFuncs, each with its implementation.

    Parameters
    ----------
    mod : IRModule
        A Relax module as imported, with its weights as constants.
    target : Target or dict
        An `llvm` target; its `num-cores` is the number of threads.
    override, constraints, records
        As for the pipeline "blislike".

    Returns
    -------
    IRModule
        What `tune_relax` finds tasks in and `compile_relax` compiles.
    """
    target = tvm.target.Target(target)
    strategy = strategy_for(target, override=override, constraints=constraints, records=records)
    with target:
        return fused_kernels(mod, strategy, target)[0]


def space(candidates: int = CANDIDATES) -> ms.space_generator.SpaceGenerator:
    """Return the generator of the schedules of a PrimFunc, for `tune_tir` and `tune_relax`.

    A PrimFunc that `prepare` made has the schedules of its template, those of the smallest
    predicted times first, its own configuration before all. A plain product (A, B, C) has the
    configurations of `gemm`, each packing B in every call. Any other PrimFunc has one schedule: the
    default CPU rule. Convolutions among them are warned of, since they need `prepare`: what is fast
    has other layouts of images and packed weights, which reach beyond a PrimFunc.

    Parameters
    ----------
    candidates : int
        Schedules of a PrimFunc at most.
    """

    def generate(mod: tvm.IRModule, target: tvm.target.Target) -> list[s_tir.Schedule]:
        return list(islice(schedules(mod, strategy_for(target)), candidates))

    return measuring.space(generate)


def builder(**options: Any) -> ms.builder.LocalBuilder:
    """Return a builder whose processes import this package and not TVM's intrinsics for GPUs.

    TVM's own builder works too where this package is installed, but imports those for seconds in
    each round.

    Parameters
    ----------
    **options
        As for `ms.builder.LocalBuilder`, such as `max_workers` and `timeout_sec`.
    """
    return ms.builder.LocalBuilder(f_build=tir_pipeline.build, **options)


def schedules(mod: tvm.IRModule, strategy: Strategy) -> Iterator[s_tir.Schedule]:
    """Yield the schedules of a module's only PrimFunc."""
    (func,) = (func for _, func in mod.functions_items())
    sch = s_tir.Schedule(mod)
    note, product = note_in(func), product_of(func)
    if note is not None:
        workload, chosen = read_note(note)
        for config in alternatives(workload, chosen, strategy):
            yield _scheduled(mod, workload, config, strategy)
    elif product is not None and strategy.offers(product):
        for config, _ in sorted(strategy.offers(product), key=lambda offer: offer[1]):
            yield _annotated(mod, PLAIN, config.to_json())
    else:
        if product is None and sums_windows(sch):
            _warn_of_convolution()
        yield _annotated(mod, DEFAULT, 1)


def _warn_of_convolution() -> None:
    warnings.warn(
        "a convolution that prepare() has not seen gets one schedule, the slow default rule: its "
        "layouts and packed weights reach beyond its PrimFunc; tune the module that "
        "tvm_blislike.meta_schedule.prepare(module, target) returns",
        RuntimeWarning,
        stacklevel=2,
    )


def _annotated(mod: tvm.IRModule, key: str, note: str | int) -> s_tir.Schedule:
    """Return a schedule that leaves everything to `passes.schedule.finish`."""
    sch = s_tir.Schedule(mod)
    sch.annotate(root_block(sch), key, note)
    return sch


def _scheduled(
    mod: tvm.IRModule, workload: Workload, config: Config, strategy: Strategy
) -> s_tir.Schedule:
    sch = s_tir.Schedule(mod)
    apply_template(sch, workload, config, strategy.core, strategy.threads)
    return sch


def alternatives(workload: Workload, config: Config, strategy: Strategy) -> Iterator[Config]:
    """Yield a configuration and the others that compute the same tensor expressions.

    Those have the same packed operand, layouts and blocks. The smallest predicted time comes first,
    then the same with other steps of k in an iteration of the micro-kernel's loop.
    """
    offers = sorted(strategy.offers(workload), key=lambda offer: offer[1])
    offered = [other for other, _ in offers if _fixed(other) == _fixed(config)]
    known = list(dict.fromkeys([config, *offered]))
    calling = [c for c in known if isinstance(c, KernelConfig)]
    unrolled = [c.with_fields(unroll=steps) for steps in _STEPS for c in calling]
    same = _expression(workload, config, strategy)
    for other in dict.fromkeys([*known, *unrolled]):
        if tvm_ffi.structural_equal(_expression(workload, other, strategy), same, True):
            yield other


def _fixed(config: Config) -> tuple[Any, ...]:
    return config.implementation, config.mr, config.nr, config.data_layout, config.out_layout


def _expression(workload: Workload, config: Config, strategy: Strategy) -> tvm.IRModule:
    """Return what a configuration computes, without the note that names it."""
    group = kernels.CandidateGroup(workload, (config,), strategy.core, strategy.threads)
    sch = s_tir.Schedule(kernels.functions(group, 0, config)["candidate_0"])
    sch.unannotate(stages(sch)["unpack"], CHOICE)
    return sch.mod
