"""Copies that are not made: what they would copy is read where it is.

A definition packs its operand into panels. Where the operand lies as the micro-kernel can read it
(rows of pixels, for windows of one pixel), the copy is scheduled like any other, and its target
replaced by its source in every access behind it.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.model.directives import InPlace
from tvm_blislike.schedules.lowering.rewrite import at_directives, collect, substitute


def read(body: tirx.Stmt) -> tirx.Stmt:
    """Leave out the copies in `InPlace` loops and read their sources."""
    copies: dict[tirx.Buffer, tirx.BufferStore] = {}

    def left_out(loop: tirx.For, _directive: InPlace) -> tirx.Stmt:
        copies.update({store.buffer: store for store in collect(loop, tirx.BufferStore)})
        return _nothing()

    body = at_directives(body, InPlace, left_out)

    def load(access: Any) -> Any:
        copy = copies.get(access.source)
        return access if copy is None else _source(copy, access.indices)

    def allocate(alloc: tirx.AllocBuffer) -> tirx.Stmt:
        return _nothing() if alloc.buffer in copies else alloc

    body = tvm_ffi.structural_map(body, [(ir.TensorLoad, load)])
    return tvm_ffi.structural_map(body, [(tirx.AllocBuffer, allocate)])


def _nothing() -> tirx.Stmt:
    return tirx.Evaluate(tirx.IntImm("int32", 0))


def _source(copy: tirx.BufferStore, indices: Any) -> tirx.BufferLoad:
    """Return the element, or vector, that a copy put at some place of its target."""
    values = {at: value for at, value in zip(copy.indices, indices, strict=True)}
    original = _original(copy.value)
    analyzer = sym.Analyzer()
    *outer, last = original.indices
    lanes = indices[-1] if isinstance(indices[-1], tirx.Ramp) else None
    if lanes is not None:
        values[copy.indices[-1]] = lanes.base
    at = [analyzer.simplify(substitute(index, values)) for index in (*outer, last)]
    if lanes is not None:
        at[-1] = tirx.Ramp(at[-1], lanes.stride, lanes.lanes)
    return tirx.BufferLoad(original.source, at)


def _original(value: Any) -> Any:
    """Return the load that is copied, beside which a condition may let zeros be stored."""
    while not isinstance(value, ir.TensorLoad):
        value = value.args[1]
    return value
