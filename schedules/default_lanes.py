"""Turn an analysed nest into vector code with exact tails and split borders.

TVM's own `vectorize` guards a loop that is no multiple of the vector with a condition per
lane and then falls back to scalar code. Here every vector loop is cut into whole vectors
and one shorter vector, and at the places where a condition of its body changes its truth
(padding, concatenation), so that the interior holds no condition on a lane.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from .default_access import IF_THEN_ELSE, collect, constant, simplify, substitute, uses_any

# Windows up to this many steps (5 x 5) are written out; longer ones stay loops.
_UNROLL_STEPS = 25
# A border is split off at most this many times, so code cannot grow without bound.
_MAX_SEGMENTS = 5

Stmts = list[tirx.Stmt]


@dataclass
class Reduction:
    """One reduction block, its indices expressed in the loops around it.

    Attributes
    ----------
    loops : list of tirx.For
        Reduction loops, outermost first.
    init : tirx.BufferStore
        Identity of the reduction.
    update : tirx.BufferStore
        One step; reads its own target.
    """

    loops: list[tirx.For]
    init: tirx.BufferStore
    update: tirx.BufferStore


@dataclass
class Nest:
    """A perfect nest of spatial loops with an optional reduction and one or more stores.

    Attributes
    ----------
    loops : list of tirx.For
        Spatial loops, outermost first; `kind` tells which one is parallel.
    reduction : Reduction or None
        Computed before the stores in each point of the nest.
    stores : list of tirx.BufferStore
        Final stores; they may read the reduction's result.
    lanes : int
        Elements of one vector register.
    reduce_lanes : bool
        The innermost reduction loop is the vector axis, otherwise the innermost spatial loop.
    """

    loops: list[tirx.For]
    stores: list[tirx.BufferStore]
    lanes: int
    reduction: Reduction | None = None
    reduce_lanes: bool = False
    analyzer: sym.Analyzer = field(default_factory=sym.Analyzer)

    def const(self, value: int) -> tirx.IntImm:
        """Return an index constant; some PrimFuncs count in int32, others in int64."""
        return tirx.const(value, str(self.loops[0].loop_var.ty))

    def loop(
        self,
        name: str,
        extent: int,
        body: Callable[[tirx.Expr], Stmts],
        kind: tirx.ForKind = tirx.ForKind.SERIAL,
    ) -> Stmts:
        """Return a loop of `extent` steps around `body(variable)`; none for a single step."""
        zero = self.const(0)
        if extent <= 1:
            return body(zero) if extent else []
        var = tirx.Var(name, str(zero.ty))
        self.analyzer.bind(var, ir.Range(zero, self.const(extent)))
        return [tirx.For(var, zero, self.const(extent), kind, sequence(body(var)))]

    def vector(self, lanes: int, body: Callable[[tirx.Expr], tirx.Stmt]) -> Stmts:
        """Return a vectorized loop around one statement."""
        return self.loop("lane", lanes, lambda lane: [body(lane)], tirx.ForKind.VECTORIZED)


# -- small constructors --------------------------------------------------------------------


def sequence(stmts: Stmts) -> tirx.Stmt:
    """Return one statement for a list of them."""
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)


# -- borders -------------------------------------------------------------------------------


def breakpoints(stmts: Stmts, variable: tirx.Var, extent: int, inner: list[tirx.For]) -> list[int]:
    """Return where `variable` must be cut so that its conditions hold or fail throughout.

    Parameters
    ----------
    stmts : list of tirx.Stmt
        Body of the loop.
    variable : tirx.Var
        Its variable, ranging over [0, extent).
    inner : list of tirx.For
        Loops inside, whose variables may take part in the conditions.

    Returns
    -------
    list of int
        Cuts in increasing order, from 0 to `extent`, at most five segments; [0, extent]
        where no condition of `variable` can be decided.
    """
    analyzer = sym.Analyzer()
    for each in inner:
        analyzer.bind(each.loop_var, ir.Range.from_min_extent(each.min, each.extent))
    cuts: set[int] = set()
    for stmt in stmts:
        for comparison in collect(stmt, tuple(_HOLDS)):
            cuts |= _cuts_of(comparison, variable, analyzer)
    cuts = {c for c in cuts if 0 < c < extent}
    if len(cuts) >= _MAX_SEGMENTS:
        return [0, extent]
    return [0, *sorted(cuts), extent]


def _cuts_of(comparison: tirx.Expr, variable: tirx.Var, analyzer: sym.Analyzer) -> set[int]:
    """Cuts of one comparison `slope * variable + rest ? 0`, `rest` anywhere in its bounds."""
    if not str(comparison.a.ty).startswith("int"):
        return set()
    difference = analyzer.simplify(comparison.a - comparison.b)
    linear = sym.detect_linear_equation(difference, [variable])
    slope = constant(linear[0]) if linear else None
    if not slope:
        return set()
    bound = analyzer.const_int_bound(linear[1])
    if max(abs(int(bound.min_value)), abs(int(bound.max_value))) > 1 << 30:
        return set()
    low, high = int(bound.min_value), int(bound.max_value)
    roots = {-rest // slope + near for rest in (low, high) for near in (-1, 0, 1, 2)}
    return {c for c in roots if _flips(comparison, slope, low, high, c)}


def _flips(comparison: tirx.Expr, slope: int, low: int, high: int, cut: int) -> bool:
    """Tell whether the possible outcomes differ on the two sides of `cut`."""
    holds = _HOLDS[type(comparison)]

    def outcome(position: int) -> tuple[bool, ...]:
        ends = [slope * position + low, slope * position + high]
        if isinstance(comparison, tirx.EQ | tirx.NE):
            return (min(ends) <= 0 <= max(ends),)
        return tuple(holds(end) for end in ends)

    return outcome(cut - 1) != outcome(cut)


_HOLDS: dict[type, Callable[[int], bool]] = {
    tirx.LT: lambda d: d < 0,
    tirx.LE: lambda d: d <= 0,
    tirx.GT: lambda d: d > 0,
    tirx.GE: lambda d: d >= 0,
    tirx.EQ: lambda d: d == 0,
    tirx.NE: lambda d: d != 0,
    # The divisor of an average at the border: which operand wins is a condition, too.
    tirx.Min: lambda d: d <= 0,
    tirx.Max: lambda d: d <= 0,
}


# -- emission ------------------------------------------------------------------------------


def emit(nest: Nest) -> Stmts:
    """Return the statements of `nest` with vector loops, tails and split borders."""
    return _emit_loops(nest, 0, {})


def _body(nest: Nest) -> Stmts:
    return [*([nest.reduction.update] if nest.reduction else []), *nest.stores]


def _inner_loops(nest: Nest, position: int) -> list[tirx.For]:
    reduction = nest.reduction.loops if nest.reduction else []
    return [*nest.loops[position + 1 :], *reduction]


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
        cuts = breakpoints(_body(nest), this.loop_var, extent, _inner_loops(nest, position))
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
    inner = nest.reduction.loops if nest.reduction else []
    cuts = breakpoints(_body(nest), this.loop_var, extent, inner)
    stmts: Stmts = []
    for start, stop in itertools.pairwise(cuts):
        whole, rest = divmod(stop - start, nest.lanes)

        def vectors(var: tirx.Expr, start: int = start) -> Stmts:
            return _emit_lanes(nest, this, values, var * nest.lanes + start, nest.lanes)

        stmts += nest.loop(this.loop_var.name, whole, vectors, this.kind)
        if rest:
            stmts += _emit_lanes(nest, this, values, nest.const(stop - rest), rest)
    return stmts


def _emit_lanes(
    nest: Nest,
    this: tirx.For,
    values: dict[tirx.Var, tirx.Expr],
    offset: tirx.Expr,
    lanes: int,
) -> Stmts:
    return _emit_point(nest, values, (this.loop_var, offset), lanes)


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
    if not (isinstance(choice, ir.Call) and choice.op.same_as(IF_THEN_ELSE)):
        return stmts
    condition, taken, otherwise = choice.args
    lane = [stmt.loop_var] if is_loop else []
    if uses_any(condition, lane) or not _equal(otherwise, reduction.init.value):
        return stmts
    plain = tirx.BufferStore(store.buffer, type(value)(value.a, taken), store.indices)
    body = plain
    if is_loop:
        body = tirx.For(stmt.loop_var, stmt.min, stmt.extent, stmt.kind, plain)
    return [tirx.IfThenElse(condition, body, None)]


def _equal(a: tirx.Expr, b: tirx.Expr) -> bool:
    return tvm_ffi.structural_equal(a, b)


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
        cuts = breakpoints(_body(nest), last.loop_var, extent, [])
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


def wrap(stmts: Stmts, name: str, allocated: list[tirx.Buffer] | None = None) -> tirx.Stmt:
    """Put finished statements into one opaque block that names what it reads and writes."""
    body = sequence(stmts)
    views = {d.buffer: collect(d.data, tirx.Var)[0] for d in collect(body, tirx.DeclBuffer)}
    inner = [a.buffer for a in collect(body, tirx.AllocBuffer)]
    loads = [views.get(x.source, x.source) for x in collect(body, ir.TensorLoad)]
    written = [views.get(x.buffer, x.buffer) for x in collect(body, tirx.BufferStore)]
    block = s_tir.SBlock(
        [], _regions(loads, inner), _regions(written, inner), name, body, None, allocated or []
    )
    return s_tir.SBlockRealize([], True, block)


def _regions(buffers: list[tirx.Buffer], local: list[tirx.Buffer]) -> list[ir.TensorRegion]:
    kept: list[tirx.Buffer] = []
    for buffer in buffers:
        if not any(buffer.same_as(b) for b in [*kept, *local]):
            kept.append(buffer)
    return [
        tirx.BufferRegion(b, [ir.Range(tirx.const(0, str(n.ty)), n) for n in b.shape]) for b in kept
    ]
