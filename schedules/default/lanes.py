"""Turn an analysed nest into vector code with exact tails and split borders.

TVM's own `vectorize` guards a loop that is no multiple of the vector with a condition per
lane and then falls back to scalar code. Here every vector loop is cut into whole vectors
and one shorter vector, and at the places where a condition of its body changes its truth
(padding, concatenation), so that the interior holds no condition on a lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.schedules.default.access import simplify
from tvm_blislike.schedules.default.borders import breakpoints
from tvm_blislike.schedules.default.nest import Nest, Reduction, Stmts
from tvm_blislike.schedules.lowering.rewrite import is_if, substitute, uses_any

# Windows up to this many steps (5 x 5) are written out; longer ones stay loops.
_UNROLL_STEPS = 25


def emit(nest: Nest) -> Stmts:
    """Return the statements of `nest` with vector loops, tails and split borders."""
    return _emit_loops(nest, 0, {})


def _emit_loops(nest: Nest, position: int, values: dict[tirx.Var, tirx.Expr]) -> Stmts:
    if position == len(nest.loops):
        return _emit_point(nest, values, None, 1)
    this = nest.loops[position]
    extent = int(this.extent)
    innermost = position == len(nest.loops) - 1
    if innermost and not nest.reduce_lanes:
        return _emit_vector_loop(nest, this, extent, values)
    cuts = [0, extent]
    if position >= len(nest.loops) - 2 and this.kind == tirx.ForKind.SERIAL:
        cuts = breakpoints(nest.body(), this.loop_var, extent, nest.inner_loops(position))
    stmts: Stmts = []
    for start, stop in itertools.pairwise(cuts):

        def body(var: tirx.Expr, start: int = start) -> Stmts:
            return _emit_loops(nest, position + 1, {**values, this.loop_var: var + start})

        stmts += nest.loop(this.loop_var.name, stop - start, body, this.kind)
    return stmts


def _emit_vector_loop(
    nest: Nest, this: tirx.For, extent: int, values: dict[tirx.Var, tirx.Expr]
) -> Stmts:
    """Cut the innermost spatial loop into segments, each into vectors and one tail."""
    inner = nest.inner_loops(len(nest.loops) - 1)
    cuts = breakpoints(nest.body(), this.loop_var, extent, inner)
    stmts: Stmts = []
    for start, stop in itertools.pairwise(cuts):
        whole, rest = divmod(stop - start, nest.lanes)

        def vectors(var: tirx.Expr, start: int = start) -> Stmts:
            axis = (this.loop_var, var * nest.lanes + start)
            return _emit_point(nest, values, axis, nest.lanes)

        stmts += nest.loop(this.loop_var.name, whole, vectors, this.kind)
        if rest:
            axis = (this.loop_var, nest.const(stop - rest))
            stmts += _emit_point(nest, values, axis, rest)
    return stmts


def _emit_point(
    nest: Nest,
    values: dict[tirx.Var, tirx.Expr],
    axis: tuple[tirx.Var, tirx.Expr] | None,
    lanes: int,
) -> Stmts:
    """Emit reduction and stores for one point of the outer loops, `lanes` wide."""

    def at(stmt: tirx.Stmt, lane: tirx.Expr) -> tirx.Stmt:
        point = dict(values)
        if axis is not None:
            point[axis[0]] = axis[1] + lane
        return simplify(substitute(stmt, point), nest.analyzer)

    def vector(body: Callable[[tirx.Expr], tirx.Stmt]) -> Stmts:
        return nest.vector(lanes, body)

    if nest.reduction is None:
        return [s for store in nest.stores for s in vector(lambda lane, s=store: at(s, lane))]
    emit_sum = _emit_lane_reduction if nest.reduce_lanes else _emit_pointwise_reduction
    accumulator, stmts = emit_sum(nest, at, vector, lanes)
    for store in nest.stores:
        stmts += vector(
            lambda lane, s=store: at(_read_from(s, nest.reduction, accumulator, lane), lane)
        )
    return [tirx.AllocBuffer(accumulator), *stmts]


def _accumulator(reduction: Reduction, lanes: int) -> tirx.Buffer:
    # Default scope and under 1024 bytes: TVM makes it a stack slot, LLVM registers.
    return tirx.decl_buffer((lanes,), str(reduction.init.buffer.dtype), "accumulator")


def _read_from(
    store: tirx.BufferStore, reduction: Reduction, accumulator: tirx.Buffer, lane: tirx.Expr
) -> tirx.BufferStore:
    """Make `store` read the accumulator instead of the reduction's buffer."""
    target = reduction.init.buffer

    def redirect(load: ir.TensorLoad) -> tirx.Expr:
        return tirx.BufferLoad(accumulator, [lane]) if load.source.same_as(target) else load

    return tvm_ffi.structural_map(store, (ir.TensorLoad, redirect), order="post")


def _emit_pointwise_reduction(
    nest: Nest,
    at: Callable[[tirx.Stmt, tirx.Expr], tirx.Stmt],
    vector: Callable[[Callable[[tirx.Expr], tirx.Stmt]], Stmts],
    lanes: int,
) -> tuple[tirx.Buffer, Stmts]:
    """Every lane owns one output: initialise, then step through the reduction loops."""
    reduction = nest.reduction
    accumulator = _accumulator(reduction, lanes)
    zero = nest.const(0)
    stmts = vector(
        lambda lane: tirx.BufferStore(accumulator, at(reduction.init, zero).value, [lane])
    )
    steps = 1
    for each in reduction.loops:
        steps *= int(each.extent)
    kind = tirx.ForKind.UNROLLED if steps <= _UNROLL_STEPS else tirx.ForKind.SERIAL

    def step(lane: tirx.Expr, values: dict[tirx.Var, tirx.Expr]) -> tirx.Stmt:
        update = _read_from(reduction.update, reduction, accumulator, lane)
        update = tirx.BufferStore(accumulator, substitute(update.value, values), [lane])
        return at(update, lane)

    def nested(position: int, values: dict[tirx.Var, tirx.Expr]) -> Stmts:
        if position == len(reduction.loops):
            return _guarded(vector(lambda lane: step(lane, values)), reduction)
        this = reduction.loops[position]
        return nest.loop(
            this.loop_var.name,
            int(this.extent),
            lambda var: nested(position + 1, {**values, this.loop_var: var}),
            kind,
        )

    return accumulator, stmts + nested(0, {})


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


def _emit_lane_reduction(
    nest: Nest,
    at: Callable[[tirx.Stmt, tirx.Expr], tirx.Stmt],
    vector: Callable[[Callable[[tirx.Expr], tirx.Stmt]], Stmts],
    lanes: int,
) -> tuple[tirx.Buffer, Stmts]:
    """Lanes share one output: partial results per lane, folded in halves at the end."""
    reduction = nest.reduction
    last = reduction.loops[-1]
    extent = int(last.extent)
    width = _partial_width(extent, nest.lanes)
    accumulator = _accumulator(reduction, width)
    zero = nest.const(0)

    def step(lane: tirx.Expr, values: dict[tirx.Var, tirx.Expr], offset: tirx.Expr) -> tirx.Stmt:
        point = {**values, last.loop_var: offset + lane}
        update = _read_from(reduction.update, reduction, accumulator, lane)
        update = tirx.BufferStore(accumulator, substitute(update.value, point), [lane])
        return at(update, zero)

    def nested(position: int, values: dict[tirx.Var, tirx.Expr]) -> Stmts:
        this = reduction.loops[position]
        name = this.loop_var.name
        if position < len(reduction.loops) - 1:
            return nest.loop(
                name,
                int(this.extent),
                lambda var: nested(position + 1, {**values, this.loop_var: var}),
            )
        cuts = breakpoints(nest.body(), last.loop_var, extent, [])
        stmts: Stmts = []
        for start, stop in itertools.pairwise(cuts):
            whole, rest = divmod(stop - start, width)
            stmts += nest.loop(
                name,
                whole,
                lambda var, start=start: nest.vector(
                    width, lambda lane: step(lane, values, var * width + start)
                ),
            )
            tail = nest.const(stop - rest)
            stmts += nest.vector(rest, lambda lane, t=tail: step(lane, values, t))
        return stmts

    stmts = nest.vector(
        width, lambda lane: tirx.BufferStore(accumulator, at(reduction.init, zero).value, [lane])
    )
    stmts += nested(0, {})
    half = width // 2
    while half:
        stmts += nest.vector(half, lambda lane, h=half: _fold(reduction, accumulator, lane, h))
        half //= 2
    return accumulator, stmts


def _partial_width(extent: int, lanes: int) -> int:
    """Partial results kept: up to four registers hide the latency of the addition."""
    width = 1
    while width * 2 <= min(extent, 4 * lanes):
        width *= 2
    return width


def _fold(
    reduction: Reduction, accumulator: tirx.Buffer, lane: tirx.Expr, half: int
) -> tirx.BufferStore:
    operator = type(reduction.update.value)
    low = tirx.BufferLoad(accumulator, [lane])
    high = tirx.BufferLoad(accumulator, [lane + half])
    return tirx.BufferStore(accumulator, operator(low, high), [lane])
