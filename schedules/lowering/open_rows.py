"""Rows of a product of which only running tells how many there are.

A template schedules whole tiles of mr rows. Here its loops over blocks and tiles of rows
(`OpenRows`) get bounds that depend on m. There are n = ceil(m / mr) tiles of nearly equal numbers
of rows, q of r and the others of r - 1, so no row is computed twice and none is missing:

    n = ceil(m / mr)    r = ceil(m / n)    q = m - n (r - 1)

The first row of tile t is t (r - 1) + min(t, q). What a tile has in registers has one branch for
each number of rows up to mr, with the code that the edge of a static product has; what goes row by
row, such as packing, counts them. Equal tiles suit short sequences: of 9 rows, two tiles of 5 and 4
take less than one of 8 and one of a single row, whose sums wait for each other.

Where a tile is of pairs of rows (`OpenRows.each`), m above is their number. The second row of a
last pair may not exist: the one before is read in its place, and nothing is stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.model.directive import MisplacedDirective
from tvm_blislike.model.directives import OpenRows
from tvm_blislike.model.marks import ROW_AXES
from tvm_blislike.schedules.lowering.edges import with_bounds
from tvm_blislike.schedules.lowering.prefetch import without_requests
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    is_named,
    remade,
    sequence,
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
        counts = _Counts(self._rows(kind), found)
        # What was a single iteration is left out of indices.
        counted = loop.loop_var if int(loop.extent) > 1 else 0
        if found.name == "ic":
            here = (loop.loop_var * found.block, counted * found.block)
            body = self._opened(loop.body, here)
            extent = _ceil_div(counts.tiles, found.block)
            return without(loop, OpenRows, body=body, extent=extent)
        first, static = outer
        extent = tirx.min(tirx.IntImm(kind, found.block), counts.tiles - first)
        static = (static + counted) * found.mr
        body = self._tile(loop.body, first + loop.loop_var, static, counts)
        return without(loop, OpenRows, body=body, extent=extent)

    def _rows(self, kind: str) -> Any:
        return self.rows if str(self.rows.ty) == kind else tirx.Cast(kind, self.rows)

    def _tile(self, body: tirx.Stmt, tile: Any, static: Any, counts: _Counts) -> tirx.Stmt:
        """Return the code of a tile, by its number of rows; in `body` they begin at `static`."""
        # Through memory, which LLVM removes: TVM's simplifier would put the values everywhere.
        place = tirx.decl_buffer((2,), counts.kind, "place")
        first, count = (tirx.BufferLoad(place, [tirx.IntImm("int32", i)]) for i in range(2))
        stores = [
            tirx.BufferStore(place, value, [tirx.IntImm("int32", i)])
            for i, value in enumerate(counts.of(tile))
        ]
        moved = self._moved(body, static, first, counts.found.each)
        parts = _counted(moved, count, counts.found)
        return tirx.SeqStmt([tirx.AllocBuffer(place), *stores, *parts])

    def _moved(self, body: tirx.Stmt, static: Any, first: Any, each: int) -> tirx.Stmt:
        """Return a body whose rows begin at `first` rather than at `static`, in groups of `each`."""
        analyzer = sym.Analyzer()

        def place(buffer: Any, indices: Sequence[Any]) -> tuple[Any, list[Any], Any] | None:
            """Return the buffer, the indices, and a condition where there may be no such row."""
            if buffer not in self.buffers:
                return None
            new, axis = self.buffers[buffer]
            inside = analyzer.simplify(indices[axis] - static * each)
            row, at = inside + first * each, list(indices)
            at[axis] = row
            if constant(analyzer.simplify(tirx.floormod(inside, each))) == 0:
                return new, at, None
            rows = self._rows(str(row.ty))
            at[axis] = tirx.min(row, rows - 1)
            return new, at, row < rows

        def load(access: Any) -> Any:
            found = place(access.source, access.indices)
            return access if found is None else tirx.BufferLoad(*found[:2])

        def store(access: Any) -> Any:
            found = place(access.buffer, access.indices)
            if found is None:
                return access
            new, at, exists = found
            made = tirx.BufferStore(new, access.value, at)
            return made if exists is None else tirx.IfThenElse(exists, made, None)

        return tvm_ffi.structural_map(body, [(ir.TensorLoad, load), (tirx.BufferStore, store)])


@dataclass(frozen=True)
class _Counts:
    """How many tiles and rows there are; rows in groups of `found.each`.

    Parameters
    ----------
    all_rows : PrimExpr
        One by one.
    """

    all_rows: Any
    found: OpenRows

    @property
    def kind(self) -> str:
        """Data type of numbers."""
        return str(self.all_rows.ty)

    @property
    def rows(self) -> Any:
        """Groups of rows."""
        each = self.found.each
        return self.all_rows if each == 1 else _ceil_div(self.all_rows, each)

    @property
    def tiles(self) -> Any:
        """Tiles of all rows."""
        return _ceil_div(self.rows, self.found.mr)

    def of(self, tile: Any) -> tuple[Any, Any]:
        """Return the first row of a tile, and how many it has."""
        rows, tiles = self.rows, self.tiles
        most = _ceil_div(rows, tiles)
        larger = rows - tiles * (most - 1)
        first = tile * (most - 1) + tirx.min(tile, larger)
        return first, most - 1 + tirx.Cast(self.kind, tile < larger)


def _counted(body: tirx.Stmt, count: Any, found: OpenRows) -> list[tirx.Stmt]:
    """Return the code of a tile with as many rows as there are."""
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if all(map(_is_in_registers, parts)):
        return [_by_number(body, count, found)]
    # Buffers are those of several parts.
    buffers = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
    others = (part for part in parts if not isinstance(part, tirx.AllocBuffer))
    return buffers + [
        (_by_number if in_registers else _by_row)(sequence(list(group)), count, found)
        for in_registers, group in itertools.groupby(others, _is_in_registers)
    ]


def _is_in_registers(stmt: tirx.Stmt) -> bool:
    """Whether a loop over the rows of a tile is written out."""
    loops = [loop for loop in collect(stmt, tirx.For) if is_named(loop, "mw")]
    return not loops or any(loop.kind != tirx.ForKind.SERIAL for loop in loops)


def _by_number(body: tirx.Stmt, count: Any, found: OpenRows) -> tirx.Stmt:
    """Return a branch for each number of rows."""
    result = with_bounds(body, {"mw": (0, found.mr)})
    for number in range(found.mr - 1, 0, -1):
        source = without_requests(body) if number <= found.few else body
        cut = with_bounds(source, {"mw": (0, number)})
        result = tirx.IfThenElse(count == number, cut, result)
    return result


def _by_row(body: tirx.Stmt, count: Any, _found: OpenRows) -> tirx.Stmt:
    """Return loops over as many rows as there are."""

    def counted(loop: tirx.For) -> tirx.For:
        return remade(loop, extent=count) if is_named(loop, "mw") else loop

    return tvm_ffi.structural_map(body, [(tirx.For, counted)])


def _ceil_div(count: Any, size: Any) -> Any:
    return tirx.floordiv(count + (size - 1), size)
