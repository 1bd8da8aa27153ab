"""Rows of a product of which only running tells how many there are.

A template schedules whole tiles of mr rows. Here its loops over blocks and tiles of rows
(`OpenRows`) get bounds that depend on m. Of m rows n parts have nearly equal numbers, q of them r
and the others r - 1, so no row is computed twice and none is missing:

    r = ceil(m / n)    q = m - n (r - 1)    the first row of part t: t (r - 1) + min(t, q)

Blocks are so many parts of all rows, as many for each thread where threads divide them, and tiles,
n = ceil(m / mr), parts of the rows of a block. What a tile has in registers has one branch for each
number of rows up to mr, with the code that the edge of a static product has; what goes row by row,
such as packing, counts them. Equal tiles suit short sequences: of 9 rows, two tiles of 5 and 4 take
less than one of 8 and one of a single row, whose sums wait for each other.

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
from tvm_blislike.schedules.lowering.prefetch import is_request, without_requests
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    constant,
    is_named,
    sequence,
    uses_any,
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
        result = self._opened(stmt, None, 0)
        left = set(collect(result, tirx.Var)) & set(self.buffers)
        if left:
            names = ", ".join(sorted(var.name for var in left))
            raise MisplacedDirective(f"OpenRows: {names} is read outside its loops over rows")
        return result

    def _opened(self, stmt: tirx.Stmt, block: _Rows | None, static: Any) -> tirx.Stmt:
        """Return a statement with the outermost open loops in it opened.

        Parameters
        ----------
        block : _Rows or None
            Those of the block; None for all rows.
        static : PrimExpr
            What indices have of the first tile of the block.
        """

        def visit(loop: tirx.For) -> Any:
            found = OpenRows.of(loop)
            return loop if found is None else self._loop(loop, found, block, static)

        # By place, not by variable: the copies of an edge have the same variables.
        return tvm_ffi.structural_map(stmt, [(tirx.For, visit)], order="pre")

    def _loop(self, loop: tirx.For, found: OpenRows, block: _Rows | None, static: Any) -> tirx.Stmt:
        kind = str(loop.loop_var.ty)
        rows = block or _Rows(tirx.IntImm(kind, 0), _ceil_div(self._rows(kind), found.each))
        # What was a single iteration is left out of indices.
        counted = loop.loop_var if int(loop.extent) > 1 else 0
        if found.name == "ic":
            parts = rows.parts(found.mr * found.block, found.parts)
            here, stores = rows.part(parts, loop.loop_var, kind)
            inside = self._opened(loop.body, here, counted * found.block)
        else:
            parts = rows.parts(found.mr)
            here, stores = rows.part(parts, loop.loop_var, kind)
            asking = _asking_together(loop, parts)
            moved = self._moved(asking, (static + counted) * found.mr, here.first, found.each)
            inside = sequence(_counted(moved, here.count, found))
        return without(loop, OpenRows, body=tirx.SeqStmt([*stores, inside]), extent=parts)

    def _rows(self, kind: str) -> Any:
        return self.rows if str(self.rows.ty) == kind else tirx.Cast(kind, self.rows)

    def _moved(self, body: tirx.Stmt, static: Any, first: Any, each: int) -> tirx.Stmt:
        """Return a body whose groups of `each` rows begin at `first` rather than at `static`."""
        analyzer = sym.Analyzer()

        def row(indices: Sequence[Any], axis: int) -> tuple[Any, Any]:
            """Return where a row is, and the number of all where there may be no such row."""
            inside = analyzer.simplify(indices[axis] - static * each)
            place = inside + first * each
            exists = constant(analyzer.simplify(tirx.floormod(inside, each))) == 0
            return place, None if exists else self._rows(str(place.ty))

        def load(access: Any) -> Any:
            if access.source not in self.buffers:
                return access
            new, axis = self.buffers[access.source]
            place, rows = row(access.indices, axis)
            place = place if rows is None else tirx.min(place, rows - 1)
            return tirx.BufferLoad(new, _with(access.indices, axis, place))

        def store(access: Any) -> Any:
            if access.buffer not in self.buffers:
                return access
            new, axis = self.buffers[access.buffer]
            place, rows = row(access.indices, axis)
            made = tirx.BufferStore(new, access.value, _with(access.indices, axis, place))
            return made if rows is None else tirx.IfThenElse(place < rows, made, None)

        return tvm_ffi.structural_map(body, [(ir.TensorLoad, load), (tirx.BufferStore, store)])


def _asking_together(tiles: tirx.For, count: Any) -> tirx.Stmt:
    """Return the body of a loop over tiles, which ask for the next panel where they are several.

    A single tile reads the next panel right behind this one: what it asked for would take the
    place of what it reads itself a few steps later.
    """

    def asked(stmt: tirx.Evaluate) -> tirx.Stmt:
        is_shared = is_request(stmt) and uses_any([stmt.value], [tiles.loop_var])
        return tirx.IfThenElse(count > 1, stmt, None) if is_shared else stmt

    return tvm_ffi.structural_map(tiles.body, [(tirx.Evaluate, asked)])


def _with(indices: Sequence[Any], axis: int, place: Any) -> list[Any]:
    return [place if at == axis else index for at, index in enumerate(indices)]


@dataclass(frozen=True)
class _Rows:
    """Some rows, or groups of rows: the first, and how many."""

    first: Any
    count: Any

    def parts(self, most: int, multiple: int = 1) -> Any:
        """Return of how many parts of `most` rows at most these are, some for each thread."""
        parts = _ceil_div(self.count, most)
        if multiple == 1:
            return parts
        return tirx.min(_ceil_div(parts, multiple) * multiple, self.count)

    def part(self, parts: Any, number: Any, kind: str) -> tuple[_Rows, list[tirx.Stmt]]:
        """Return one of so many nearly equal parts, and the statements in front of its use."""
        most = _ceil_div(self.count, parts)
        larger = self.count - parts * (most - 1)
        first = self.first + number * (most - 1) + tirx.min(number, larger)
        count = most - 1 + tirx.Cast(kind, number < larger)
        # Through memory, which LLVM removes: TVM's simplifier would put the values everywhere.
        place = tirx.decl_buffer((2,), kind, "place")
        at = [[tirx.IntImm("int32", i)] for i in range(2)]
        stores = [tirx.BufferStore(place, v, i) for v, i in zip((first, count), at, strict=True)]
        part = _Rows(*(tirx.BufferLoad(place, i) for i in at))
        return part, [tirx.AllocBuffer(place), *stores]


def _counted(body: tirx.Stmt, count: Any, found: OpenRows) -> list[tirx.Stmt]:
    """Return the code of a tile with as many rows as there are."""
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    if all(map(_is_in_registers, parts)):
        return [_by_number(body, count, found)]
    # Buffers are those of several parts.
    made = [part for part in parts if isinstance(part, tirx.AllocBuffer)]
    others = (part for part in parts if not isinstance(part, tirx.AllocBuffer))
    by_row = {"mw": (0, count)}
    for in_registers, group in itertools.groupby(others, _is_in_registers):
        part = sequence(list(group))
        made.append(_by_number(part, count, found) if in_registers else with_bounds(part, by_row))
    return made


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


def _ceil_div(count: Any, size: Any) -> Any:
    return tirx.floordiv(count + (size - 1), size)
