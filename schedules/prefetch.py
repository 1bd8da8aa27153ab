"""Software prefetch of the next weight panel while the present one is in use.

A layer's weights are rarely in the caches when it starts: all other layers' weights passed since.
The panel of one tile of channels then streams from memory during the first block of pixels, at
memory speed, and later blocks reread it from L2 at full speed while the memory idles. So every
micro-kernel call asks for a few lines of the panel that comes next, spread evenly over all calls
of this one. ResNet-50 on Golden Cove reads 100 MB of weights per image, 10 ms of 59 without this.

The hardware's prefetchers cannot do it: they run a kilobyte or two ahead, not a panel. `panels`
asks inside of a k loop; here a call is a part of the window, and a few lines before it do.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from tvm_blislike import notes
from tvm_blislike.schedules.panels import line_of, operand_of
from tvm_blislike.schedules.rewrite import remade

# On the loop over block rows of a slab: {"columns": blocks per row, "lines": lines per call,
# "elements": elements per cache line}.
PREFETCH = "blislike.prefetch"
# On the loop over blocks in a row ("column") and on the innermost loop around a call ("call").
ROLE = "blislike.role"


def insert(stmt: tirx.Stmt) -> tirx.Stmt:
    """Insert the prefetches that `PREFETCH` loops ask for."""
    return tvm_ffi.structural_map(stmt, [(tirx.For, _at_rows)])


def _at_rows(rows: tirx.For) -> tirx.For:
    if PREFETCH not in rows.annotations:
        return rows
    spec = notes.read(rows.annotations[PREFETCH])
    column = _find(rows.body, "column")
    block = rows.loop_var * spec["columns"] + column.loop_var

    def at_call(loop: tirx.For) -> tirx.For:
        if str(loop.annotations.get(ROLE, "")) != "call":
            return loop
        return remade(loop, body=_before(loop.body, block * spec["lines"], spec))

    return remade(rows, body=tvm_ffi.structural_map(rows.body, [(tirx.For, at_call)]))


def _find(stmt: tirx.Stmt, role: str) -> tirx.For:
    found: list[tirx.For] = []

    def look(loop: tirx.For) -> None:
        if str(loop.annotations.get(ROLE, "")) == role:
            found.append(loop)

    tvm_ffi.structural_walk(stmt, [(tirx.For, look)])
    return found[0]


def _before(body: tirx.Stmt, first_line: Any, spec: dict[str, int]) -> tirx.Stmt:
    """Put `lines` prefetches, from line `first_line` of this call's part of the next panel."""
    panel = operand_of(body, 1)
    group, tile, *inner = panel.indices[:-2]
    row = [group, tile + 1, *inner, tirx.const(0, "int32")]
    lines = range(spec["lines"])
    at = [[*row, (first_line + i) * spec["elements"]] for i in lines]
    return tirx.SeqStmt([*(line_of(panel, indices) for indices in at), body])
