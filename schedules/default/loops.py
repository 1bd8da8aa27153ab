"""The order, fusion and parallelism of a stage's loops, and the choice of its vector axis."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize
from tvm.target import Target
from tvm.target.codegen import llvm_get_vector_width, target_has_features

from tvm_blislike.cost_models.parallel import divides_rows, is_blocked_image
from tvm_blislike.hardware import Core
from tvm_blislike.schedules.default.access import NestAccesses, analyze_nest, is_expensive, realizes
from tvm_blislike.schedules.default.nest import can_be_split
from tvm_blislike.schedules.default.stages import BlockRV, Stage, Unscheduled, iterations
from tvm_blislike.schedules.default.transpose import reading_loop, tile_size
from tvm_blislike.schedules.lowering.rewrite import collect, constant

# Length, in forks and joins, that a function has at least when threads share it: two cores save a
# half, which a fork takes twice when the other threads are asleep.
PARALLEL_FORKS = 4.0
# In a function of several stages, one of this length joins in when all of them pay together.
_JOINING_FORKS = 0.5
# Share of the rate at which L2 is read that the bytes of a copy pass at (Golden Cove: 24 of 72 per
# nanosecond).
_COPY_SHARE = 1 / 3
# A transcendental function costs about as much as loading this many more elements.
_EXPENSIVE_LOADS = 2

# Elements of a vector loop that are worth a turn of the loops around it.
_PIECE = 256

LoopRV = s_tir.schedule.LoopRV


@dataclass(frozen=True)
class TargetFacts:
    """What the rule needs to know of a target; speeds of a server where nobody says which core.

    `kept` are the extents of a canvas (`schedules.default.canvas`): loops over them stay alone.
    """

    vector_bits: int
    threads: int
    fork_nanoseconds: float = 4_000.0
    bytes_per_nanosecond: float = 24.0
    kept: frozenset[int] = frozenset()

    @staticmethod
    def of(target: Target, core: Core | None = None) -> TargetFacts:
        """Read vector width and cores from `target`, 1 core when not stated; speeds from `core`."""
        threads = target.attrs.get("num-cores", 1)
        facts = TargetFacts(_vector_bits(target), max(int(threads), 1))
        if core is None:
            return facts
        cache = core.cache(2) or core.cache(1)
        rate = cache.bytes_per_cycle * core.ghz if cache else core.memory_core_gb_per_s
        return replace(
            facts,
            fork_nanoseconds=core.fork_join_us * 1e3,
            bytes_per_nanosecond=_COPY_SHARE * rate,
        )

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


def shape_stages(sch: s_tir.Schedule, stages: list[Stage], facts: TargetFacts) -> None:
    """Give every stage its loops.

    Parameters
    ----------
    sch : s_tir.Schedule
        Schedule of the function, its producers inlined.
    stages : list of Stage
        The vector axis of each is filled in.
    facts : TargetFacts
        Vector width and threads.
    """
    lengths = [_forks(sch, stage, facts) for stage in stages]
    for stage, own in zip(stages, lengths, strict=True):
        worth = sum(lengths) >= PARALLEL_FORKS and own >= _JOINING_FORKS
        _shape_stage(sch, stage, facts, worth and facts.threads > 1)


def _shape_stage(sch: s_tir.Schedule, stage: Stage, facts: TargetFacts, parallel: bool) -> None:
    """Order, fuse and parallelise the loops of one stage; choose its vector axis."""
    _split_blocked_stores(sch, stage.block)
    if not sch.get_loops(stage.block):
        sch.add_unit_loop(stage.block)
    loops = _order_by_store(sch, stage.block)
    if parallel:
        loops = _rows_outside(sch, stage.block, loops, facts)
    if stage.reduction is not None:
        sch.compute_at(stage.reduction, loops[-1], preserve_unit_loops=True)
        _choose_axis(sch, stage, facts)
    nest = _analyse(sch, stage, loops)
    stage.gathers = not stage.reduce_lanes and nest.gathers(len(loops) - 1)
    if stage.gathers and stage.reduction is None:
        loops = _fuse_runs(sch, nest, loops, facts)
        cut = _choose_tile(sch, stage, loops, facts)
    else:
        loops = _fuse_runs(sch, nest, loops, facts, only_last=True, never=stage.reduce_lanes)
        cut = len(loops) - 1
    if parallel:
        _parallelise(sch, stage, loops[:cut], loops[cut], facts)
        if stage.reading is not None:
            # Loops outside it may have become one.
            stage.reading -= len(loops) - len(sch.get_loops(stage.block))


def _fuse_runs(
    sch: s_tir.Schedule,
    nest: NestAccesses,
    loops: list[LoopRV],
    facts: TargetFacts,
    only_last: bool = False,
    never: bool = False,
) -> list[LoopRV]:
    """Fuse adjacent loops that walk every buffer like one; only the innermost run if asked."""
    runs = [[loops[-1]]]
    for position in range(len(loops) - 2, -1, -1):
        kept = any(_is_kept(sch, loops[at], facts) for at in (position, position + 1))
        fits = not never and not kept and nest.contiguous_pair(position, position + 1)
        if fits and not (only_last and len(runs) > 1):
            runs[0].insert(0, loops[position])
        else:
            runs.insert(0, [loops[position]])
    return [sch.fuse(*run) for run in runs]


def _is_kept(sch: s_tir.Schedule, loop: LoopRV, facts: TargetFacts) -> bool:
    return constant(sch.get(loop).extent) in facts.kept


def _choose_tile(sch: s_tir.Schedule, stage: Stage, loops: list[LoopRV], facts: TargetFacts) -> int:
    """Decide on a transposition in registers; return the loop to cut between threads."""
    nest = _analyse(sch, stage, loops)
    stage.reading = reading_loop(nest)
    written = sch.get(stage.block).writes[0].source
    # TVM gives values of bfloat16 another type later, but not the variables they are bound to.
    if stage.reading is None or str(written.dtype) == "bfloat16":
        return len(loops) - 1
    extents = [int(x.extent) for x in nest.loops]
    lanes = facts.lanes(written)
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


def _rows_outside(
    sch: s_tir.Schedule, block: BlockRV, loops: list[LoopRV], facts: TargetFacts
) -> list[LoopRV]:
    """Have threads divide the rows of a blocked image where convolutions do (`divides_rows`).

    Of several images threads take whole ones.
    """
    written = sch.get(block).writes[0].source
    shape = [constant(extent) for extent in written.shape]
    if not is_blocked_image(shape) or shape[-1] != facts.lanes(written) or shape[2] is None:
        return loops
    rows = next((x for x in loops if _stores_at(sch, block, x, 2)), None)
    if rows is None or _is_kept(sch, rows, facts) or not divides_rows(shape[2], facts.threads):
        return loops
    # A part for each thread, in which blocks of channels follow each other; single rows where
    # parts would differ.
    parts = facts.threads if shape[2] % facts.threads == 0 else shape[2]
    outside, inside = sch.split(rows, [parts, None])
    at = loops.index(rows)
    others = [*loops[:at], inside, *loops[at + 1 :]]
    sch.reorder(outside, *others)
    return [outside, *others]


def _stores_at(sch: s_tir.Schedule, block: BlockRV, loop: LoopRV, axis: int) -> bool:
    """Whether a loop is all of an axis of what a block stores."""
    realize, statement = get_sblockrealize(sch, block), sch.get(block)
    index, variable = statement.body.indices[axis], sch.get(loop).loop_var
    names = [v.var for v in statement.iter_vars]
    return any(
        index.same_as(name) and value.same_as(variable)
        for name, value in zip(names, realize.iter_values, strict=True)
    )


def _reduction_loops(sch: s_tir.Schedule, stage: Stage) -> list[LoopRV]:
    count = sum(v.iter_type == tirx.IterVar.CommReduce for v in sch.get(stage.reduction).iter_vars)
    return list(sch.get_loops(stage.reduction))[-count:] if count else []


def _choose_axis(sch: s_tir.Schedule, stage: Stage, facts: TargetFacts) -> None:
    """Decide between lanes over outputs and lanes over the innermost reduction loop."""
    reduction = _reduction_loops(sch, stage)
    spatial = list(sch.get_loops(stage.block))
    everything = [*spatial, *reduction]
    top = sch.get(spatial[0])
    nest = analyze_nest(
        top, [sch.get(x) for x in everything], [get_sblockrealize(sch, stage.reduction)]
    )
    lanes = facts.lanes(sch.get(stage.reduction).writes[0].source)
    block = sch.get(stage.reduction)
    if not reduction or not can_be_split(block.init, block.body):
        return
    if any(_is_kept(sch, loop, facts) for loop in reduction):
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


def _forks(sch: s_tir.Schedule, stage: Stage, facts: TargetFacts) -> float:
    """Estimate one core's time for a stage, in forks and joins, from the elements it touches."""
    total = 0.0
    for block in (stage.block, stage.reduction):
        if block is None:
            continue
        body = sch.get(block).body
        touched = len(collect(body, ir.TensorLoad)) + 1
        touched += _EXPENSIVE_LOADS if is_expensive(body) else 0
        element_bytes = max(body.buffer.dtype.bits // 8, 1)
        total += touched * element_bytes * iterations(sch, block)
    return total / facts.bytes_per_nanosecond / facts.fork_nanoseconds


def _parallelise(
    sch: s_tir.Schedule, stage: Stage, outer: list[LoopRV], vector: LoopRV, facts: TargetFacts
) -> None:
    """Fuse as few outer loops as balance the threads, or cut the vector loop itself."""
    enough = 8 * facts.threads
    count, taken = 1, 0
    for loop in outer:
        if _is_kept(sch, loop, facts):
            break
        count *= int(sch.get(loop).extent)
        taken += 1
        if count >= enough or (count > 1 and count % facts.threads == 0):
            sch.parallel(sch.fuse(*outer[:taken]))
            return
    if taken < len(outer):
        # A loop that is kept: its iterations are divided, whatever is around it.
        sch.parallel(sch.fuse(*outer[:taken]) if count >= facts.threads else outer[taken])
    elif stage.gathers and stage.tile is None and _cut_outside(sch, outer, vector, facts):
        return
    elif int(sch.get(vector).extent) >= count * facts.threads:
        sch.parallel(vector)
    elif count > 1:
        sch.parallel(sch.fuse(*outer))


def _cut_outside(
    sch: s_tir.Schedule, outer: list[LoopRV], vector: LoopRV, facts: TargetFacts
) -> bool:
    """Have threads divide pieces of a vector loop outside all others; return whether it has any.

    LLVM makes vectors of loads that gather, but not in a loop whose ends are a thread's: an image's
    three channels, apart, took 59 us with two threads and 18 with one (Zen 5, 224x224).
    """
    if _is_kept(sch, vector, facts):
        return False
    extent = int(sch.get(vector).extent)
    counts = (facts.threads * each for each in range(8, 0, -1))
    count = next((c for c in counts if extent % c == 0 and extent // c >= _PIECE), None)
    if count is None:
        return False
    piece, inner = sch.split(vector, factors=[count, None])
    sch.reorder(piece, *outer, inner)
    sch.parallel(piece)
    return True
