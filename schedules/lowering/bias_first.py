"""Sums of integers begin with what the epilogue adds to them, not with zero: a bias costs nothing.

    sums = 0                               sums = bias
    loops that add products to sums   ->   the same loops
    result = f(sums + bias)                result = f(sums)

Integers wrap around, so the order of additions does not matter; sums of floats stay as they are.
The rows of a block begin with copies of one register.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvm_blislike.schedules.lowering.rewrite import collect, constant

# A buffer, and the numbers and lanes in the indices of an access to it.
_Place = tuple[Any, tuple[tuple[int, int], ...]]


def bias_first(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Begin sums of 32-bit integers with what is added to them before anything else is done.

    Parameters
    ----------
    func : PrimFunc
        Below the level of blocks, with every unrolled loop written out, in vectors.
    """
    written = {store.buffer for store in collect(func.body, tirx.BufferStore)}
    if all(str(buffer.dtype) != "int32" for buffer in written):
        return func

    def begun(statements: tirx.SeqStmt) -> tirx.Stmt:
        parts = list(statements.seq)
        zeroed = {_zeroed(part) for part in parts} - {None}
        terms = _terms(parts, zeroed, written) if zeroed else {}
        return tirx.SeqStmt([_begun(part, terms) for part in parts]) if terms else statements

    return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.SeqStmt, begun)]))


def _zeroed(stmt: tirx.Stmt) -> _Place | None:
    """Return the place that a statement sets to zero, if that is integers of 32 bits."""
    if not isinstance(stmt, tirx.BufferStore) or str(stmt.buffer.dtype) != "int32":
        return None
    value = stmt.value.value if isinstance(stmt.value, tirx.Broadcast) else stmt.value
    return _place(stmt.buffer, stmt.indices) if constant(value) == 0 else None


def _place(buffer: Any, indices: Any) -> _Place | None:
    """Return the place of an access, None where it is not known at compile time."""
    ramps = [(i.base, int(i.lanes)) if isinstance(i, tirx.Ramp) else (i, 1) for i in indices]
    numbers = tuple((constant(base), lanes) for base, lanes in ramps)
    return None if any(base is None for base, _ in numbers) else (buffer, numbers)


def _terms(parts: list[tirx.Stmt], zeroed: set[_Place], written: set[Any]) -> dict[_Place, Any]:
    """Return what is added to the sums in each place, of buffers that are read in no other way."""
    buffers = {buffer for buffer, _ in zeroed}
    terms: dict[_Place, Any] = {}
    unlike = set()
    reads: Counter[Any] = Counter()
    for part in parts:
        reads.update(load.source for load in _read(part, buffers))
    for addition in (each for part in parts if _is_result(part, buffers) for each in _sums(part)):
        place, term = _split(addition, buffers, written)
        if place is None:
            continue
        reads[place[0]] -= 1
        if place not in zeroed or not structural_equal(terms.setdefault(place, term), term):
            unlike.add(place[0])
    return {p: term for p, term in terms.items() if p[0] not in unlike and not reads[p[0]]}


def _read(part: tirx.Stmt, buffers: set[Any]) -> list[Any]:
    """Return the loads of sums in a statement, but those of what is added to the sums again."""
    loads = [load for load in collect(part, ir.TensorLoad) if load.source in buffers]
    stores = [store for store in collect(part, tirx.BufferStore) if store.buffer in buffers]
    again = [load for store in stores for load in collect(store.value, ir.TensorLoad)]
    kept = Counter(load.source for load in again if load.source in buffers)
    return [load for load in loads if not _taken(kept, load.source)]


def _taken(counts: Counter[Any], key: Any) -> bool:
    counts[key] -= 1
    return counts[key] >= 0


def _is_result(part: tirx.Stmt, buffers: set[Any]) -> bool:
    return isinstance(part, tirx.BufferStore) and part.buffer not in buffers


def _sums(store: tirx.BufferStore) -> list[tirx.Add]:
    return collect(store.value, tirx.Add)


def _split(addition: tirx.Add, buffers: set[Any], written: set[Any]) -> tuple[_Place | None, Any]:
    """Return the place of the sums and the constant that an addition joins, None if none."""
    for sums, term in ((addition.a, addition.b), (addition.b, addition.a)):
        if not isinstance(sums, ir.TensorLoad) or sums.source not in buffers:
            continue
        loads = collect(term, ir.TensorLoad)
        if len(loads) == 1 and loads[0].source not in written:
            return _place(sums.source, sums.indices), term
    return None, None


def _begun(part: tirx.Stmt, terms: dict[_Place, Any]) -> tirx.Stmt:
    """Return a statement that stores the first term instead of zero, or adds it no more."""
    if not isinstance(part, tirx.BufferStore):
        return part
    place = _zeroed(part)
    if place in terms:
        return tirx.BufferStore(part.buffer, terms[place], part.indices)

    def without_term(addition: tirx.Add) -> Any:
        for sums, term in ((addition.a, addition.b), (addition.b, addition.a)):
            if isinstance(sums, ir.TensorLoad):
                known = terms.get(_place(sums.source, sums.indices))
                if known is not None and structural_equal(known, term):
                    return sums
        return addition

    value = tvm_ffi.structural_map(part.value, [(tirx.Add, without_term)])
    return tirx.BufferStore(part.buffer, value, part.indices)
