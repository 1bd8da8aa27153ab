"""Software prefetch of the next weight panel while the present one is in use.

A layer's weights are rarely in the caches when it starts: all other layers' weights passed since.
The panel of one tile of channels then streams from memory during the first block of pixels, at
memory speed, and later blocks reread it from L2 at full speed while the memory idles. So every
micro-kernel call asks for a few lines of the panel that comes next (`panels.parts`), spread evenly
over all calls of this one. ResNet-50 on Golden Cove reads 100 MB of weights per image, 10 ms of 59
without this.

The hardware's prefetchers cannot do it: they run a kilobyte or two ahead, not a panel. `panels`
asks inside of a k loop that is a whole sum; here a call is a part of the window.
"""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_blislike.model import notes
from tvm_blislike.schedules.lowering.panels import elements_per_line, line_of, operand_of, parts
from tvm_blislike.schedules.lowering.rewrite import annotation, collect, remade, uses_any

# On the loop over block rows of a slab: {"columns": blocks per row, "blocks": of a slab}.
PREFETCH = "blislike.prefetch"
# On the loop over blocks in a row ("column") and on the innermost loop around a call ("call").
ROLE = "blislike.role"


def insert(stmt: tirx.Stmt) -> tirx.Stmt:
    """Insert the prefetches that `PREFETCH` loops ask for."""
    return tvm_ffi.structural_map(stmt, [(tirx.For, _at_rows)])


def _at_rows(rows: tirx.For) -> tirx.For:
    wanted = annotation(rows, PREFETCH)
    if wanted is None:
        return rows
    spec = notes.read(wanted)
    column = _column(rows.body)
    block = rows.loop_var * spec["columns"] + column.loop_var

    def at_call(loop: tirx.For) -> tirx.For:
        if str(annotation(loop, ROLE)) != "call":
            return loop
        return _next_panel(loop, block, spec["blocks"])

    return remade(rows, body=tvm_ffi.structural_map(rows.body, [(tirx.For, at_call)]))


def _column(stmt: tirx.Stmt) -> tirx.For:
    return next(x for x in collect(stmt, tirx.For) if str(annotation(x, ROLE)) == "column")


def _next_panel(calls: tirx.For, block: Any, blocks: int) -> tirx.Stmt:
    """Have calls ask for their parts of the next panel: each of them, or the first for all.

    In front, not in the k loop: two lines in each of its iterations gain 1 to 4 % more where the
    window is 1x1, but lose 5 % where it is 3x3.
    """
    panel = operand_of(calls.body, 1)
    *window, steps_of_k, nr = [int(extent) for extent in panel.source.shape][2:]
    lines = math.ceil(math.prod(window) * steps_of_k * nr / elements_per_line(panel))
    places = list(zip(panel.indices[2:-2], window, strict=True))
    few = lines <= blocks * math.prod(window)
    if few:
        places = [place for place in places if not uses_any(place[0], [calls.loop_var])]
    steps = math.prod(extent for _, extent in places)
    asked = _ask(panel, parts(lines, block * steps + _flat(places), blocks * steps))
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
    return [line_of(panel, [*start, line * elements_per_line(panel)]) for line in lines]
