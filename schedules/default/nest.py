"""What a scheduled nest computes, as plain data for the code that writes it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import ir, sym, tirx

from tvm_blislike.schedules.lowering.rewrite import sequence

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

    def body(self) -> Stmts:
        """Return what runs in each point of the nest."""
        return [*([self.reduction.update] if self.reduction else []), *self.stores]

    def inner_loops(self, position: int) -> list[tirx.For]:
        """Return the loops inside the one at `position`, those of the reduction included."""
        reduction = self.reduction.loops if self.reduction else []
        return [*self.loops[position + 1 :], *reduction]
