"""What a scheduled nest computes, as plain data for the code that writes it out.

Loops that are fused over several axes of a buffer get one-dimensional views of it (`FlatViews`). A
fused loop leaves indices such as `x[v // 784 + 32, v % 784]`. Their offset is plain `v + 25088`,
but once the vector lanes are in, TVM no longer finds that and loads lane by lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.schedules.default.access import flat_index, simplify
from tvm_blislike.schedules.lowering.rewrite import collect, sequence

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
    open : dict
        Loops over an extent that only running tells: how far they go.
    """

    loops: list[tirx.For]
    stores: list[tirx.BufferStore]
    lanes: int
    reduction: Reduction | None = None
    reduce_lanes: bool = False
    analyzer: sym.Analyzer = field(default_factory=sym.Analyzer)
    open: dict[tirx.Var, tirx.Expr] = field(default_factory=dict)

    def const(self, value: int) -> tirx.IntImm:
        """Return an index constant; some PrimFuncs count in int32, others in int64."""
        return tirx.const(value, str(self.loops[0].loop_var.ty))

    def loop(
        self,
        name: str,
        extent: int,
        body: Callable[[tirx.Expr], Stmts],
        kind: tirx.ForKind = tirx.ForKind.SERIAL,
        most: tirx.Expr | None = None,
    ) -> Stmts:
        """Return a loop of `extent` steps around `body(variable)`; none for a single step.

        Of `most` steps at most, where that is given.
        """
        zero = self.const(0)
        if extent <= 1:
            return body(zero) if extent else []
        var = tirx.Var(name, str(zero.ty))
        self.analyzer.bind(var, ir.Range(zero, self.const(extent)))
        steps = self.const(extent)
        if most is not None:
            steps = tirx.max(tirx.min(most, steps), zero)
        return [tirx.For(var, zero, steps, kind, sequence(body(var)))]

    def left(self, loop: tirx.Var, start: int, each: int = 1) -> tirx.Expr | None:
        """Return how many times `each` steps of an open loop are left from one on, none cut.

        None for any other loop.
        """
        if loop not in self.open:
            return None
        return tirx.floordiv(self.open[loop] + (each - 1 - start), self.const(each))

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


def can_be_split(init: tirx.BufferStore, update: tirx.BufferStore) -> bool:
    """Tell whether partial results that all start at the initial value add up to the result."""
    value, start = update.value, getattr(init, "value", None)
    neutral = {tirx.Add: 0, tirx.Mul: 1}.get(type(value))
    if not isinstance(value, tirx.Add | tirx.Max | tirx.Min | tirx.Mul):
        return False
    loads = [x.source.same_as(update.buffer) for x in collect(value.b, ir.TensorLoad)]
    own = isinstance(value.a, ir.TensorLoad) and value.a.source.same_as(update.buffer)
    start = getattr(start, "value", None)
    return own and not any(loads) and (neutral is None or start == neutral)


class FlatViews:
    """Replaces accesses with divided indices by accesses to flat views of the same memory.

    Parameters
    ----------
    internal : list of tirx.Buffer
        Buffers the function allocates. They become flat themselves; parameters get an alias.
    """

    def __init__(self, internal: list[tirx.Buffer]) -> None:
        self._internal = [(buffer, _flat_like(buffer)) for buffer in internal]
        self._aliases: list[tuple[tirx.Buffer, tirx.Buffer]] = []

    def allocated(self) -> list[tirx.Buffer]:
        """Return the flat buffers that stand for the internal ones."""
        return [flat for _, flat in self._internal]

    def flatten(
        self, store: tirx.BufferStore, ranges: sym.Analyzer, every: bool = False
    ) -> tirx.BufferStore:
        """Return `store` with its accesses flat: `every` one, or only where that helps.

        It helps where an index is divided; internal buffers are always flat.
        """

        def load(node: ir.TensorLoad) -> ir.TensorLoad:
            flat = self._view(node.source, node.indices, every)
            return node if flat is None else tirx.BufferLoad(flat, _offset(node, ranges))

        value = simplify(store.value, ranges)
        value = tvm_ffi.structural_map(value, (ir.TensorLoad, load), order="post")
        flat = self._view(store.buffer, store.indices, every)
        if flat is None:
            return tirx.BufferStore(store.buffer, value, store.indices)
        offset = ranges.simplify(flat_index(store.buffer, store.indices))
        return tirx.BufferStore(flat, value, [offset])

    def declared(self, stmts: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """Return `stmts` behind the declarations of the aliases they use."""
        used = [v for stmt in stmts for v in collect(stmt, tirx.Var)]
        declarations = [
            tirx.DeclBuffer(flat, data=buffer.data)
            for buffer, flat in self._aliases
            if any(flat.same_as(v) for v in used)
        ]
        self._aliases = []
        return [*declarations, *stmts]

    def _view(
        self, buffer: tirx.Buffer, indices: list[tirx.Expr], always: bool
    ) -> tirx.Buffer | None:
        for known, flat in [*self._internal, *self._aliases]:
            if known.same_as(buffer):
                return flat
        if not always and not any(collect(i, (tirx.FloorDiv, tirx.FloorMod)) for i in indices):
            return None
        self._aliases.append((buffer, _flat_like(buffer)))
        return self._aliases[-1][1]


def _offset(load: ir.TensorLoad, ranges: sym.Analyzer) -> list[tirx.Expr]:
    return [ranges.simplify(flat_index(load.source, load.indices))]


def _flat_like(buffer: tirx.Buffer) -> tirx.Buffer:
    extent = 1
    for each in buffer.shape:
        extent *= int(each)
    index = str(buffer.shape[0].ty) if len(buffer.shape) else "int64"
    shape = (tirx.const(extent, index),)
    return tirx.decl_buffer(shape, str(buffer.dtype), f"{buffer.name}_flat", layout=None)
