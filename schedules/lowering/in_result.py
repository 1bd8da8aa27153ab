"""Partial sums are kept in the result, as BLIS updates C over blocks of k.

A schedule cannot say so: to TVM a result is stored once, when its sum is complete, and what is
added up before has a buffer of its own. `InResult` stands on the loop over the blocks but the last.
Behind it comes the nest that adds the last block, applies the epilogue and stores; sums go where
that stores what it reads of them.

The first block stores its sums (BLIS' beta = 0), where a reduction would store zeros and add.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.model.directive import MisplacedDirective
from tvm_blislike.model.directives import InResult
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    is_named,
    redirected,
    remade,
    uses_any,
    without,
)


def in_result(body: tirx.Stmt) -> tirx.Stmt:
    """Keep the sums of `InResult` loops in the result, and store the first of them."""
    for loop in [each for each in collect(body, tirx.For) if InResult.of(each) is not None]:
        sums, last = _summed(body, loop)
        body = _moved(_first_stored(body, loop, sums), loop.loop_var, sums, last)
    return body


def _summed(body: tirx.Stmt, loop: tirx.For) -> tuple[tirx.Buffer, tirx.BufferStore]:
    """Return the buffer that a loop adds up in, and the store of what is made of it."""
    inside = _stores(loop)
    added = {store.buffer for store in inside}
    for store in _stores(body):
        read = [load.source for load in collect(store.value, ir.TensorLoad)]
        if not any(store.same_as(each) for each in inside) and added.intersection(read):
            return next(buffer for buffer in read if buffer in added), store
    raise MisplacedDirective("InResult: nothing behind the loop reads what it adds up")


def _stores(stmt: tirx.Stmt) -> list[tirx.BufferStore]:
    return collect(stmt, tirx.BufferStore)


def _first_stored(body: tirx.Stmt, loop: tirx.For, sums: tirx.Buffer) -> tirx.Stmt:
    """Return a body where the first iteration of a loop stores its sums, and the others add."""

    def is_zeroed(store: tirx.BufferStore) -> bool:
        immediate = isinstance(store.value, tirx.FloatImm | tirx.IntImm)
        return store.buffer.same_as(sums) and immediate

    chosen: dict[tirx.Var, tirx.Stmt] = {}
    for rows in collect(loop, tirx.For):
        if is_named(rows, "mw") and any(map(is_zeroed, _stores(rows))):
            setting, adding = (_without_zeros(rows, is_zeroed, first) for first in (True, False))
            several = tirx.IfThenElse(loop.loop_var.equal(0), setting, adding)
            chosen[rows.loop_var] = setting if constant(loop.extent) == 1 else several

    def changed(each: tirx.For) -> tirx.Stmt:
        if each.loop_var.same_as(loop.loop_var):
            return without(each, InResult)
        return chosen.get(each.loop_var, each)

    return tvm_ffi.structural_map(body, [(tirx.For, changed)])


def _without_zeros(
    rows: tirx.For, is_zeroed: Callable[[tirx.BufferStore], bool], first: bool
) -> tirx.For:
    """Return a loop over rows of a tile that stores its sums, or adds them to what is there."""

    def addition(pair: tirx.SeqStmt) -> tirx.Stmt:
        if not any(map(is_zeroed, _stores(pair))):
            return pair
        added = pair.seq[-1]
        return tirx.BufferStore(added.buffer, added.value.b, added.indices) if first else added

    # Not store by store: TVM 0.27 corrupts its heap when one of a sequence becomes an `Evaluate`.
    return remade(rows, body=tvm_ffi.structural_map(rows.body, [(tirx.SeqStmt, addition)]))


def _moved(
    body: tirx.Stmt, variable: tirx.Var, sums: tirx.Buffer, last: tirx.BufferStore
) -> tirx.Stmt:
    """Return a body whose sums over a loop are where `last` stores, if that can hold them."""
    loads = collect(last.value, ir.TensorLoad)
    read = next(load.indices for load in loads if load.source.same_as(sums))
    if last.buffer.dtype != sums.dtype or len(last.indices) != len(read):
        return body
    analyzer = sym.Analyzer()
    shift = [analyzer.simplify(to - at) for to, at in zip(last.indices, read, strict=True)]
    loops = collect(body, tirx.For)
    around = {each.loop_var for each in loops if variable in _variables(each)} - {variable}
    # A nest of another order, a transposition for example, would store elsewhere.
    if any(uses_any(distance, {each.loop_var for each in loops} - around) for distance in shift):
        return body

    def place(buffer: Any, indices: Any) -> tuple[Any, list[Any]] | None:
        if not buffer.same_as(sums):
            return None
        pairs = zip(indices, shift, strict=True)
        return last.buffer, [analyzer.simplify(at + distance) for at, distance in pairs]

    def allocate(alloc: tirx.AllocBuffer) -> tirx.Stmt:
        return tirx.Evaluate(tirx.IntImm("int32", 0)) if alloc.buffer.same_as(sums) else alloc

    return tvm_ffi.structural_map(redirected(body, place), [(tirx.AllocBuffer, allocate)])


def _variables(loop: tirx.For) -> set[tirx.Var]:
    return {each.loop_var for each in collect(loop, tirx.For)}
