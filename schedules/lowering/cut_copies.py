"""A copy loop cut into vectors at given places.

Windows of a convolution lie side by side within a row of the image and jump at its end. `split`
cuts a loop over them at every place where source or target jumps, so that each piece is a copy of
contiguous elements. All places are known at compile time: indices with // and % become constants,
and conditions that hold for a whole piece vanish.

A piece that is no multiple of the vector's width ends with a vector that overlaps the one before
it: 14 elements are two vectors of 8, not 8 + 4 + 2. A copy may write an element twice. The vectors
of a long piece are a loop.

Windows of stride 1 are copies of the same elements, shifted: `split` can make those of a row of the
kernel from two neighbouring vectors, loaded once and shifted in registers (vector-based packing,
Ferrari et al., TACO 2023, section 6.2).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.model.directives import Pieces
from tvm_blislike.schedules.lowering.rewrite import (
    decided,
    over_lanes,
    remade,
    sequence,
    substitute,
)

# Vectors of a piece that are written out.
_MOST_UNROLLED = 32


def split(loop: tirx.For, pieces: Pieces) -> tirx.Stmt:
    """Return the vectors of a `Pieces` loop, each a loop of its own."""
    start, end = int(loop.min), int(loop.min) + int(loop.extent)
    cuts = [start, *(cut for cut in pieces.cuts if start < cut < end), end]
    runs = list(itertools.pairwise(cuts))
    if pieces.shifts:
        spans = (span for a, b in runs for span in vectors(a, b, pieces.width))
        return sequence([_shifted(loop, pieces, first, lanes) for first, lanes in spans])
    return sequence([part for a, b in runs for part in _run(loop, a, b, pieces.width)])


def _run(loop: tirx.For, start: int, end: int, width: int) -> list[tirx.Stmt]:
    """Return the vectors of a piece; of a long one a loop, and what is left."""
    whole = (end - start) // width
    if whole <= _MOST_UNROLLED:
        return [_vector(loop, first, lanes) for first, lanes in vectors(start, end, width)]
    number = tirx.Var("jv", "int32")
    analyzer = sym.Analyzer()
    analyzer.bind(number, ir.Range(0, whole))
    vector = _vector(loop, number * width + start, width, analyzer)
    kind = tirx.ForKind.SERIAL
    parts = [tirx.For(number, tirx.IntImm("int32", 0), tirx.IntImm("int32", whole), kind, vector)]
    return parts + ([_vector(loop, end - width, width)] if (end - start) % width else [])


def vectors(start: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    """Cover a range by vectors (first element, lanes) of one power of two."""
    while width > end - start:
        width //= 2
    yield from ((first, width) for first in range(start, end - width + 1, width))
    if (end - start) % width:
        yield end - width, width


def _vector(
    loop: tirx.For, first: Any, lanes: int, analyzer: sym.Analyzer | None = None
) -> tirx.Stmt:
    """Return one vector; `analyzer` knows the range of what its first element depends on."""
    lane = tirx.Var("lane", "int32")
    index = lane + first
    body = substitute(loop.body, {loop.loop_var: index})
    analyzer = analyzer or sym.Analyzer()
    analyzer.bind(lane, ir.Range(0, lanes))
    body = tvm_ffi.structural_map(body, [(ir.Call, lambda call: decided(call, analyzer))])
    return over_lanes(lane, lanes, body)


def _shifted(loop: tirx.For, pieces: Pieces, first: int, lanes: int) -> tirx.Stmt:
    """Copy the elements of a vector and those at all distances from them."""
    steps = loop.body
    copies = []
    for step in range(int(steps.extent)):
        at = remade(loop, body=substitute(steps.body, {steps.loop_var: step}))
        # LLVM takes shifts of less than a register apart, into loads of one element.
        shifted = _shift(loop, at, first, lanes) if lanes == pieces.width else None
        copies.append(shifted or _vector(at, first, lanes))
    return tirx.SeqStmt(copies)


def _shift(loop: tirx.For, step: tirx.For, first: int, lanes: int) -> tirx.Stmt | None:
    """Return one of the copies, None where it does not copy a whole vector."""
    at_start = substitute(loop.body.body, {loop.body.loop_var: 0, loop.loop_var: first})
    at_step = substitute(step.body, {step.loop_var: first})
    store, origin = (_element(stmt) for stmt in (at_step, at_start))
    if store is None or origin is None:
        return None
    *outer, x = origin.value.indices
    distance = sym.Analyzer().simplify(store.value.indices[-1] - x)
    vectors, rest = divmod(int(distance), lanes)

    def load(number: int) -> Any:
        start = sym.Analyzer().simplify(x + (vectors + number) * lanes)
        return tirx.BufferLoad(store.value.source, [*outer, tirx.Ramp(start, 1, lanes)])

    value = load(0)
    if rest:
        places = [tirx.IntImm("int32", rest + i) for i in range(lanes)]
        value = tirx.Shuffle([value, load(1)], places)
    *outer, column = store.indices
    return tirx.BufferStore(store.buffer, value, [*outer, tirx.Ramp(column, 1, lanes)])


def _element(stmt: tirx.Stmt) -> tirx.BufferStore | None:
    """Return the copy of one element with conditions and indices worked out."""
    analyzer = sym.Analyzer()
    stmt = tvm_ffi.structural_map(stmt, [(ir.Call, lambda call: decided(call, analyzer))])
    if not (isinstance(stmt, tirx.BufferStore) and isinstance(stmt.value, ir.TensorLoad)):
        return None
    load = stmt.value
    at = [analyzer.simplify(index) for index in load.indices]
    to = [analyzer.simplify(index) for index in stmt.indices]
    return tirx.BufferStore(stmt.buffer, tirx.BufferLoad(load.source, at), to)
