"""The reduction at one point of a nest: over its outputs lane by lane, or over lanes of its input.

Numbers that are added one after the other lose more the more there are: where every rounding goes
the same way, as for a constant, n of them lose n / 2 units in the last place. A long sum is made of
parts, each of them from zero, so that none of its additions stands behind more than a few hundred.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.schedules.default.access import simplify
from tvm_blislike.schedules.default.borders import breakpoints
from tvm_blislike.schedules.default.nest import Nest, Reduction, Stmts, can_be_split
from tvm_blislike.schedules.lowering.rewrite import is_if, substitute, uses_any

Values = dict[tirx.Var, tirx.Expr]
# Adds what a loop has at a step to an accumulator.
Step = Callable[[tirx.Buffer, tirx.Expr], Stmts]
# Windows up to this many steps (5 x 5) are written out; longer ones stay loops.
_UNROLL_STEPS = 25
# Numbers that are added one after the other; of more than its square there are that many parts.
_IN_A_ROW = 128


@dataclass(frozen=True)
class Point:
    """A point of the outer loops of a nest, or as many beside it as a vector has lanes.

    Attributes
    ----------
    nest : Nest
        What is computed.
    values : dict of Var to Expr
        Where the loops around it stand.
    axis : tuple of Var and Expr, or None
        The loop along which the lanes lie, and where the first of them is.
    lanes : int
        How many there are.
    """

    nest: Nest
    values: Values
    axis: tuple[tirx.Var, tirx.Expr] | None
    lanes: int

    def at(self, stmt: tirx.Stmt, lane: tirx.Expr) -> tirx.Stmt:
        """Return a statement as it is in one of the lanes."""
        values = dict(self.values)
        if self.axis is not None:
            values[self.axis[0]] = self.axis[1] + lane
        return simplify(substitute(stmt, values), self.nest.analyzer)

    def vector(self, body: Callable[[tirx.Expr], tirx.Stmt]) -> Stmts:
        """Return a statement for all lanes."""
        return self.nest.vector(self.lanes, body)

    def read_from(
        self, store: tirx.BufferStore, accumulator: tirx.Buffer, lane: tirx.Expr
    ) -> tirx.BufferStore:
        """Make `store` read the accumulator instead of the reduction's buffer."""
        target = self.nest.reduction.init.buffer

        def redirect(load: ir.TensorLoad) -> tirx.Expr:
            return tirx.BufferLoad(accumulator, [lane]) if load.source.same_as(target) else load

        return tvm_ffi.structural_map(store, (ir.TensorLoad, redirect), order="post")


def reduced(point: Point) -> tuple[tirx.Buffer, Stmts]:
    """Return the accumulator of the reduction at a point, and what fills it."""
    return _lane_reduction(point) if point.nest.reduce_lanes else _pointwise_reduction(point)


@dataclass(frozen=True)
class _Sum:
    """A reduction into an accumulator of so many lanes, `steps` one after the other.

    Attributes
    ----------
    nest : Nest
        Whose reduction it is.
    init : tirx.Expr
        What an accumulator starts with.
    width, steps : int
        Lanes of an accumulator, and how often each is added to.
    kind : ForKind
        Of loops that are not cut into parts.
    """

    nest: Nest
    init: tirx.Expr
    width: int
    steps: int
    kind: tirx.ForKind = tirx.ForKind.SERIAL

    def started(self) -> tuple[tirx.Buffer, Stmts]:
        """Return an accumulator and what starts it."""
        # Default scope and under 1024 bytes: TVM makes it a stack slot, LLVM registers.
        dtype = str(self.nest.reduction.init.buffer.dtype)
        accumulator = tirx.decl_buffer((self.width,), dtype, "accumulator")
        return accumulator, self.nest.vector(
            self.width, lambda lane: tirx.BufferStore(accumulator, self.init, [lane])
        )

    def folded(self, into: tirx.Buffer, other: tirx.Buffer, offset: int = 0) -> Stmts:
        """Return what adds an accumulator's lanes, those from an offset on, to another's."""
        operator = type(self.nest.reduction.update.value)

        def fold(lane: tirx.Expr) -> tirx.Stmt:
            values = tirx.BufferLoad(into, [lane]), tirx.BufferLoad(other, [lane + offset])
            return tirx.BufferStore(into, operator(*values), [lane])

        return self.nest.vector(offset or self.width, fold)

    def loop(self, into: tirx.Buffer, name: str, extent: int, inside: int, step: Step) -> Stmts:
        """Return a loop of the reduction, in parts where it is long.

        Parameters
        ----------
        into : tirx.Buffer
            Accumulator.
        name : str
            Of the loop's variable.
        extent, inside : int
            Its steps, and how often each of them adds.
        step : callable
            What a step does.
        """
        pieces = self._pieces(extent * inside)
        if pieces <= 1:  # none where there are no steps
            return self.nest.loop(name, extent, lambda var: step(into, var), self.kind)
        length = math.ceil(extent / pieces)

        def part(first: tirx.Expr, steps: int) -> Stmts:
            partial, start = self.started()
            stmts = self.nest.loop(name, steps, lambda var: step(partial, first + var))
            return [tirx.AllocBuffer(partial), *start, *stmts, *self.folded(into, partial)]

        whole, rest = divmod(extent, length)
        stmts = self.nest.loop(f"{name}_part", whole, lambda var: part(var * length, length))
        return stmts + (part(self.nest.const(whole * length), rest) if rest else [])

    def counted(self, into: tirx.Buffer, loop: tirx.For, innermost: bool, step: Step) -> Stmts:
        """Return an open loop of the reduction: each step has a part of its own, but innermost."""

        def body(var: tirx.Expr) -> Stmts:
            if innermost:
                return step(into, var)
            partial, start = self.started()
            return [
                tirx.AllocBuffer(partial),
                *start,
                *step(partial, var),
                *self.folded(into, partial),
            ]

        most, name = self.nest.left(loop.loop_var, 0), loop.loop_var.name
        return self.nest.loop(name, int(loop.extent), body, most=most)

    def _pieces(self, steps: int) -> int:
        """Return in how many parts so many of the steps are to be taken."""
        reduction = self.nest.reduction
        if not str(reduction.init.buffer.dtype).startswith(("float", "bfloat")):
            return 1
        if not isinstance(reduction.update.value, tirx.Add):
            return 1
        if not can_be_split(reduction.init, reduction.update):
            return 1
        return math.ceil(steps / max(_IN_A_ROW, math.isqrt(self.steps)))


def _pointwise_reduction(point: Point) -> tuple[tirx.Buffer, Stmts]:
    """Every lane owns one output: initialise, then step through the reduction loops."""
    nest, reduction = point.nest, point.nest.reduction
    extents = [int(each.extent) for each in reduction.loops]
    init = point.at(reduction.init, nest.const(0)).value
    steps = math.prod(extents)
    kind = tirx.ForKind.UNROLLED if steps <= _UNROLL_STEPS else tirx.ForKind.SERIAL
    whole = _Sum(nest, init, point.lanes, steps, kind)

    def nested(position: int, values: Values, into: tirx.Buffer) -> Stmts:
        if position == len(extents):
            step = point.vector(lambda lane: point.at(_update(point, into, values, lane), lane))
            return _guarded(step, reduction)
        var = reduction.loops[position].loop_var

        def inner(into: tirx.Buffer, at: tirx.Expr) -> Stmts:
            return nested(position + 1, {**values, var: at}, into)

        if var in nest.open:
            last = position == len(extents) - 1
            return whole.counted(into, reduction.loops[position], last, inner)
        inside = math.prod(extents[position + 1 :])
        return whole.loop(into, var.name, extents[position], inside, inner)

    accumulator, stmts = whole.started()
    return accumulator, stmts + nested(0, {}, accumulator)


def _guarded(stmts: Stmts, reduction: Reduction) -> Stmts:
    """Turn `acc = op(acc, c ? x : identity)` into `if c: acc = op(acc, x)`.

    Only where `c` is the same for all lanes: one branch per vector, no select.
    """
    (stmt,) = stmts
    is_loop = isinstance(stmt, tirx.For)
    store = stmt.body if is_loop else stmt
    value = store.value
    if not isinstance(value, tirx.Add | tirx.Max | tirx.Min):
        return stmts
    choice = value.b
    if not is_if(choice):
        return stmts
    condition, taken, otherwise = choice.args
    lane = [stmt.loop_var] if is_loop else []
    if uses_any(condition, lane) or not _is_neutral(value, otherwise, reduction):
        return stmts
    plain = tirx.BufferStore(store.buffer, type(value)(value.a, taken), store.indices)
    body = plain
    if is_loop:
        body = tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, plain)
    return [tirx.IfThenElse(condition, body, None)]


def _is_neutral(operation: tirx.Expr, operand: tirx.Expr, reduction: Reduction) -> bool:
    """Tell whether `operation` with `operand` leaves the accumulator as it is."""
    if isinstance(operation, tirx.Add):
        return isinstance(operand, tirx.FloatImm | tirx.IntImm) and operand.value == 0
    # No maximum is below where it started.
    return tvm_ffi.structural_equal(operand, reduction.init.value)


def _lane_reduction(point: Point) -> tuple[tirx.Buffer, Stmts]:
    """Lanes share one output: partial results per lane, folded in halves at the end."""
    nest, reduction = point.nest, point.nest.reduction
    outer, last = reduction.loops[:-1], reduction.loops[-1]
    width = _partial_width(int(last.extent), nest.lanes)
    vectors = math.ceil(int(last.extent) / width)
    extents = [*(int(each.extent) for each in outer), vectors]
    zero = nest.const(0)
    whole = _Sum(nest, point.at(reduction.init, zero).value, width, math.prod(extents))

    def nested(position: int, values: Values, into: tirx.Buffer) -> Stmts:
        if position == len(outer):
            return _row(point, whole, values, into)
        var = outer[position].loop_var

        def inner(into: tirx.Buffer, at: tirx.Expr) -> Stmts:
            return nested(position + 1, {**values, var: at}, into)

        inside = math.prod(extents[position + 1 :])
        return whole.loop(into, var.name, extents[position], inside, inner)

    accumulator, stmts = whole.started()
    stmts += nested(0, {}, accumulator)
    half = width // 2
    while half:
        stmts += whole.folded(accumulator, accumulator, half)
        half //= 2
    return accumulator, stmts


def _row(point: Point, whole: _Sum, values: Values, into: tirx.Buffer) -> Stmts:
    """Return the innermost loop of a reduction, by vectors of an accumulator's width."""
    nest, last, width = point.nest, point.nest.reduction.loops[-1], whole.width

    def vector(into: tirx.Buffer, first: tirx.Expr, lanes: int) -> Stmts:
        def step(lane: tirx.Expr) -> tirx.Stmt:
            there = {**values, last.loop_var: first + lane}
            return point.at(_update(point, into, there, lane), nest.const(0))

        return nest.vector(lanes, step)

    stmts: Stmts = []
    for start, stop in itertools.pairwise(
        breakpoints(nest.body(), last.loop_var, int(last.extent), [])
    ):
        steps, rest = divmod(stop - start, width)

        def step(into: tirx.Buffer, at: tirx.Expr, start: int = start) -> Stmts:
            return vector(into, at * width + start, width)

        stmts += whole.loop(into, last.loop_var.name, steps, 1, step)
        stmts += vector(into, nest.const(stop - rest), rest)
    return stmts


def _update(point: Point, into: tirx.Buffer, values: Values, lane: tirx.Expr) -> tirx.BufferStore:
    """Return what adds the numbers at values of the reduction's loops to a lane."""
    update = point.read_from(point.nest.reduction.update, into, lane)
    return tirx.BufferStore(into, substitute(update.value, values), [lane])


def _partial_width(extent: int, lanes: int) -> int:
    """Partial results kept: up to four registers hide the latency of the addition."""
    width = 1
    while width * 2 <= min(extent, 4 * lanes):
        width *= 2
    return width
