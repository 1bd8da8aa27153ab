"""The default CPU schedule: every PrimFunc without a dedicated template.

Structure comes from schedule primitives: producers are inlined, a reduction is computed
where its result is used, loops run in the order of the output's memory, and the outer ones
are fused and parallel when the work is worth a fork and join. The vector loop itself, its
tail and its borders are then written out by `default_lanes`.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight import ScheduleRule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.target import Target

from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import DEFAULT_RULE
from tvm_blislike.schedules.default import canvas
from tvm_blislike.schedules.default.access import loop_analyzer
from tvm_blislike.schedules.default.fusion import share_parallel_loops
from tvm_blislike.schedules.default.lanes import emit
from tvm_blislike.schedules.default.loops import TargetFacts, shape_stages
from tvm_blislike.schedules.default.nest import FlatViews, Nest, Reduction, Stmts
from tvm_blislike.schedules.default.stages import (
    BlockRV,
    Stage,
    Unscheduled,
    check,
    inline_producers,
    leaf_blocks,
    pair_stages,
    unread_blocks,
)
from tvm_blislike.schedules.default.transpose import emit_transposed
from tvm_blislike.schedules.lowering.brain_floats import through_bits
from tvm_blislike.schedules.lowering.rewrite import collect, sequence, substitute, uses_any
from tvm_blislike.schedules.lowering.vector_math import vectorize_math
from tvm_blislike.tvm_seams.schedules import Schedule


class DefaultCPU(ScheduleRule):
    """Parallel, vectorized loops for every function that has no template of its own.

    The scheduled function carries the attribute `blislike.default_rule`: the family it was
    scheduled as ("elementwise", "transpose", "reduction", several joined by "+"), or
    "unscheduled: reason".

    Parameters
    ----------
    core : Core, optional
        The target's core, which knows what a fork and a copy take; by default any.
    """

    def __init__(self, core: Core | None = None) -> None:
        self._core = core

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Schedule `func` for `target`.

        Parameters
        ----------
        func : tirx.PrimFunc
            Static shapes; anything else is left to LLVM.
        target : Target
            An `llvm` target; `num-cores` decides whether loops become parallel.
        tunable : bool
            Ignored: the rule takes no decisions by measuring.

        Returns
        -------
        s_tir.Schedule or None
            None for a function that is no CPU function.
        """
        if not isinstance(func, tirx.PrimFunc) or target.kind.name != "llvm":
            return None
        machine = replace(TargetFacts.of(target, self._core), kept=canvas.extents_of(func))
        func = canvas.counted(func)
        try:
            scheduled, family = _schedule(func, machine)
        except (Unscheduled, s_tir.ScheduleError) as refusal:
            # Anything else is a mistake of ours, which must not become slow code.
            reason = str(refusal).strip().splitlines()[-1]
            scheduled, family = _parallel_only(func), f"unscheduled: {reason}"
        scheduled = canvas.with_margins(scheduled)
        scheduled = through_bits(vectorize_math(scheduled, machine.vector_bits < 512))
        return Schedule(scheduled.with_attr(DEFAULT_RULE, family))


def _schedule(func: tirx.PrimFunc, machine: TargetFacts) -> tuple[tirx.PrimFunc, str]:
    sch = Schedule(func)
    blocks = leaf_blocks(sch)
    for block in blocks:
        check(sch, block)
    unread = unread_blocks(sch, blocks)
    inline_producers(sch, blocks)
    stages = pair_stages(sch, unread)
    shape_stages(sch, stages, machine)
    families = sorted({stage.family for stage in stages})
    return _write_out(sch, stages, machine), "+".join(families)


def _parallel_only(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make the outermost loop of every block parallel where that is legal."""
    sch = Schedule(func)
    try:
        blocks = leaf_blocks(sch)
    except Unscheduled:
        return func
    for block in blocks:
        for outermost in sch.get_loops(block)[:1]:
            with contextlib.suppress(s_tir.ScheduleError):
                sch.parallel(outermost)
    return sch.mod["main"]


def _write_out(sch: s_tir.Schedule, stages: list[Stage], machine: TargetFacts) -> tirx.PrimFunc:
    """Replace every stage of the root block by its vector code."""
    func = sch.mod["main"]
    root = sch.get(sch.get_sblock("root"))
    tops = [(sch.get(sch.get_loops(stage.block)[0]), stage) for stage in stages]
    body = root.body
    views = FlatViews(list(root.alloc_buffers))
    emitted = []
    for child in body.seq if isinstance(body, tirx.SeqStmt) else [body]:
        stage = next((s for top, s in tops if top.same_as(child)), None)
        if stage is None:
            continue
        nest = _nest(sch, stage, machine, views)
        stmts = emit_transposed(nest, stage.reading, stage.tile) if stage.tile else emit(nest)
        emitted.append(views.declared(stmts))
    shared = share_parallel_loops(emitted, views.allocated())
    written = [_wrap(stmts, f"stage{i}") for i, stmts in enumerate(shared)]
    body = sequence(written)
    used = collect(body, tirx.Var)
    kept = [b for b in views.allocated() if any(b.same_as(v) for v in used)]
    new_root = s_tir.SBlock([], [], [], "root", body, None, kept, None, root.annotations)
    realize = s_tir.SBlockRealize([], True, new_root)
    return tirx.PrimFunc(func.params, realize, func.ret_type, func.attrs)


def _nest(sch: s_tir.Schedule, stage: Stage, machine: TargetFacts, views: FlatViews) -> Nest:
    loops = [sch.get(x) for x in sch.get_loops(stage.block)]
    ranges = loop_analyzer(collect(loops[0], tirx.For))
    plain = _inlined(sch, stage.block)
    store = views.flatten(plain, ranges, every=stage.tile is not None)
    # Loads that no vector load can serve are left to LLVM's loop vectorizer, which knows
    # gathers and interleaved loads; TVM's would load lane by lane.
    lanes = 1 if stage.gathers else machine.lanes(store.buffer)
    nest = Nest(loops, [store], lanes, reduce_lanes=stage.reduce_lanes, analyzer=ranges)
    canvas.open_stores(sch.mod["main"], nest, plain)
    if stage.reduction is not None:
        nest.reduction = _reduction(sch, stage, views, ranges, nest)
    return nest


def _inlined(sch: s_tir.Schedule, block: BlockRV) -> tirx.BufferStore:
    """Return the block's store with its iteration variables replaced by loops."""
    realize = get_sblockrealize(sch, block)
    names = [v.var for v in realize.block.iter_vars]
    return substitute(realize.block.body, dict(zip(names, realize.iter_values, strict=True)))


def _reduction(
    sch: s_tir.Schedule, stage: Stage, views: FlatViews, ranges: sym.Analyzer, nest: Nest
) -> Reduction:
    realize = get_sblockrealize(sch, stage.reduction)
    names = [v.var for v in realize.block.iter_vars]
    depth = len(sch.get_loops(stage.block))
    values = dict(zip(names, realize.iter_values, strict=True))
    inner = [sch.get(x) for x in sch.get_loops(stage.reduction)][depth:]
    units = {x.loop_var: x.min for x in inner if int(x.extent) == 1}
    loops = [x for x in inner if int(x.extent) != 1]
    points = [
        v
        for v, i in zip(realize.iter_values, realize.block.iter_vars, strict=True)
        if i.iter_type == tirx.IterVar.DataPar
    ]
    if any(uses_any(point, [x.loop_var for x in loops]) for point in points):
        raise Unscheduled(f"{realize.block.name_hint} is needed at several points at once")
    update = substitute(substitute(realize.block.body, values), units)
    init = substitute(substitute(realize.block.init, values), units)
    canvas.open_sums(sch.mod["main"], nest, loops, update)
    return Reduction(loops, views.flatten(init, ranges), views.flatten(update, ranges))


def _wrap(stmts: Stmts, name: str) -> tirx.Stmt:
    """Put finished statements into one opaque block that names what it reads and writes."""
    body = sequence(stmts)
    views = {d.buffer: collect(d.data, tirx.Var)[0] for d in collect(body, tirx.DeclBuffer)}
    inner = [a.buffer for a in collect(body, tirx.AllocBuffer)]
    loads = [views.get(x.source, x.source) for x in collect(body, ir.TensorLoad)]
    written = [views.get(x.buffer, x.buffer) for x in collect(body, tirx.BufferStore)]
    block = s_tir.SBlock([], _regions(loads, inner), _regions(written, inner), name, body)
    return s_tir.SBlockRealize([], True, block)


def _regions(buffers: list[tirx.Buffer], local: list[tirx.Buffer]) -> list[ir.TensorRegion]:
    kept: list[tirx.Buffer] = []
    for buffer in buffers:
        if not any(buffer.same_as(b) for b in [*kept, *local]):
            kept.append(buffer)
    return [
        tirx.BufferRegion(b, [ir.Range(tirx.const(0, str(n.ty)), n) for n in b.shape]) for b in kept
    ]
