"""Sums of a few products each, one instruction for a vector of them.

The instruction wants the factors of a sum side by side: of B they are packed so, of A they are a
vector each, and mixed in registers. Copies of the code that use the same mixed vector share it
(LLVM finds them), as the outputs of a row do that read the same column of the image.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, sym, tirx
from tvm_ffi import structural_equal

from tvm_blislike.model.directive import MisplacedDirective
from tvm_blislike.model.directives import Dot, Vector
from tvm_blislike.schedules.lowering.loop_code import unrolled, vectorized
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    is_if,
    remade,
    sequence,
    substitute,
)


def by_instruction(loop: tirx.For, dot: Dot) -> tirx.Stmt:
    """Return the sums over the inner loop, of `dot.lanes` iterations of the outer one at a time.

    Iterations that fill no vector multiply element by element.
    """
    if not _loads_beside_sums(loop.body.body):
        return loop  # Of nothing but padding.
    first, extent = int(loop.min), int(loop.extent)
    parts = [_dot(loop, first + i, dot) for i in range(0, extent - dot.lanes + 1, dot.lanes)]
    left = extent % dot.lanes
    if left:
        rest = remade(loop, min=first + extent - left, extent=left, body=unrolled(loop.body))
        parts.append(vectorized(rest, Vector(dot.lanes // 2)))
    return sequence(parts)


def _dot(loop: tirx.For, first: int, dot: Dot) -> tirx.Stmt:
    """Return the store of the sums from iteration `first` on."""
    steps, store = loop.body, loop.body.body
    a, b = _factors(store)
    count, analyzer = int(steps.extent), sym.Analyzer()

    def at(expr: Any, step: int, lane: int = first) -> Any:
        return analyzer.simplify(substitute(expr, {loop.loop_var: lane, steps.loop_var: step}))

    def load(access: Any, step: int, apart: int, lanes: int) -> Any:
        *outer, inner = (at(index, step) for index in access.indices)
        if constant(analyzer.simplify(at(access.indices[-1], step, first + 1) - inner)) != apart:
            raise MisplacedDirective(f"{dot}: {access} is not contiguous from lane to lane")
        return tirx.BufferLoad(access.source, [*outer, tirx.Ramp(inner, 1, lanes)])

    def row(step: int) -> Any:
        vector = load(a, step, 1, dot.lanes)
        zeros = tirx.Broadcast(tirx.const(0, str(a.source.dtype)), dot.lanes)
        for choice in filter(is_if, collect(store.value, ir.Call)):
            inside = at(choice.args[0], step)
            known = constant(inside)
            if known is None:
                vector = tirx.if_then_else(inside, vector, zeros)
            elif not known:
                return zeros
        return vector

    rows = [row(step) for step in range(count)]
    # Of equal rows the first: fewer have to be joined.
    which = [next(i for i in range(count) if structural_equal(rows[i], each)) for each in rows]
    places = [step * dot.lanes + lane for lane in range(dot.lanes) for step in which]
    mixed = tirx.Shuffle(rows, places)
    groups = load(b, 0, count, dot.lanes * count)
    *outer, inner = (at(index, 0) for index in store.indices)
    where = [*outer, tirx.Ramp(inner, 1, dot.lanes)]
    sums = tirx.BufferLoad(store.buffer, where)
    new = tirx.call_llvm_pure_intrin(
        f"{store.buffer.dtype}x{dot.lanes}", dot.intrinsic, sums, mixed, groups
    )
    return tirx.BufferStore(store.buffer, new, where)


def _factors(store: tirx.BufferStore) -> tuple[Any, Any]:
    """Return the loads of the two factors of what is added to a buffer."""
    a, b = _loads_beside_sums(store)
    return a, b


def _loads_beside_sums(store: tirx.BufferStore) -> list[Any]:
    """Return the loads in what is added to a buffer, but those of the buffer itself."""
    loads = collect(store.value, ir.TensorLoad)
    return [each for each in loads if not each.source.same_as(store.buffer)]
