"""Turn an analysed nest into vector code with exact tails and split borders.

TVM's own `vectorize` guards a loop that is no multiple of the vector with a condition per
lane and then falls back to scalar code. Here every vector loop is cut into whole vectors
and one shorter vector, and at the places where a condition of its body changes its truth
(padding, concatenation), so that the interior holds no condition on a lane.
"""

from __future__ import annotations

import itertools

from tvm import tirx

from tvm_blislike.schedules.default.borders import breakpoints
from tvm_blislike.schedules.default.nest import Nest, Stmts
from tvm_blislike.schedules.default.reductions import Point, reduced


def emit(nest: Nest) -> Stmts:
    """Return the statements of `nest` with vector loops, tails and split borders."""
    return _emit_loops(nest, 0, {})


def _emit_loops(nest: Nest, position: int, values: dict[tirx.Var, tirx.Expr]) -> Stmts:
    if position == len(nest.loops):
        return _emit_point(Point(nest, values, None, 1))
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

        most = nest.left(this.loop_var, start)
        stmts += nest.loop(this.loop_var.name, stop - start, body, this.kind, most)
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
            return _emit_point(Point(nest, values, axis, nest.lanes))

        most = nest.left(this.loop_var, start, nest.lanes)
        stmts += nest.loop(this.loop_var.name, whole, vectors, this.kind, most)
        if rest:
            axis = (this.loop_var, nest.const(stop - rest))
            stmts += _emit_point(Point(nest, values, axis, rest))
    return stmts


def _emit_point(point: Point) -> Stmts:
    """Emit reduction and stores for one point of the outer loops."""
    stores = point.nest.stores
    if point.nest.reduction is None:
        return [
            s for store in stores for s in point.vector(lambda lane, s=store: point.at(s, lane))
        ]
    accumulator, stmts = reduced(point)
    for store in stores:
        stmts += point.vector(
            lambda lane, s=store: point.at(point.read_from(s, accumulator, lane), lane)
        )
    return [tirx.AllocBuffer(accumulator), *stmts]
