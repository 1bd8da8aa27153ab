"""The default CPU schedule: every PrimFunc without a dedicated template.

Structure comes from schedule primitives: producers are inlined, a reduction is computed
where its result is used, loops run in the order of the output's memory, and the outer ones
are fused and parallel when the work is worth a fork and join. The vector loop itself, its
tail and its borders are then written out by `default_lanes`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight import ScheduleRule
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.target import Target
from tvm.target.codegen import llvm_get_vector_width, target_has_features

from .default_access import (
    NestAccesses,
    analyze_nest,
    collect,
    constant,
    is_expensive,
    loop_analyzer,
    realizes,
    substitute,
)
from .default_fusion import share_parallel_loops
from .default_lanes import Nest, Reduction, emit, wrap
from .default_transpose import emit_transposed, reading_loop, tile_size
from .default_views import FlatViews
from .vector_math import vectorize_math

ATTRIBUTE = "blislike.default_rule"

# TVM's fork and join costs 5-10 us; two cores must save more than that.
PARALLEL_NANOSECONDS = 15_000
# In a function of several stages, one of this length joins in when all of them pay together.
_JOINING_NANOSECONDS = 2_000
# One core, data in the second-level cache: bytes per nanosecond of a vector copy.
_BYTES_PER_NANOSECOND = 24
# A transcendental function costs about as much as loading this many more elements.
_EXPENSIVE_LOADS = 2

BlockRV = s_tir.schedule.SBlockRV
LoopRV = s_tir.schedule.LoopRV


class Unscheduled(Exception):
    """Why a function cannot be analysed; its text is what `explain` prints."""


@dataclass(frozen=True)
class Machine:
    """What the rule needs to know of a target."""

    vector_bits: int
    threads: int

    @staticmethod
    def of(target: Target) -> Machine:
        """Read vector width and cores from `target`; 1 core when not stated."""
        threads = target.attrs.get("num-cores", 1)
        return Machine(_vector_bits(target), max(int(threads), 1))

    def lanes(self, buffer: tirx.Buffer) -> int:
        """Elements of `buffer` in one vector register."""
        return max(self.vector_bits // max(buffer.dtype.bits, 8), 1)


def _vector_bits(target: Target) -> int:
    """Width of a vector register in bits."""
    # TVM's own llvm_get_vector_width answers 512 for every x86, Haswell included.
    if "x86" in str(target.attrs.get("mtriple", "")):
        features = {512: "avx512f", 256: "avx"}
        return next((w for w, f in features.items() if target_has_features(f, target)), 128)
    return max(llvm_get_vector_width(target), 128)


@dataclass
class Stage:
    """An output block and the reduction computed for each of its points."""

    block: BlockRV
    reduction: BlockRV | None = None
    reduce_lanes: bool = False
    gathers: bool = False
    reading: int | None = None
    tile: int | None = None
    family: str = "elementwise"


class DefaultCPU(ScheduleRule):
    """Parallel, vectorized loops for every function that has no template of its own.

    The scheduled function carries the attribute `blislike.default_rule`: the family it was
    scheduled as ("elementwise", "transpose", "reduction", several joined by "+"), or
    "unscheduled: reason".
    """

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
        machine = Machine.of(target)
        try:
            scheduled, family = _schedule(func, machine)
        except Unscheduled as reason:
            scheduled, family = _parallel_only(func), f"unscheduled: {reason}"
        except Exception as error:
            # A model must compile even where this rule is wrong; the attribute tells.
            text = str(error).strip().splitlines()
            reason = f"{type(error).__name__} {text[-1] if text else ''}".strip()
            scheduled, family = _parallel_only(func), f"unscheduled: {reason}"
        return s_tir.Schedule(vectorize_math(scheduled).with_attr(ATTRIBUTE, family))


def _schedule(func: tirx.PrimFunc, machine: Machine) -> tuple[tirx.PrimFunc, str]:
    sch = s_tir.Schedule(func)
    blocks = _leaf_blocks(sch)
    for block in blocks:
        _check(sch, block)
    unread = _unread(sch, blocks)
    _inline(sch, blocks)
    stages = _stages(sch, unread)
    total = sum(_nanoseconds(sch, stage) for stage in stages)
    for stage in stages:
        own = _nanoseconds(sch, stage)
        worth = total >= PARALLEL_NANOSECONDS and own >= _JOINING_NANOSECONDS
        _shape_stage(sch, stage, machine, worth and machine.threads > 1)
    families = sorted({stage.family for stage in stages})
    return _write_out(sch, stages, machine), "+".join(families)


def _parallel_only(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make the outermost loop of every block parallel where that is legal."""
    try:
        sch = s_tir.Schedule(func)
        blocks = _leaf_blocks(sch)
    except (Unscheduled, RuntimeError, ValueError, TypeError):
        return func
    for block in blocks:
        try:
            sch.parallel(sch.get_loops(block)[0])
        except (s_tir.ScheduleError, IndexError):
            continue
    return sch.mod["main"]


# -- which blocks there are ----------------------------------------------------------------


def _leaf_blocks(sch: s_tir.Schedule) -> list[BlockRV]:
    try:
        root = sch.get_sblock("root")
    except (s_tir.ScheduleError, RuntimeError, ValueError):
        raise Unscheduled("no root block") from None
    return list(sch.get_child_blocks(root))


def _check(sch: s_tir.Schedule, block: BlockRV) -> None:
    """Refuse what the rest of the rule does not understand."""
    statement = sch.get(block)
    name = statement.name_hint
    if collect(statement.body, s_tir.SBlockRealize):
        raise Unscheduled(f"{name} has nested blocks")
    if not isinstance(statement.body, tirx.BufferStore):
        raise Unscheduled(f"{name} is no single store")
    if statement.init is not None and not isinstance(statement.init, tirx.BufferStore):
        raise Unscheduled(f"{name} reduces several values at once")
    realize = get_sblockrealize(sch, block)
    if constant(realize.predicate) != 1:
        raise Unscheduled(f"{name} runs under a condition")
    loops = [sch.get(loop) for loop in sch.get_loops(block)]
    if any(constant(loop.extent) is None for loop in loops):
        raise Unscheduled(f"{name} has a loop of unknown length")
    if len({str(loop.loop_var.ty) for loop in loops}) > 1:
        raise Unscheduled(f"{name} mixes index types")
    for each in collect(statement.body, (tirx.BufferStore, ir.TensorLoad)):
        buffer = each.buffer if isinstance(each, tirx.BufferStore) else each.source
        if len(buffer.strides):
            raise Unscheduled(f"{name} accesses the strided buffer {buffer.name}")
    kinds = {v.iter_type for v in statement.iter_vars}
    if not kinds <= {tirx.IterVar.DataPar, tirx.IterVar.CommReduce}:
        raise Unscheduled(f"{name} has an ordered loop")


def _is_reduction(sch: s_tir.Schedule, block: BlockRV) -> bool:
    return sch.get(block).init is not None


def _iterations(sch: s_tir.Schedule, block: BlockRV) -> int:
    total = 1
    for loop in sch.get_loops(block):
        total *= int(sch.get(loop).extent)
    return total


def _unread(sch: s_tir.Schedule, blocks: list[BlockRV]) -> set[str]:
    """Name the blocks whose result nobody needs, as FuseTIR leaves of unused tuple elements."""
    outputs = list(sch.mod["main"].params)
    unread: set[str] = set()
    for block in reversed(blocks):
        written = sch.get(block).writes[0].source
        wanted = [c for c in sch.get_consumers(block) if sch.get(c).name_hint not in unread]
        if not wanted and not any(written.same_as(p) for p in outputs):
            unread.add(sch.get(block).name_hint)
    return unread


def _inline(sch: s_tir.Schedule, blocks: list[BlockRV]) -> None:
    """Inline injective producers, except costly ones that would be computed again and again."""
    for block in blocks:
        if _is_reduction(sch, block):
            continue
        consumers = sch.get_consumers(block)
        if not consumers:
            continue
        work = sum(_iterations(sch, c) for c in consumers)
        if is_expensive(sch.get(block).body) and work > _iterations(sch, block):
            continue
        try:
            sch.compute_inline(block)
        except s_tir.ScheduleError:
            continue


# -- stages --------------------------------------------------------------------------------


def _stages(sch: s_tir.Schedule, unread: set[str]) -> list[Stage]:
    """Pair every reduction with the block that finishes its result, adding one if needed."""
    stages: list[Stage] = []
    taken: list[str] = []
    blocks = [b for b in _leaf_blocks(sch) if sch.get(b).name_hint not in unread]
    for block in blocks:
        if not _is_reduction(sch, block):
            continue
        finish = _pointwise_consumer(sch, block, taken)
        if finish is None:
            finish = sch.cache_write(block, 0, "global")
        taken.append(sch.get(finish).name_hint)
        stages.append(Stage(finish, block, family="reduction"))
    for block in blocks:
        if not _is_reduction(sch, block) and sch.get(block).name_hint not in taken:
            stages.append(Stage(block))
    return stages


def _pointwise_consumer(sch: s_tir.Schedule, block: BlockRV, taken: list[str]) -> BlockRV | None:
    """Return the only consumer of `block` when it reads each result exactly once."""
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or _is_reduction(sch, consumers[0]):
        return None
    (consumer,) = consumers
    statement = sch.get(consumer)
    if statement.name_hint in taken:
        return None
    target = sch.get(block).writes[0].source
    points = 1
    for extent in target.shape:
        points *= int(extent)
    if points != _iterations(sch, consumer):
        return None
    loads = [x for x in collect(statement.body, ir.TensorLoad) if x.source.same_as(target)]
    used = [v for load in loads[:1] for i in load.indices for v in collect(i, tirx.Var)]
    needed = [v.var for v in statement.iter_vars if constant(v.dom.extent) != 1]
    same = all(any(v.same_as(u) for u in used) for v in needed)
    alike = all(
        a.same_as(b) or constant(a - b) == 0
        for x in loads
        for a, b in zip(x.indices, loads[0].indices, strict=True)
    )
    return consumer if same and alike else None


def _shape_stage(sch: s_tir.Schedule, stage: Stage, machine: Machine, parallel: bool) -> None:
    """Order, fuse and parallelise the loops of one stage; choose its vector axis."""
    _split_blocked_stores(sch, stage.block)
    if not sch.get_loops(stage.block):
        sch.add_unit_loop(stage.block)
    loops = _order_by_store(sch, stage.block)
    if stage.reduction is not None:
        sch.compute_at(stage.reduction, loops[-1], preserve_unit_loops=True)
        _choose_axis(sch, stage, machine)
    nest = _analyse(sch, stage, loops)
    stage.gathers = not stage.reduce_lanes and nest.gathers(len(loops) - 1)
    if stage.gathers and stage.reduction is None:
        loops = _fuse_runs(sch, nest, loops)
        cut = _choose_tile(sch, stage, loops, machine)
    else:
        loops = _fuse_runs(sch, nest, loops, only_last=True, never=stage.reduce_lanes)
        cut = len(loops) - 1
    if parallel:
        _parallelise(sch, loops[:cut], loops[cut], machine)


def _fuse_runs(
    sch: s_tir.Schedule,
    nest: NestAccesses,
    loops: list[LoopRV],
    only_last: bool = False,
    never: bool = False,
) -> list[LoopRV]:
    """Fuse adjacent loops that walk every buffer like one; only the innermost run if asked."""
    runs = [[loops[-1]]]
    for position in range(len(loops) - 2, -1, -1):
        fits = not never and nest.contiguous_pair(position, position + 1)
        if fits and not (only_last and len(runs) > 1):
            runs[0].insert(0, loops[position])
        else:
            runs.insert(0, [loops[position]])
    return [sch.fuse(*run) for run in runs]


def _choose_tile(sch: s_tir.Schedule, stage: Stage, loops: list[LoopRV], machine: Machine) -> int:
    """Decide on a transposition in registers; return the loop to cut between threads."""
    nest = _analyse(sch, stage, loops)
    stage.reading = reading_loop(nest)
    if stage.reading is None:
        return len(loops) - 1
    extents = [int(x.extent) for x in nest.loops]
    lanes = machine.lanes(sch.get(stage.block).writes[0].source)
    stage.tile = tile_size(extents[stage.reading], extents[-1], lanes)
    if stage.tile is None:
        return len(loops) - 1
    stage.family = "transpose"
    return stage.reading


def _split_blocked_stores(sch: s_tir.Schedule, block: BlockRV) -> None:
    """Split the loops that a store to a blocked layout takes apart (`c // 16`, `c % 16`)."""
    statement = sch.get(block)
    names = [v.var for v in statement.iter_vars]
    loops = sch.get_loops(block)
    for index in statement.body.indices:
        if not isinstance(index, tirx.FloorMod) or not isinstance(index.a, tirx.Var):
            continue
        position = next((i for i, v in enumerate(names) if v.same_as(index.a)), None)
        factor = constant(index.b)
        if position is None or factor is None or len(loops) != len(names):
            continue
        if int(sch.get(loops[position]).extent) % factor == 0:
            sch.split(loops[position], factors=[None, factor])


def _order_by_store(sch: s_tir.Schedule, block: BlockRV) -> list[LoopRV]:
    """Reorder the loops of `block` to the order of its output in memory."""
    loops = list(sch.get_loops(block))
    top = sch.get(loops[0])
    nest = analyze_nest(top, [sch.get(x) for x in loops], realizes(top))
    strides = next(a.strides for a in nest.accesses if a.is_store)
    if any(s is None for s in strides):
        raise Unscheduled(f"{sch.get(block).name_hint} stores irregularly")
    large = [constant(sch.get(x).extent) == 1 or 0 for x in loops]
    order = sorted(range(len(loops)), key=lambda i: (not large[i], -abs(strides[i]), i))
    ordered = [loops[i] for i in order]
    if len(ordered) > 1:
        sch.reorder(*ordered)
    return ordered


def _reduction_loops(sch: s_tir.Schedule, stage: Stage) -> list[LoopRV]:
    count = sum(v.iter_type == tirx.IterVar.CommReduce for v in sch.get(stage.reduction).iter_vars)
    return list(sch.get_loops(stage.reduction))[-count:] if count else []


def _choose_axis(sch: s_tir.Schedule, stage: Stage, machine: Machine) -> None:
    """Decide between lanes over outputs and lanes over the innermost reduction loop."""
    reduction = _reduction_loops(sch, stage)
    spatial = list(sch.get_loops(stage.block))
    everything = [*spatial, *reduction]
    top = sch.get(spatial[0])
    nest = analyze_nest(
        top, [sch.get(x) for x in everything], [get_sblockrealize(sch, stage.reduction)]
    )
    value = sch.get(stage.reduction).body.value
    lanes = machine.lanes(sch.get(stage.reduction).writes[0].source)
    if not reduction or not isinstance(value, tirx.Add | tirx.Max | tirx.Min | tirx.Mul):
        return
    nest.accesses = [a for a in nest.accesses if not a.is_store]
    extents = [int(sch.get(x).extent) for x in everything]
    longer = [i for i in range(len(spatial), len(everything)) if extents[i] > 1]
    if not longer:
        return
    by_output = nest.vector_cost(len(spatial) - 1, lanes) / min(lanes, extents[len(spatial) - 1])
    by_lanes = nest.vector_cost(longer[-1], lanes) / min(lanes, extents[longer[-1]])
    stage.reduce_lanes = by_lanes < by_output
    if stage.reduce_lanes:
        _fuse_reduction(sch, stage, nest, reduction, len(spatial))


def _fuse_reduction(
    sch: s_tir.Schedule,
    stage: Stage,
    nest: NestAccesses,
    reduction: list[LoopRV],
    first: int,
) -> None:
    """Fuse the innermost reduction loops that walk memory like one."""
    nest.accesses = [a for a in nest.accesses if any(a.strides[first:])]
    group = [reduction.pop()]
    while reduction and nest.contiguous_pair(first + len(reduction) - 1, first + len(reduction)):
        group.insert(0, reduction.pop())
    sch.fuse(*group)


def _analyse(sch: s_tir.Schedule, stage: Stage, loops: list[LoopRV]) -> NestAccesses:
    top = sch.get(loops[0])
    return analyze_nest(top, [sch.get(x) for x in loops], realizes(top))


def _nanoseconds(sch: s_tir.Schedule, stage: Stage) -> float:
    """Estimate one core's time for a stage from the elements it touches."""
    total = 0.0
    for block in (stage.block, stage.reduction):
        if block is None:
            continue
        body = sch.get(block).body
        touched = len(collect(body, ir.TensorLoad)) + 1
        touched += _EXPENSIVE_LOADS if is_expensive(body) else 0
        element_bytes = max(body.buffer.dtype.bits // 8, 1)
        total += touched * element_bytes * _iterations(sch, block)
    return total / _BYTES_PER_NANOSECOND


def _parallelise(
    sch: s_tir.Schedule, outer: list[LoopRV], vector: LoopRV, machine: Machine
) -> None:
    """Fuse as few outer loops as balance the threads, or cut the vector loop itself."""
    enough = 8 * machine.threads
    count, taken = 1, 0
    for loop in outer:
        count *= int(sch.get(loop).extent)
        taken += 1
        if count >= enough or (count > 1 and count % machine.threads == 0):
            sch.parallel(sch.fuse(*outer[:taken]))
            return
    if int(sch.get(vector).extent) >= count * machine.threads:
        sch.parallel(vector)
    elif count > 1:
        sch.parallel(sch.fuse(*outer))


# -- from schedule to vector code ----------------------------------------------------------


def _write_out(sch: s_tir.Schedule, stages: list[Stage], machine: Machine) -> tirx.PrimFunc:
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
    written = [wrap(stmts, f"stage{i}") for i, stmts in enumerate(shared)]
    body = written[0] if len(written) == 1 else tirx.SeqStmt(written)
    used = collect(body, tirx.Var)
    kept = [b for b in views.allocated() if any(b.same_as(v) for v in used)]
    new_root = s_tir.SBlock([], [], [], "root", body, None, kept, None, root.annotations)
    realize = s_tir.SBlockRealize([], True, new_root)
    return tirx.PrimFunc(func.params, realize, func.ret_type, func.attrs)


def _nest(sch: s_tir.Schedule, stage: Stage, machine: Machine, views: FlatViews) -> Nest:
    loops = [sch.get(x) for x in sch.get_loops(stage.block)]
    ranges = loop_analyzer(collect(loops[0], tirx.For))
    store = views.flatten(_inlined(sch, stage.block), ranges, every=stage.tile is not None)
    # Loads that no vector load can serve are left to LLVM's loop vectorizer, which knows
    # gathers and interleaved loads; TVM's would load lane by lane.
    lanes = 1 if stage.gathers else machine.lanes(store.buffer)
    nest = Nest(loops, [store], lanes, reduce_lanes=stage.reduce_lanes, analyzer=ranges)
    if stage.reduction is not None:
        nest.reduction = _reduction(sch, stage, views, ranges)
    return nest


def _inlined(sch: s_tir.Schedule, block: BlockRV) -> tirx.BufferStore:
    """Return the block's store with its iteration variables replaced by loops."""
    realize = get_sblockrealize(sch, block)
    names = [v.var for v in realize.block.iter_vars]
    return substitute(realize.block.body, dict(zip(names, realize.iter_values, strict=True)))


def _reduction(
    sch: s_tir.Schedule, stage: Stage, views: FlatViews, ranges: sym.Analyzer
) -> Reduction:
    realize = get_sblockrealize(sch, stage.reduction)
    names = [v.var for v in realize.block.iter_vars]
    depth = len(sch.get_loops(stage.block))
    values = dict(zip(names, realize.iter_values, strict=True))
    inner = [sch.get(x) for x in sch.get_loops(stage.reduction)][depth:]
    units = {x.loop_var: x.min for x in inner if int(x.extent) == 1}
    update = substitute(substitute(realize.block.body, values), units)
    init = substitute(substitute(realize.block.init, values), units)
    loops = [x for x in inner if int(x.extent) != 1]
    return Reduction(loops, views.flatten(init, ranges), views.flatten(update, ranges))
