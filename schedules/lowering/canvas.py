"""Kernels of a canvas, of which only running tells how much of it an image covers.

A template schedules whole tiles of the largest image. Here its loops over tiles leave out what lies
beyond the image that is there (`OnCanvas`): an iteration that stores nothing inside, or that only
reads what lies outside. What a tile at the edge computes beyond the image is written, since the
canvas has room for it, and then overwritten where somebody reads it: by zeros for a convolution
with padding (`Margin`). So no tile is cut, and the code of a tile is that of a kernel of one size.

Loops that threads divide go over a list of the iterations that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.model.canvas import OnCanvas
from tvm_blislike.model.directives import AskOnce, Border, Edge, Vector, WriteOut
from tvm_blislike.model.loop_names import Named
from tvm_blislike.schedules.lowering.canvas_blocks import (
    COLUMN,
    GROUP,
    ROW,
    Tiles,
    asking_sooner,
    begun,
)
from tvm_blislike.schedules.lowering.canvas_margins import margins_of
from tvm_blislike.schedules.lowering.canvas_sizes import canvas_of, extent_at
from tvm_blislike.schedules.lowering.edges import with_bounds
from tvm_blislike.schedules.lowering.rewrite import (
    INT,
    collect,
    constant,
    distinct,
    integer,
    is_named,
    redirected,
    remade,
    sequence,
    substitute,
    uses_any,
    without,
)

# Loops inside a tile have one of these, or another name than those of loops over tiles.
_OF_TILES = (AskOnce, Vector, WriteOut)
_OVER_TILES = ("yi", ROW, COLUMN, GROUP)
# Loops over blocks in a row of an image, which are made as wide as suits the image (`closed`).
_IN_A_ROW = "column"
# There is code for blocks of so many parts of their width.
_PARTS = 4


@dataclass
class Bounded:
    """A function whose loops leave out what lies beyond the image.

    Parameters
    ----------
    func : PrimFunc
        Loops over buffers of the axes that the definition gives them.
    left : dict
        Variables of loops that threads divide, to what holds in iterations that are left.
    """

    func: tirx.PrimFunc
    left: dict[tirx.Var, Any] = field(default_factory=dict)


def bounded(func: tirx.PrimFunc) -> Bounded:
    """Return a function on a canvas with conditions in its loops; any other as it is."""
    canvas = canvas_of(func)
    if canvas is None:
        return Bounded(func)
    bounding = _Bounding(func, canvas)
    return Bounded(func.with_body(bounding.bounded()), bounding.left)


def closed(func: tirx.PrimFunc, left: dict[tirx.Var, Any]) -> tirx.PrimFunc:
    """Return a bounded function with loops over the iterations that are left, and its margins."""
    canvas = canvas_of(func)
    if canvas is None:
        return func
    bounding = _Bounding(func, canvas)

    def visit(loop: tirx.For) -> tirx.Stmt:
        if is_named(loop, _IN_A_ROW):
            return bounding.in_a_row(loop)
        return _over_list(loop, left[loop.loop_var]) if loop.loop_var in left else loop

    body = tvm_ffi.structural_map(func.body, [(tirx.For, visit)])
    return func.with_body(sequence([body, *margins_of(func)]))


@dataclass
class _Bounding:
    """The rewriting of one function."""

    func: tirx.PrimFunc
    canvas: OnCanvas
    left: dict[tirx.Var, Any] = field(default_factory=dict)
    analyzer: sym.Analyzer = field(default_factory=sym.Analyzer)

    def __post_init__(self) -> None:
        params = list(self.func.params)
        self.sizes = params[self.canvas.sizes]
        pairs = list(zip(params, self.canvas.axes, strict=True))
        self.taken = {p: axes for p, axes in pairs[: self.canvas.sizes] if axes}
        self.given = {p: axes for p, axes in pairs[self.canvas.sizes :] if axes}

    def bounded(self) -> tirx.Stmt:
        """Return the body with conditions in its loops."""
        for loop in collect(self.func.body, tirx.For):
            self.analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
        # A single block of tiles has no loop around it.
        return self._in_tiles(tvm_ffi.structural_map(self.func.body, [(tirx.For, self.loop)]))

    def loop(self, loop: tirx.For) -> Any:
        """Return a loop with a condition, the loops inside it have theirs."""
        if loop.kind not in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL):
            return loop
        if is_named(loop, _IN_A_ROW):
            return without(loop, Edge)
        if any(kind.of(loop) is not None for kind in _OF_TILES):
            return loop
        if Named.of(loop) is not None and not is_named(loop, *_OVER_TILES):
            return loop
        loop = asking_sooner(loop)
        condition, body = self._condition(loop), self._in_tiles(loop.body)
        if condition is None:
            return remade(loop, body=body)
        if loop.kind == tirx.ForKind.PARALLEL:
            self.left[loop.loop_var] = condition
            return remade(loop, body=body)
        return remade(loop, body=tirx.IfThenElse(condition, body, None))

    def in_a_row(self, loop: tirx.For) -> tirx.Stmt:
        """Return a loop over blocks of a row of the image that there is.

        Of w columns n = ceil(w / mw) blocks are nearly equal: 22 columns in blocks of 14 are twice
        11, so that little is computed beyond the image. There is code for a few widths; a block
        that would end beyond the canvas begins sooner.
        """
        tiles = [each for each in collect(loop.body, tirx.For) if is_named(each, "mw")]
        tile = max(int(each.extent) for each in tiles)
        found = self._across(loop, [each.loop_var for each in tiles])
        if found is None:
            return loop
        columns, canvas = found
        mw = min(tile, canvas)
        kind = str(loop.loop_var.ty)
        count = tirx.floordiv(columns + (mw - 1), mw)
        least = tirx.floordiv(columns + (count - 1), count)
        widths = sorted({-(-mw * part // _PARTS) for part in range(1, _PARTS + 1)})
        width: Any = tirx.IntImm(kind, widths[-1])
        for each in reversed(widths[:-1]):
            width = tirx.Select(least <= each, tirx.IntImm(kind, each), width)
        chosen = tirx.decl_buffer((1,), kind, "width")
        here = tirx.BufferLoad(chosen, [integer(0)])
        first = tirx.min(loop.loop_var * here, canvas - here)
        body: Any = None
        for each in reversed(widths):
            cut = with_bounds(loop.body, {"mw": (0, each)})
            cut = self._from(cut, loop.loop_var, tile, first)
            body = cut if body is None else tirx.IfThenElse(here == each, cut, body)
        inside = tirx.IfThenElse(loop.loop_var * here < columns, body, None)
        store = tirx.BufferStore(chosen, width, [integer(0)])
        return tirx.SeqStmt([tirx.AllocBuffer(chosen), store, remade(loop, body=inside)])

    def _across(self, loop: tirx.For, columns: Sequence[tirx.Var]) -> tuple[Any, int] | None:
        """Return how many columns an image has, and its canvas; None where these are known."""
        for store in collect(loop.body, tirx.BufferStore):
            for axis, place in self.given.get(store.buffer, {}).items():
                if uses_any(store.indices[axis], columns):
                    size = extent_at(self.sizes, place, str(loop.loop_var.ty))
                    return size, int(store.buffer.shape[axis])
        return None

    def _from(self, body: tirx.Stmt, var: tirx.Var, mw: int, first: Any) -> tirx.Stmt:
        """Return the code of a block that begins at a column other than `var * mw`."""
        operands = {p for p in self.func.params if p not in self.taken and p not in self.given}

        def moved(buffer: Any, indices: Sequence[Any]) -> tuple[Any, list[Any]] | None:
            if buffer in operands:
                return None
            return buffer, [begun(index, var, mw, first) for index in indices]

        def within(comparison: tirx.LT) -> Any:
            # Of columns that blocks do not divide some were beyond the canvas: none of these is.
            is_moved = not begun(comparison.a, var, mw, first).same_as(comparison.a)
            return tirx.const(True, "bool") if is_moved else comparison

        return redirected(tvm_ffi.structural_map(body, [(tirx.LT, within)]), moved)

    def _in_tiles(self, body: tirx.Stmt) -> tirx.Stmt:
        """Return the code of a block of Winograd's tiles, of which some are there.

        A block has its tiles one behind the other, row by row. Where an image ends within it, what
        is there of its rows lies so as well, and the products are those of whole micro-kernels.
        """
        tiles = Tiles.of(body)
        if tiles is None:
            return body
        stores = [s for s in collect(body, tirx.BufferStore) if s.buffer in self.given]
        if not stores:
            return body
        inner = [each.loop_var for each in collect(body, tirx.For)]
        counts, kept = tirx.decl_buffer((2,), INT, "tiles"), []
        for number, name in enumerate((ROW, COLUMN)):
            there = self._there(stores[0], tiles, name, inner)
            kept.append(tirx.BufferStore(counts, there, [integer(number)]))
        body = tiles.side_by_side(body, counts, {*self.taken, *self.given})
        return tirx.SeqStmt([tirx.AllocBuffer(counts), *kept, body])

    def _there(
        self, store: tirx.BufferStore, tiles: Tiles, name: str, inner: Sequence[tirx.Var]
    ) -> Any:
        """Return how many rows or columns of a block's tiles are there."""
        for axis, place in self.given[store.buffer].items():
            first = self._least(store.indices[axis], inner)
            pixels = self._slope(store.indices[axis], tiles.outputs[name])
            if first is not None and pixels:
                left = extent_at(self.sizes, place) - first + (pixels - 1)
                count = tirx.floordiv(left, pixels)
                return tirx.max(tirx.min(count, tiles.extents[name]), 0)
        return integer(tiles.extents[name])

    def _slope(self, index: Any, var: tirx.Var) -> int:
        linear = sym.detect_linear_equation(self.analyzer.simplify(index), [var])
        return (constant(linear[0]) or 0) if linear else 0

    def _condition(self, loop: tirx.For) -> Any:
        """Return what holds where an iteration has anything to do; None where that is not known."""
        inner = [each.loop_var for each in collect(loop.body, tirx.For)]
        stores = [s for s in collect(loop.body, tirx.BufferStore) if s.buffer in self.given]
        if stores:
            places = [(s.buffer, s.indices, self.given[s.buffer], 0) for s in stores]
        elif Border.of(loop) is not None or any(
            map(_adds_up, collect(loop.body, tirx.BufferStore))
        ):
            # Pixels of a row that is copied; products.
            return None
        else:
            loads = [a for a in collect(loop.body, ir.TensorLoad) if a.source in self.taken]
            places = [(a.source, a.indices, self.taken[a.source], self.canvas.near) for a in loads]
        terms = [self._inside(*place, inner) for place in places]
        if not terms or any(term is None for term in terms):
            return None
        condition, *others = distinct(terms)
        for term in others:
            condition = tirx.Or(condition, term)
        return condition if uses_any(condition, [loop.loop_var]) else None

    def _inside(
        self,
        buffer: Any,
        indices: Sequence[Any],
        axes: dict[int, int],
        beyond: int,
        inner: Sequence[tirx.Var],
    ) -> Any:
        """Return what holds where the first element of an access is inside; None if unknown."""
        terms = []
        for axis, place in axes.items():
            least = self._least(indices[axis], inner)
            if least is not None and constant(least) is None:
                terms.append(least < extent_at(self.sizes, place) + beyond)
        return tirx.all(*terms) if terms else None

    def _least(self, index: Any, inner: Sequence[tirx.Var]) -> Any:
        """Return the smallest index that loops inside reach; None where it is not known."""
        index = self.analyzer.simplify(index)
        used = [var for var in inner if uses_any(index, [var])]
        if not used:
            return index
        linear = sym.detect_linear_equation(index, used)
        if not linear or any((constant(c) or -1) < 0 for c in linear[:-1]):
            return None
        return self.analyzer.simplify(linear[-1])


def _adds_up(store: tirx.BufferStore) -> bool:
    """Whether a store adds to what is there, as a micro-kernel does."""
    return any(load.source.same_as(store.buffer) for load in collect(store.value, ir.TensorLoad))


def _over_list(loop: tirx.For, condition: Any) -> tirx.Stmt:
    """Return a loop over the iterations in which a condition holds, listed beforehand."""
    var, extent = loop.loop_var, int(loop.extent)
    listed = tirx.decl_buffer((extent,), INT, "listed")
    count = tirx.decl_buffer((1,), INT, "count")
    here = tirx.decl_buffer((1,), INT, "here")
    zero, kind = [integer(0)], str(var.ty)

    def of(buffer: Any, at: Any) -> Any:
        return tirx.BufferLoad(buffer, [at])

    number = tirx.Var("number", INT)
    entered = tirx.SeqStmt(
        [
            tirx.BufferStore(listed, number, [of(count, integer(0))]),
            tirx.BufferStore(count, of(count, integer(0)) + 1, zero),
        ]
    )
    holds = substitute(condition, {var: tirx.Cast(kind, number) if kind != INT else number})
    listing = tirx.For(
        number,
        integer(0),
        integer(extent),
        tirx.ForKind.SERIAL,
        tirx.IfThenElse(holds, entered, None),
    )
    place = tirx.Var("place", INT)
    # Through memory, which LLVM removes: TVM's simplifier would put the load everywhere.
    body = [
        tirx.AllocBuffer(here),
        tirx.BufferStore(here, of(listed, place), zero),
        substitute(loop.body, {var: of(here, integer(0))}),
    ]
    over = tirx.For(place, integer(0), of(count, integer(0)), loop.kind, tirx.SeqStmt(body))
    return tirx.SeqStmt(
        [
            tirx.AllocBuffer(listed),
            tirx.AllocBuffer(count),
            tirx.BufferStore(count, integer(0), zero),
            listing,
            over,
        ]
    )
