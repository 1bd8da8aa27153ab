"""Where a loop must be cut so that the conditions in its body are decided throughout."""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx

from tvm_blislike.schedules.default.nest import Stmts
from tvm_blislike.schedules.lowering.rewrite import collect, constant

# A border is split off at most this many times, so code cannot grow without bound.
_MAX_SEGMENTS = 5


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
