"""Tiles at the edges of a result and at its padding become code of their own.

The last iteration of each `Edge` loop is split off, and the loops inside it that are `Named` as the
cut axis shrink, which makes the edge variant of the micro-kernel: no wasted FMA, no predicate, no
access outside a tensor. Of tiles that a last block has less of (`LastBlock`) there is no copy: what
is in such a loop is long, and asking whether it is the last one takes no time. The first and last
iterations of each `Border` loop are split off, so that conditions on the padding of a convolution
become constants in the interior; of a `SharedBorder` one copy of the body serves them all.

The same is possible with `T.where` predicates and TVM's LoopPartition, but predicates inside a
vectorized or unrolled tile come out as scalar code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.model.directives import Apart, Border, Edge, LastBlock, LastEdge, SharedBorder
from tvm_blislike.model.loop_names import Named
from tvm_blislike.schedules.lowering import llvm_functions
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    integer,
    remade,
    sequence,
    substitute,
    terms_of,
    without,
)


def split(body: tirx.Stmt) -> tirx.Stmt:
    """Split the iterations off that `Edge` and `Border` loops name."""
    # From the outside in: the last block of tiles may have a cut last tile (`LastEdge`).
    return tvm_ffi.structural_map(body, [(tirx.For, _split_tiles)], order="pre")


def _split_tiles(loop: tirx.For) -> tirx.Stmt:
    block = LastBlock.of(loop)
    if block is not None:
        return _split_tiles(_shorter(loop, block))
    edge, border, shared = Edge.of(loop), Border.of(loop), SharedBorder.of(loop)
    extents = dict(edge.extents) if edge is not None else {}
    if shared is not None:
        return without(loop, Edge, SharedBorder, body=_asking(loop, shared, extents))
    if edge is None and border is None:
        return loop
    first, last = (border.first, border.last) if border is not None else (0, 0)
    peeled = _peel(loop, first, max(last, 1 if extents else 0), extents)
    # A single tile leaves the loop inside it in its place.
    return _split_tiles(peeled) if isinstance(peeled, tirx.For) else peeled


def _shorter(loop: tirx.For, block: LastBlock) -> tirx.For:
    """Shorten the loops over tiles in the last iteration, whose last tile may be cut."""
    last = int(loop.extent) - 1

    def shorter(tiles: tirx.For) -> tirx.For:
        named = Named.of(tiles)
        if named is None or named.name not in block.extents:
            return tiles
        count = block.extents[named.name]
        return _fewer(tiles, count) if last == 0 else _at_last(loop.loop_var, last, tiles, count)

    return without(loop, LastBlock, body=tvm_ffi.structural_map(loop.body, [(tirx.For, shorter)]))


def _fewer(tiles: tirx.For, count: int) -> tirx.For:
    """Return a loop of fewer tiles, the last of which may be cut."""
    cut, fewer = LastEdge.of(tiles), without(tiles, LastEdge, extent=integer(count))
    edge = {} if cut is None else Edge(cut.extents).note()
    return remade(fewer, annotations={**fewer.annotations, **edge})


def _at_last(block: tirx.Var, last: int, tiles: tirx.For, count: int) -> tirx.For:
    """Return a loop of fewer tiles in the last block, the last of which is a copy if it is cut."""
    at, cut = tiles.loop_var, LastEdge.of(tiles)
    is_last = block >= integer(last)
    before = {block: (0, last), at: (0, int(tiles.extent))}
    in_last = {block: (last, 1), at: (0, count - (cut is not None))}
    body = _known(tiles.body, [before, *([in_last] if in_last[at][1] else [])])
    if cut is not None:
        end = _cut(substitute(tiles.body, {block: last, at: count - 1}), dict(cut.extents))
        is_end = tirx.And(is_last, at >= integer(count - 1))
        body = tirx.IfThenElse(is_end, end, body)
    extent = tirx.Select(is_last, integer(count), tiles.extent)
    return without(tiles, LastEdge, extent=extent, body=body)


def _known(stmt: tirx.Stmt, ranges: list[dict[tirx.Var, tuple[int, int]]]) -> tirx.Stmt:
    """Leave out conditions that hold wherever variables are in one of the ranges.

    Splitting a loop that tiles do not divide leaves a condition in each of them, of which TVM finds
    for itself that it holds in a loop over whole tiles, but not that it does in these two.
    """
    inside = {
        loop.loop_var: (int(loop.min), int(loop.extent))
        for loop in collect(stmt, tirx.For)
        if constant(loop.extent) is not None
    }
    analyzers = [_analyzer({**inside, **bounds}) for bounds in ranges]

    def asked(branch: tirx.IfThenElse) -> tirx.Stmt:
        terms = terms_of(branch.condition)
        left = [t for t in terms if not all(analyzer.can_prove(t) for analyzer in analyzers)]
        if not left:
            return branch.then_case
        if len(left) == len(terms):
            return branch
        return tirx.IfThenElse(tirx.all(*left), branch.then_case, branch.else_case)

    return tvm_ffi.structural_map(stmt, [(tirx.IfThenElse, asked)])


def _analyzer(ranges: Mapping[tirx.Var, tuple[int, int]]) -> sym.Analyzer:
    """Return what knows the ranges of variables: their first values and how many there are."""
    analyzer = sym.Analyzer()
    for var, (first, count) in ranges.items():
        analyzer.bind(var, ir.Range.from_min_extent(integer(first), integer(count)))
    return analyzer


def _peel(loop: tirx.For, first: int, last: int, extents: dict[str, int]) -> tirx.Stmt:
    """Split iterations off both ends; the very last one gets the cut extents."""
    count = int(loop.extent)
    first = min(first, count)
    last = min(last, count - first)
    if loop.kind == tirx.ForKind.PARALLEL and count > 1:
        return without(loop, Edge, Border, body=_branches(loop, first, last, extents))
    parts = [substitute(loop.body, {loop.loop_var: i}) for i in range(first)]
    if count > first + last:
        middle = count - first - last
        inside = without(loop, Edge, Border, min=integer(first), extent=integer(middle))
        if Apart.of(loop) is not None and middle > 1:
            # LLVM may write out a loop of few iterations.
            inside = without(inside, Apart, body=tirx.SeqStmt([llvm_functions.apart(), loop.body]))
        parts.append(inside)
    parts += [substitute(loop.body, {loop.loop_var: i}) for i in range(count - last, count)]
    parts[-1] = _cut(parts[-1], extents)
    if Apart.of(loop) is not None and len(parts) > 1:
        parts = [tirx.SeqStmt([llvm_functions.apart(), part]) for part in parts]
    return sequence(parts)


def _asking(loop: tirx.For, border: SharedBorder, extents: dict[str, int]) -> tirx.Stmt:
    """Body of a loop with one copy for the interior, one for the border and one for a cut end."""
    at, count = loop.loop_var, int(loop.extent)
    result = loop.body
    if border.first + border.last < count:
        inside = tirx.And(at >= integer(border.first), at < integer(count - border.last))
        result = tirx.IfThenElse(inside, loop.body, loop.body)
    if extents:
        end = _cut(substitute(loop.body, {at: count - 1}), extents)
        result = tirx.IfThenElse(at < integer(count - 1), result, end) if count > 1 else end
    return result


def _branches(loop: tirx.For, first: int, last: int, extents: dict[str, int]) -> tirx.Stmt:
    """Body of a parallel loop: peeled iterations would run on one thread alone."""
    count = int(loop.extent)
    split = {*range(first), *range(count - last, count)}
    bound = {i: substitute(loop.body, {loop.loop_var: i}) for i in split}
    if extents:
        bound[count - 1] = _cut(bound[count - 1], extents)
    cases = [(i + 1, bound[i]) for i in sorted(bound)]
    if count > len(bound):
        middle = max(i for i in range(count) if i not in bound)
        cases = sorted([*cases, (middle + 1, loop.body)], key=lambda case: case[0])
    result = cases[-1][1]
    for end, stmt in reversed(cases[:-1]):
        result = tirx.IfThenElse(loop.loop_var < integer(end), stmt, result)
    return result


def _cut(stmt: tirx.Stmt, extents: dict[str, int]) -> tirx.Stmt:
    """Shrink the loops over the cut axes; "sweep" repeats all with ever narrower vectors."""
    if "sweep" not in extents:
        bounds = {axis: (0, extent) for axis, extent in extents.items()}
        return with_bounds(stmt, bounds)
    sweeps = [with_bounds(stmt, {"sweep": piece}) for piece in _pieces(extents["sweep"])]
    return sequence(sweeps)


def _pieces(total: int) -> Iterator[tuple[int, int]]:
    """Split `total` into powers of two, the largest first: (start, width)."""
    start = 0
    for bit in reversed(range(total.bit_length())):
        if total >> bit & 1:
            yield start, 1 << bit
            start += 1 << bit


def with_bounds(stmt: tirx.Stmt, bounds: Mapping[str, tuple[int, Any]]) -> tirx.Stmt:
    """Return a statement whose loops of these names have other first indices and lengths."""
    return tvm_ffi.structural_map(stmt, [(tirx.For, lambda f: _rebound(f, bounds))])


def _rebound(loop: tirx.For, bounds: Mapping[str, tuple[int, Any]]) -> tirx.For:
    named = Named.of(loop)
    if named is None or named.name not in bounds:
        return loop
    start, extent = bounds[named.name]
    return remade(
        loop, min=integer(start), extent=integer(extent) if isinstance(extent, int) else extent
    )
