"""Rows of a product of which only running tells how many there are.

A template schedules whole tiles of mr rows. Here its loops over blocks and tiles of rows
(`OpenRows`) get bounds that depend on m. There are n = ceil(m / mr) tiles of nearly equal numbers
of rows, q of r and the others of r - 1, so no row is computed twice and none is missing:

    n = ceil(m / mr)    r = ceil(m / n)    q = m - n (r - 1)

The first row of tile t is t (r - 1) + min(t, q). A tile has one branch for each number of rows up
to mr, with the code that the edge of a static product has. Equal tiles suit short sequences: of 9
rows, two tiles of 5 and 4 take less than one of 8 and one of a single row, whose sums wait for each
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_blislike.model.directive import MisplacedDirective
from tvm_blislike.model.directives import OpenRows
from tvm_blislike.model.marks import ROW_AXES
from tvm_blislike.schedules.lowering.edges import with_bounds
from tvm_blislike.schedules.lowering.prefetch import without_requests
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    redirected,
    without,
)


def opened(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function of `OpenRows` loops for any number of rows; any other as it is.

    Its attribute `ROW_AXES` says which axis of each parameter has the rows, -1 for none.
    """
    if not any(OpenRows.of(loop) is not None for loop in collect(func.body, tirx.For)):
        return func
    axes = [int(axis) for axis in func.attrs[ROW_AXES]]
    rows = tirx.Var("m", str(func.params[axes.index(max(axes))].shape[max(axes)].ty))
    buffers = {
        param: (_with_rows(param, axis, rows), axis)
        for param, axis in zip(func.params, axes, strict=True)
        if axis >= 0
    }
    body = _Opening(rows, buffers).body(func.body)
    params = [buffers[p][0] if p in buffers else p for p in func.params]
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs)


def _with_rows(buffer: Any, axis: int, rows: tirx.Var) -> Any:
    shape = [rows if place == axis else size for place, size in enumerate(buffer.shape)]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name)


@dataclass
class _Opening:
    """The rewriting of one function.

    Parameters
    ----------
    rows : tirx.Var
        How many there are.
    buffers : dict
        Parameters with rows: what takes their place, and the axis of the rows.
    """

    rows: tirx.Var
    buffers: Mapping[Any, tuple[Any, int]]

    def body(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """Return a body of open loops."""
        result = self._opened(stmt, (0, 0))
        left = set(collect(result, tirx.Var)) & set(self.buffers)
        if left:
            names = ", ".join(sorted(var.name for var in left))
            raise MisplacedDirective(f"OpenRows: {names} is read outside its loops over rows")
        return result

    def _opened(self, stmt: tirx.Stmt, outer: tuple[Any, Any]) -> tirx.Stmt:
        """Return a statement with the outermost open loops in it opened.

        `outer` is the first tile of the block, and what indices have of it.
        """

        def visit(loop: tirx.For) -> Any:
            found = OpenRows.of(loop)
            if found is None:
                return loop
            return self._loop(loop, found, outer)

        # By place, not by variable: the copies of an edge have the same variables.
        return tvm_ffi.structural_map(stmt, [(tirx.For, visit)], order="pre")

    def _loop(self, loop: tirx.For, found: OpenRows, outer: tuple[Any, Any]) -> tirx.Stmt:
        kind = str(loop.loop_var.ty)
        rows = self.rows if str(self.rows.ty) == kind else tirx.Cast(kind, self.rows)
        tiles, block = _ceil_div(rows, found.mr), found.block
        # What was a single iteration is left out of indices.
        counted = loop.loop_var if int(loop.extent) > 1 else 0
        if found.name == "ic":
            here = (loop.loop_var * block, counted * block)
            body = self._opened(loop.body, here)
            return without(loop, OpenRows, body=body, extent=_ceil_div(tiles, block))
        first, static = outer
        extent = tirx.min(tirx.IntImm(kind, block), tiles - first)
        static = (static + counted) * found.mr
        body = self._tile(loop.body, first + loop.loop_var, static, found, rows)
        return without(loop, OpenRows, body=body, extent=extent)

    def _tile(
        self, body: tirx.Stmt, tile: Any, static: Any, found: OpenRows, rows: Any
    ) -> tirx.Stmt:
        """Return the code of a tile, by its number of rows; in `body` they begin at `static`."""
        mr, kind, tiles = found.mr, str(rows.ty), _ceil_div(rows, found.mr)
        most = _ceil_div(rows, tiles)
        larger = rows - tiles * (most - 1)
        # Through memory, which LLVM removes: TVM's simplifier would put the values everywhere.
        place = tirx.decl_buffer((2,), kind, "place")
        first, count = (tirx.BufferLoad(place, [tirx.IntImm("int32", i)]) for i in range(2))
        values = (
            tile * (most - 1) + tirx.min(tile, larger),
            most - 1 + tirx.Cast(kind, tile < larger),
        )
        moved = self._moved(body, static, first)
        result = with_bounds(moved, {"mw": (0, mr)})
        for number in range(mr - 1, 0, -1):
            source = without_requests(moved) if number <= found.few else moved
            cut = with_bounds(source, {"mw": (0, number)})
            result = tirx.IfThenElse(count == number, cut, result)
        stores = [
            tirx.BufferStore(place, value, [tirx.IntImm("int32", i)])
            for i, value in enumerate(values)
        ]
        return tirx.SeqStmt([tirx.AllocBuffer(place), *stores, result])

    def _moved(self, body: tirx.Stmt, static: Any, first: Any) -> tirx.Stmt:
        """Return a body whose rows begin at `first` rather than at `static`."""
        analyzer = sym.Analyzer()

        def place(buffer: Any, indices: Sequence[Any]) -> tuple[Any, list[Any]] | None:
            if buffer not in self.buffers:
                return None
            new, axis = self.buffers[buffer]
            row = analyzer.simplify(indices[axis] - static) + first
            return new, [row if at == axis else index for at, index in enumerate(indices)]

        return redirected(body, place)


def _ceil_div(count: Any, size: Any) -> Any:
    return tirx.floordiv(count + (size - 1), size)
