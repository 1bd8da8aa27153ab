"""Software prefetch of the next panel of an operand while the present one is in use.

Of the two operands of a macro-kernel, one panel stays while the panels of the other pass by; then
the next panel takes its place. It comes from the third-level cache or from memory, and without
help it comes at once, during the first micro-kernel call that uses it, at a third of the speed
that the FMAs want. Remedies, each a prefetch or two per iteration of the k loop or per call:

    NextPanel     ask for the panel that comes next, spread evenly over all calls that use this one
    Ahead         ask for what this call reads some steps of k later; for panels that pass by
    NextWeights   ask for the next panel of a direct convolution, where a call is a part of a sum
    TermsAhead    ask for the other term of a residual addition before the products of a block

A layer's weights are rarely in the caches when it starts: all other layers' weights passed since.
The panel of one tile of channels then streams from memory during the first block of pixels, at
memory speed, and later blocks reread it from L2 at full speed while the memory idles. ResNet-50 on
Golden Cove reads 100 MB of weights per image, 10 ms of 59 without `NextWeights`.

The hardware's prefetchers do none of it well: they stop at the end of a 4 KiB page, and a page is
32 steps of k.

Next panels are asked for in several `parts` side by side, as many as a core's `prefetch_streams`. A
request that misses L2 holds one of the 16 buffers of L1 until memory answers, and loads wait for
one of them: line after line, Golden Cove got 9 GB/s beside FMAs, of 16. In four parts, each
advances slowly enough for the second-level prefetcher, which follows one stream per page, to be
ahead of it, and requests find their line in L2. Layers of 7x7 pixels, a fifth of whose time is
memory's, take 0.84 to 0.92 of the time there: 512 channels to 512 by 1-D Winograd 1.38 -> 1.19 ms,
2048 to 512 0.74 -> 0.62 ms. Two gain as much; eight lose 5 to 10 %. Zen 4: one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvm_blislike.hardware import LINE_BYTES
from tvm_blislike.model.directives import Ahead, NextPanel, NextWeights, TermsAhead
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    is_named,
    remade,
    substitute,
    uses_any,
)

# Lines that are asked for without a product between: no more than a core has requests in flight.
_AT_ONCE = 10
# Keep in the second-level cache: a panel is larger than the first, or not needed so soon.
_TO_L2 = 2
# A few lines, needed behind one block's products.
_TO_L1 = 3
# By its name TVM would look for it among those of GPUs first, each time.
_PREFETCH = ir.Op.get("tirx.prefetch")


def is_request(stmt: tirx.Evaluate) -> bool:
    """Whether a statement asks for a line ahead."""
    return isinstance(stmt.value, ir.Call) and stmt.value.op.same_as(_PREFETCH)


def without_requests(body: tirx.Stmt) -> tirx.Stmt:
    """Return a statement that asks for nothing ahead."""

    def dropped(stmt: tirx.Evaluate) -> tirx.Stmt:
        return tirx.Evaluate(0) if is_request(stmt) else stmt

    return tvm_ffi.structural_map(body, [(tirx.Evaluate, dropped)])


# --- by a call that is a whole sum: in front of its k loop or inside -------------------------


def next_panel(calls: tirx.For, panel: NextPanel) -> tirx.For:
    """Have the calls of a loop ask for the panel behind the one that they share.

    Few lines a call are asked for in front of its k loop: one in each iteration, which most asked
    for in vain, took AVX2's 6x16 blocks 2 to 8 % (squares of 1024 to 2048, Zen 4).
    """
    loops = [loop for loop in collect(calls.body, tirx.For) if is_named(loop, "k")]
    if not loops:
        return calls
    load = _operand_of(loops[0].body, panel.operand)
    elements = _elements_per_line(load)
    lines = math.ceil(panel.elements / elements)

    def asked(start: list[Any], step: Any, steps: int) -> list[tirx.Stmt]:
        at = [*start]
        at[panel.axis] = at[panel.axis] + panel.step
        of_step = parts(lines, step, steps, panel.streams)
        return [_line_of(load, [*at[:-1], at[-1] + line * elements]) for line in of_step]

    if lines <= _AT_ONCE * panel.calls:
        start = _at_start(load, calls, keep=calls.loop_var)
        in_front = asked(start, calls.loop_var, panel.calls)
        return remade(calls, body=tirx.SeqStmt([*in_front, calls.body]))

    def in_loop(loop: tirx.For, step: Any, steps: int) -> list[tirx.Stmt]:
        return asked(_at_start(_operand_of(loop.body, panel.operand), loop), step, steps)

    return _in_iterations(calls, calls.loop_var, panel.calls, in_loop)


def ahead(calls: tirx.For, ahead: Ahead) -> tirx.For:
    """Have each step of k ask for what a later one reads."""

    def asking(step: tirx.For) -> tirx.For:
        load = _operand_of(step.body, ahead.operand)
        at = [*_at_start(load, step, keep=step.loop_var)]
        at[-2] = at[-2] + ahead.steps
        elements = range(0, ahead.elements, _elements_per_line(load))
        lines = [_line_of(load, [*at[:-1], at[-1] + i]) for i in elements]
        return remade(step, body=tirx.SeqStmt([*lines, step.body]))

    return _inside(calls, "k", lambda loop: _inside(loop, "ki", asking))


def _inside(outer: tirx.For, name: str, change: Any) -> tirx.For:
    """Return a loop with those of a name inside it changed."""

    def visit(loop: tirx.For) -> tirx.For:
        return change(loop) if is_named(loop, name) else loop

    body = tvm_ffi.structural_map(outer.body, [(tirx.For, visit)])
    return outer if body.same_as(outer.body) else remade(outer, body=body)


def _in_iterations(outer: tirx.For, call: Any, calls: int, asked: Any) -> tirx.For:
    """Return a loop with the iterations of the k loops inside it asking for their parts of a panel.

    Parameters
    ----------
    call : PrimExpr
        Number of the call that a k loop is, of `calls` that share the panel.
    asked : callable
        (k loop, number of a step, steps of all calls): what it asks for.
    """

    def asking(loop: tirx.For) -> tirx.For:
        iterations = int(loop.extent)
        lines = asked(loop, call * iterations + loop.loop_var, calls * iterations)
        return remade(loop, body=tirx.SeqStmt([*lines, loop.body]))

    return _inside(outer, "k", asking)


def parts(lines: int, step: Any, steps: int, most: int) -> list[Any]:
    """Return which lines of a panel a step asks for, so that all steps ask for all of them.

    Parameters
    ----------
    lines : int
        Of the panel.
    step : PrimExpr or int
        Number of the step.
    steps : int
        How many there are.
    most : int
        Parts of the panel to ask for side by side.

    Returns
    -------
    list of PrimExpr or int
        Consecutive ones of each of at most that many parts of the panel. Where there are more steps
        than lines, neighbouring steps ask for the same one.
    """
    step = step // max(1, steps // lines)
    at_once = math.ceil(lines / steps)
    run = math.ceil(at_once / most)
    count = math.ceil(at_once / run)
    part = math.ceil(lines / count)
    return [place * part + step * run + i for place in range(count) for i in range(run)]


# --- in front of a call that is a part of one ------------------------------------------------


def next_weights(rows: tirx.For, slab: NextWeights) -> tirx.For:
    """Have the calls in a slab ask for the panel of weights behind theirs."""
    column = next(loop for loop in collect(rows.body, tirx.For) if is_named(loop, "column"))
    block = rows.loop_var * slab.columns + column.loop_var
    return _inside(rows, "call", lambda calls: _next_weights(calls, block, slab))


def _next_weights(calls: tirx.For, block: Any, slab: NextWeights) -> tirx.Stmt:
    """Have calls ask for their parts of the next panel: each of them, or the first for all.

    In front of the k loop, of fp32: two lines in each of its iterations gain 1 to 4 % more where
    the window is 1x1, but lose 5 % where it is 3x3. Products of bytes take so little time that
    loads of a panel in L2 would wait until a burst of requests is through: inside, 2048 channels of
    7x7 pixels to 512 take 0.83 of the time on Zen 4 with 4x16 blocks of AVX2, 512 to 512 by 3x3 of
    stride 2 0.88, as long as with weights in L2.
    """
    panel = _operand_of(calls.body, 1)
    *window, steps_of_k, nr = [int(extent) for extent in panel.source.shape][2:]
    lines = math.ceil(math.prod(window) * steps_of_k * nr / _elements_per_line(panel))
    places = list(zip(panel.indices[2:-2], window, strict=True))
    few = lines <= slab.blocks * math.prod(window)
    if few:
        places = [place for place in places if not uses_any(place[0], [calls.loop_var])]
    steps = math.prod(extent for _, extent in places)
    step = block * steps + _flat(places)
    if slab.in_loops and lines > _AT_ONCE * slab.blocks * steps:

        def in_loop(loop: tirx.For, step: Any, steps: int) -> list[tirx.Stmt]:
            return _ask(_operand_of(loop.body, 1), parts(lines, step, steps, slab.streams))

        return _in_iterations(calls, step, slab.blocks * steps, in_loop)
    asked = _ask(panel, parts(lines, step, slab.blocks * steps, slab.streams))
    if few:
        return tirx.SeqStmt([*asked, calls])
    return remade(calls, body=tirx.SeqStmt([*asked, calls.body]))


def _flat(places: list[tuple[Any, int]]) -> Any:
    """Return the number of an element, given its index on each axis and the axis' extent."""
    number = tirx.const(0, "int32")
    for index, extent in places:
        number = number * extent + index
    return number


def _ask(panel: Any, lines: list[Any]) -> list[tirx.Stmt]:
    """Return the prefetches of lines of the panel behind the one that a load reads."""
    group, tile, *inner = panel.indices
    start = [group, tile + 1, *(tirx.const(0, "int32") for _ in inner[1:])]
    return [_line_of(panel, [*start, line * _elements_per_line(panel)]) for line in lines]


# --- in front of a block ---------------------------------------------------------------------


def terms_ahead(blocks: tirx.For, _directive: TermsAhead) -> tirx.For:
    """Have each block ask for the terms of its rows, a line or more of each."""
    lines = [line for load in _terms(blocks.body) for line in _lines_of_rows(load, blocks.body)]
    return remade(blocks, body=tirx.SeqStmt([*lines, blocks.body])) if lines else blocks


def _terms(body: tirx.Stmt) -> list[Any]:
    """Return the loads, one of each buffer, of what results have beside sums in each row."""
    stores = collect(body, tirx.BufferStore)
    written = {store.buffer for store in stores}
    read = {load.source for load in collect(body, ir.TensorLoad)}
    rows = [loop.loop_var for loop in collect(body, tirx.For) if is_named(loop, "mh", "mw")]
    terms: dict[Any, Any] = {}
    for store in stores:
        # Sums are written and read again.
        loads = [] if store.buffer in read else collect(store.value, ir.TensorLoad)
        for load in loads:
            if load.source not in written and uses_any(list(load.indices), rows):
                terms.setdefault(load.source, load)
    return list(terms.values())


def _lines_of_rows(load: Any, body: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """Yield the prefetches of what a load inside loops reads: elements side by side in the last."""
    *outer, lanes = [loop for loop in collect(body, tirx.For) if _counts(loop, load)]
    elements = range(0, int(lanes.extent), _elements_per_line(load))
    for at in itertools.product(*(range(int(loop.extent)) for loop in outer), elements):
        values = dict(zip((loop.loop_var for loop in (*outer, lanes)), at, strict=True))
        indices = [substitute(index, values) for index in load.indices]
        yield _line_of(load, indices, _TO_L1)


def _counts(loop: tirx.For, load: Any) -> bool:
    return uses_any(list(load.indices), [loop.loop_var])


# --- lines of operands -----------------------------------------------------------------------


def _elements_per_line(load: Any) -> int:
    """Return how many elements of a load's operand a cache line has."""
    return LINE_BYTES // np.dtype(str(load.source.dtype)).itemsize


def _line_of(load: Any, indices: list[Any], locality: int = _TO_L2) -> tirx.Stmt:
    """Return the prefetch of the line that a load would read at these indices."""
    address = tirx.address_of(tirx.BufferLoad(load.source, indices))
    return tirx.Evaluate(tirx.call_intrin("void", _PREFETCH, address, 0, locality, 1))


def _operand_of(body: tirx.Stmt, operand: int) -> Any:
    """Return the load of A (0) or of B (1) in a product, which reads the sums before them."""
    values = (store.value for store in collect(body, tirx.BufferStore))
    loads = (collect(value, ir.TensorLoad) for value in values)
    return next(read for read in loads if len(read) > 2)[1 + operand]


def _at_start(load: Any, loop: tirx.For, keep: Any = None) -> list[Any]:
    """Return the indices of a load with the micro-kernel's own loops at zero."""
    inside = {each.loop_var for each in (loop, *collect(loop.body, tirx.For))} - {keep}
    indices = [i.base if isinstance(i, tirx.Ramp) else i for i in load.indices]
    return [substitute(index, dict.fromkeys(inside, 0)) for index in indices]
