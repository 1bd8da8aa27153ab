"""Which blocks a function consists of, and which of them are computed together."""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.dlight.analysis.common_analysis import get_sblockrealize

from tvm_blislike.schedules.default.access import is_expensive, operations
from tvm_blislike.schedules.default.transpose import SMALLEST_TILE
from tvm_blislike.schedules.lowering.rewrite import collect, constant, is_if, uses_any

BlockRV = s_tir.schedule.SBlockRV

# Operations for each result that are computed again rather than stored and loaded. A dequantization
# (convert, add, multiply) in front of a resize by two comes to 45: its operand is a quarter of its
# result, and converting is hidden behind the sixteen loads.
MOST_COMPUTED_AGAIN = 64
# Readers of each result from which one that repeats others is stored.
_MANY_READERS = 16


class Unscheduled(Exception):
    """Why a function cannot be analysed; its text is what `explain` prints."""


@dataclass
class Stage:
    """An output block, the reduction computed for each of its points, and their vector axis.

    Attributes
    ----------
    block, reduction : BlockRV
        What is stored, and what is reduced for it first.
    family : str
        What `explain` prints.
    reduce_lanes : bool
        The vector axis is the innermost reduction loop, otherwise the innermost spatial one.
    gathers : bool
        Some load steps by more than one along the vector axis.
    reading, tile : int
        Loop that reads with unit stride and side of the tile, for transpositions.
    """

    block: BlockRV
    reduction: BlockRV | None = None
    family: str = "elementwise"
    reduce_lanes: bool = False
    gathers: bool = False
    reading: int | None = None
    tile: int | None = None


def leaf_blocks(sch: s_tir.Schedule) -> list[BlockRV]:
    """Return the blocks right below the root, in order."""
    try:
        root = sch.get_sblock("root")
    except s_tir.ScheduleError:
        raise Unscheduled("no root block") from None
    return list(sch.get_child_blocks(root))


def check(sch: s_tir.Schedule, block: BlockRV) -> None:
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
        if any(constant(extent) is None for extent in buffer.shape):
            raise Unscheduled(f"{name} accesses {buffer.name}, whose size is unknown")
    kinds = {v.iter_type for v in statement.iter_vars}
    if not kinds <= {tirx.IterVar.DataPar, tirx.IterVar.CommReduce}:
        raise Unscheduled(f"{name} has an ordered loop")


def is_reduction(sch: s_tir.Schedule, block: BlockRV) -> bool:
    """Tell whether `block` initialises and updates."""
    return sch.get(block).init is not None


def iterations(sch: s_tir.Schedule, block: BlockRV) -> int:
    """Return how often `block` runs."""
    total = 1
    for loop in sch.get_loops(block):
        total *= int(sch.get(loop).extent)
    return total


def unread_blocks(sch: s_tir.Schedule, blocks: list[BlockRV]) -> set[str]:
    """Name the blocks whose result nobody needs, as FuseTIR leaves of unused tuple elements."""
    outputs = list(sch.mod["main"].params)
    unread: set[str] = set()
    for block in reversed(blocks):
        written = sch.get(block).writes[0].source
        wanted = [c for c in sch.get_consumers(block) if sch.get(c).name_hint not in unread]
        if not wanted and not any(written.same_as(p) for p in outputs):
            unread.add(sch.get(block).name_hint)
    return unread


def inline_producers(sch: s_tir.Schedule, blocks: list[BlockRV]) -> None:
    """Inline injective producers, except costly ones that would be computed again and again."""
    for block in blocks:
        if is_reduction(sch, block) or not sch.get_consumers(block):
            continue
        if _is_worth_storing(sch, block) or _is_parted(sch, block):
            continue
        try:
            sch.compute_inline(block)
        except s_tir.ScheduleError:
            continue


def _is_worth_storing(sch: s_tir.Schedule, block: BlockRV) -> bool:
    """Whether results are dearer to compute for each of their readers than to keep.

    A resize reads four points for each of its own, so that what it reads is computed sixteen
    times where it doubles height and width, and two of them behind each other 256 times.
    """
    consumers = sch.get_consumers(block)
    own, body = iterations(sch, block), sch.get(block).body
    if is_expensive(body) and sum(iterations(sch, c) for c in consumers) > own:
        return True
    if _repeats(body) and max(iterations(sch, c) for c in consumers) >= _MANY_READERS * own:
        return True
    # Several readers at the point itself share what they compute.
    times = max(_different_loads(sch, c, block) * iterations(sch, c) for c in consumers) / own
    return times > 1 and (times - 1) * operations(body) > MOST_COMPUTED_AGAIN


def _repeats(body: tirx.Stmt) -> bool:
    """Whether a value is read for several results side by side, at a quotient of their index.

    A number of each group of channels for each channel is one that no vector can load: 16 channels
    of 64 slices of 64x64 pixels took 5.9 ms by the deviations of their groups (Zen 4), 0.86 where
    those are stored for each channel.
    """
    loads = collect(body.value, ir.TensorLoad)
    quotients = (x for load in loads for at in load.indices for x in collect(at, tirx.FloorDiv))
    return any(collect(quotient.a, tirx.Var) for quotient in quotients)


def _is_parted(sch: s_tir.Schedule, block: BlockRV) -> bool:
    """Whether conditions of a reader, as of padding, part what a transposition reads at once.

    Squares are read along an axis, on which there may be no condition; without them elements move
    one by one: 1.5 instead of 0.1 ms for 128 channels of 64x64 (Zen 4).
    """
    statement = sch.get(block)
    at = _read_along(statement)
    if at is None:
        return False
    for reader in sch.get_consumers(block):
        calls = [x for x in collect(sch.get(reader).body, ir.Call) if is_if(x)]
        decided = [v for call in calls for v in collect(call.args[0], tirx.Var)]
        if any(uses_any(load.indices[at], decided) for load in _loads(sch, reader, block)):
            return True
    return False


def _read_along(statement: s_tir.SBlock) -> int | None:
    """Return the axis of a transposed result that is the last one of what it is made of."""
    lengths = {v.var: int(v.dom.extent) for v in statement.iter_vars}
    axes = list(statement.body.indices)
    loads = collect(statement.body.value, ir.TensorLoad)
    for last in [list(load.indices)[-1] for load in loads if len(load.indices)]:
        at = next((i for i, axis in enumerate(axes[:-1]) if axis.same_as(last)), None)
        if at is not None and min(lengths.get(axes[i], 1) for i in (at, -1)) >= SMALLEST_TILE:
            return at
    return None


def _loads(sch: s_tir.Schedule, consumer: BlockRV, block: BlockRV) -> list[ir.TensorLoad]:
    """Return where a consumer loads what `block` writes."""
    written = sch.get(block).writes[0].source
    return [x for x in collect(sch.get(consumer).body, ir.TensorLoad) if x.source.same_as(written)]


def _different_loads(sch: s_tir.Schedule, consumer: BlockRV, block: BlockRV) -> int:
    """Return how many results of `block` each point of a consumer reads."""
    different: list[ir.TensorLoad] = []
    for load in _loads(sch, consumer, block):
        if not any(tvm_ffi.structural_equal(load, other) for other in different):
            different.append(load)
    return len(different)


def pair_stages(sch: s_tir.Schedule, unread: set[str]) -> list[Stage]:
    """Pair every reduction with the block that finishes its result, adding one if needed."""
    stages: list[Stage] = []
    taken: list[str] = []
    blocks = [b for b in leaf_blocks(sch) if sch.get(b).name_hint not in unread]
    for block in blocks:
        if not is_reduction(sch, block):
            continue
        finish = _pointwise_consumer(sch, block, taken)
        if finish is None:
            finish = sch.cache_write(block, 0, "global")
        taken.append(sch.get(finish).name_hint)
        stages.append(Stage(finish, block, family="reduction"))
    for block in blocks:
        if not is_reduction(sch, block) and sch.get(block).name_hint not in taken:
            stages.append(Stage(block))
    return stages


def _pointwise_consumer(sch: s_tir.Schedule, block: BlockRV, taken: list[str]) -> BlockRV | None:
    """Return the only consumer of `block` when it reads each result exactly once."""
    consumers = sch.get_consumers(block)
    if len(consumers) != 1 or is_reduction(sch, consumers[0]):
        return None
    (consumer,) = consumers
    statement = sch.get(consumer)
    if statement.name_hint in taken:
        return None
    target = sch.get(block).writes[0].source
    points = 1
    for extent in target.shape:
        points *= int(extent)
    if points != iterations(sch, consumer):
        return None
    loads = _loads(sch, consumer, block)
    used = [v for load in loads[:1] for i in load.indices for v in collect(i, tirx.Var)]
    needed = [v.var for v in statement.iter_vars if constant(v.dom.extent) != 1]
    same = all(any(v.same_as(u) for u in used) for v in needed)
    alike = all(
        a.same_as(b) or constant(a - b) == 0
        for x in loads
        for a, b in zip(x.indices, loads[0].indices, strict=True)
    )
    return consumer if same and alike else None
