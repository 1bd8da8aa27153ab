"""Blocks of tiles of which an image on a canvas has a part.

A block of Winograd's tiles has them one behind the other, row by row: where an image ends within a
block, what is there of its rows lies so as well (`side_by_side`). A block in a row of a direct
convolution begins elsewhere when blocks are narrower (`begun`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_blislike.model.directives import NextPanel
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    integer,
    is_named,
    redirected,
    remade,
    uses_any,
)

ROW, COLUMN, GROUP = "tile_row", "tile_column", "tile_group"
# A panel of weights is asked for by as many calls as an image of half the height and width has.
_FEWER_CALLS = 4


@dataclass(frozen=True)
class Tiles:
    """The loops over Winograd's tiles of a block.

    Parameters
    ----------
    extents : dict
        Name to how many there are in a block.
    outputs : dict
        Name to the variable of the loop over results.
    rows : list of Var
        Of all loops over rows of tiles.
    """

    extents: dict[str, int]
    outputs: dict[str, tirx.Var]
    rows: list[tirx.Var]

    @classmethod
    def of(cls, body: tirx.Stmt) -> Tiles | None:
        """Return those of a block; None for any other code, also for that of several blocks."""
        inside = collect(body, tirx.For)
        if not _has_block(body) or any(_has_block(each.body) for each in inside):
            return None
        named = {name: _named(body, name) for name in (ROW, COLUMN)}
        last = {name: loops[-1] for name, loops in named.items()}
        return cls(
            {name: int(each.extent) for name, each in last.items()},
            {name: each.loop_var for name, each in last.items()},
            [each.loop_var for each in named[ROW]],
        )

    def side_by_side(self, body: tirx.Stmt, counts: tirx.Buffer, images: set[Any]) -> tirx.Stmt:
        """Return a body that goes over as many tiles as there are, one behind the other."""
        rows, columns = (tirx.BufferLoad(counts, [integer(place)]) for place in range(2))
        width = self.extents[COLUMN]
        analyzer = sym.Analyzer()

        def moved(buffer: Any, indices: Sequence[Any]) -> tuple[Any, list[Any]] | None:
            if buffer in images:
                return None
            return buffer, [_moved(i, self.rows, width, columns, analyzer) for i in indices]

        def loop(each: tirx.For) -> Any:
            if is_named(each, ROW, COLUMN):
                there = each.loop_var < (rows if is_named(each, ROW) else columns)
            elif is_named(each, GROUP):
                of_tile = max(int(mw.extent) for mw in _named(each.body, "mw"))
                there = each.loop_var * of_tile < rows * columns
            else:
                return each
            return remade(each, body=tirx.IfThenElse(there, each.body, None))

        return tvm_ffi.structural_map(redirected(body, moved), [(tirx.For, loop)])


def _moved(
    index: Any, rows: Sequence[tirx.Var], width: int, columns: Any, analyzer: sym.Analyzer
) -> Any:
    """Return the place of a tile where rows have fewer columns than a block."""
    for row in rows:
        if uses_any(index, [row]):
            linear = sym.detect_linear_equation(analyzer.simplify(index), [row])
            if linear and constant(linear[0]) == width and width > 1:
                return index + row * (columns - width)
    return index


def asking_sooner(loop: tirx.For) -> tirx.For:
    """Return a loop whose calls ask for all of the next panel though there are fewer of them."""
    panel = NextPanel.of(loop)
    if panel is None:
        return loop
    fewer = replace(panel, calls=max(1, panel.calls // _FEWER_CALLS))
    return remade(loop, annotations={**loop.annotations, **fewer.note()})


def begun(index: Any, var: tirx.Var, mw: int, first: Any) -> Any:
    """Return an index that counts from a column other than `var * mw`."""
    if not uses_any(index, [var]):
        return index
    ramp = index if isinstance(index, tirx.Ramp) else None
    base = index if ramp is None else ramp.base
    linear = sym.detect_linear_equation(sym.Analyzer().simplify(base), [var])
    slope = constant(linear[0]) if linear else None
    if not slope or slope % mw:
        return index
    base = base + (first - var * mw) * (slope // mw)
    return base if ramp is None else tirx.Ramp(base, ramp.stride, ramp.lanes)


def _named(body: tirx.Stmt, name: str) -> list[tirx.For]:
    return [each for each in collect(body, tirx.For) if is_named(each, name)]


def _has_block(body: tirx.Stmt) -> bool:
    """Whether tiles are transformed, multiplied and transformed back."""
    return len(_named(body, ROW)) > 1 and bool(_named(body, GROUP))
