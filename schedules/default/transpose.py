"""Transpositions in registers: square tiles, read along one axis and written along another.

A layout change reads its input with unit stride along one loop and writes its output with
unit stride along another. Vectorized over either, the other side is one element at a time.
Here a tile of T x T is loaded as T vectors along the reading loop, transposed by log2(T)
steps of two-vector shuffles, and stored as T vectors along the writing loop.
"""

from __future__ import annotations

from tvm import tirx

from tvm_blislike.schedules.default.access import NestAccesses, simplify
from tvm_blislike.schedules.default.nest import Nest, Stmts
from tvm_blislike.schedules.lowering.rewrite import constant, substitute

SMALLEST_TILE = 4
# Rows that 32 registers hold. Squares of 64 bytes spill, take 1.0 to 1.25 times as long (Zen 4) and
# LLVM 2.2 instead of 0.35 seconds each.
_LARGEST_TILE = 32


def reading_loop(accesses: NestAccesses) -> int | None:
    """Return the position of the longest loop along which every load has stride 0 or 1.

    The innermost loop, which writes with unit stride, is no candidate; None when there is
    no such loop, or when its variable decides a condition.
    """
    loads = [a for a in accesses.accesses if not a.is_store]
    candidates = [
        position
        for position in range(len(accesses.loops) - 1)
        if position not in accesses.branching
        and all(a.strides[position] in (0, 1) for a in loads)
        and any(a.strides[position] == 1 for a in loads)
    ]
    extents = [constant(x.extent) for x in accesses.loops]
    return max(candidates, key=lambda p: extents[p], default=None)


def tile_size(reading: int, writing: int, lanes: int) -> int | None:
    """Return the side of the square tile for two loop lengths.

    The largest power of two up to the vector length and to `_LARGEST_TILE` that wastes the least
    of the writing loop; None when either loop is too short for any, so LLVM's own vectorizer is
    better.
    """
    sizes = []
    size = min(lanes, _LARGEST_TILE)
    while size >= SMALLEST_TILE:
        if size <= min(reading, writing):
            sizes.append(size)
        size //= 2
    # Elements outside whole tiles move one by one, at roughly eight times the cost.
    return min(sizes, key=lambda s: (writing % s * 8 + writing / s, -s), default=None)


def emit_transposed(nest: Nest, reading: int, tile: int) -> Stmts:
    """Return the statements of `nest`, an injective nest whose accesses are all flat.

    Parameters
    ----------
    nest : Nest
        Its innermost loop writes with unit stride.
    reading : int
        Position of the loop that reads with unit stride.
    tile : int
        Side of the tile, at most a vector.
    """
    return _Transposition(nest, reading, tile).emit(0, {}, None)


class _Transposition:
    def __init__(self, nest: Nest, reading: int, tile: int) -> None:
        self.nest, self.reading, self.tile = nest, reading, tile
        (self.store,) = nest.stores

    def emit(
        self, position: int, values: dict[tirx.Var, tirx.Expr], start: tirx.Expr | None
    ) -> Stmts:
        """Emit the loops from `position` on; `start` is the tile's place on the reading loop."""
        if position == len(self.nest.loops):
            return [self._at(values)]
        this = self.nest.loops[position]
        extent = int(this.extent)
        if position == self.reading:
            return self._reading_loop(position, extent, values)
        if position == len(self.nest.loops) - 1 and start is not None:
            return self._writing_loop(extent, values, start)
        return self._plain(this, extent, values, position, start)

    def _plain(
        self,
        this: tirx.For,
        extent: int,
        values: dict[tirx.Var, tirx.Expr],
        position: int,
        start: tirx.Expr | None,
        first: int = 0,
    ) -> Stmts:
        def body(var: tirx.Expr) -> Stmts:
            return self.emit(position + 1, {**values, this.loop_var: var + first}, start)

        most = self.nest.left(this.loop_var, first)
        return self.nest.loop(this.loop_var.name, extent, body, this.kind, most)

    def _reading_loop(self, position: int, extent: int, values: dict[tirx.Var, tirx.Expr]) -> Stmts:
        this = self.nest.loops[position]
        whole, rest = divmod(extent, self.tile)

        def body(var: tirx.Expr) -> Stmts:
            return self.emit(position + 1, values, var * self.tile)

        most = self.nest.left(this.loop_var, 0, self.tile)
        stmts = self.nest.loop(this.loop_var.name, whole, body, this.kind, most)
        return stmts + self._plain(this, rest, values, position, None, extent - rest)

    def _writing_loop(
        self, extent: int, values: dict[tirx.Var, tirx.Expr], start: tirx.Expr
    ) -> Stmts:
        this = self.nest.loops[-1]
        whole, rest = divmod(extent, self.tile)
        stmts = self.nest.loop(
            this.loop_var.name,
            whole,
            lambda var: self._square(values, start, var * self.tile),
            most=self.nest.left(this.loop_var, 0, self.tile),
        )
        reading = self.nest.loops[self.reading].loop_var

        def column(step: tirx.Expr, lane: tirx.Expr) -> tirx.Stmt:
            point = {this.loop_var: step + (extent - rest), reading: start + lane}
            return self._at({**values, **point})

        return stmts + self.nest.loop(
            this.loop_var.name,
            rest,
            lambda step: self.nest.loop("lane", self.tile, lambda lane: [column(step, lane)]),
        )

    def _at(self, values: dict[tirx.Var, tirx.Expr]) -> tirx.BufferStore:
        return simplify(substitute(self.store, values), self.nest.analyzer)

    def _square(
        self, values: dict[tirx.Var, tirx.Expr], start: tirx.Expr, column: tirx.Expr
    ) -> Stmts:
        """Load T rows along the reading loop, transpose, store T rows along the writing one."""
        reading = self.nest.loops[self.reading].loop_var
        writing = self.nest.loops[-1].loop_var
        dtype = str(self.store.buffer.dtype)
        stmts: Stmts = []
        rows: list[tirx.Expr] = []
        for step in range(self.tile):
            # One small buffer per row: constant indices, so LLVM keeps it in a register.
            row = tirx.decl_buffer((self.tile,), dtype, f"row{step}")
            point = {**values, writing: column + step}
            stmts += [tirx.AllocBuffer(row), *self._load_row(row, point, reading, start)]
            rows.append(
                tirx.BufferLoad(row, [tirx.Ramp(self.nest.const(0), self.nest.const(1), self.tile)])
            )
        shuffles, rows = transpose(rows, self.tile, dtype)
        stmts += shuffles
        for step, row in enumerate(rows):
            point = {**values, reading: start + step, writing: column}
            index = self.nest.analyzer.simplify(substitute(self.store.indices[0], point))
            lanes = tirx.Ramp(index, tirx.const(1, str(index.ty)), self.tile)
            stmts.append(tirx.BufferStore(self.store.buffer, row, [lanes]))
        return stmts

    def _load_row(
        self,
        row: tirx.Buffer,
        point: dict[tirx.Var, tirx.Expr],
        reading: tirx.Var,
        start: tirx.Expr,
    ) -> Stmts:
        def element(lane: tirx.Expr) -> tirx.Stmt:
            value = self._at({**point, reading: start + lane}).value
            return tirx.BufferStore(row, value, [lane])

        return self.nest.vector(self.tile, element)


def transpose(rows: list[tirx.Expr], lanes: int, dtype: str) -> tuple[Stmts, list[tirx.Expr]]:
    """Transpose the squares of T vectors: step d swaps the off-diagonal d x d blocks of 2d x 2d.

    Parameters
    ----------
    rows : list of tirx.Expr
        T vectors, T a power of two.
    lanes : int
        Their length: one square of T x T, or several side by side.
    dtype : str
        Data type of an element.

    Returns
    -------
    list of tirx.Stmt
        What binds the vectors in between to variables.
    list of tirx.Expr
        T vectors, valid behind those statements: number i has column i of each square.
    """
    stmts: Stmts = []

    def name(value: tirx.Expr) -> tirx.Var:
        var = tirx.Var("v", f"{dtype}x{lanes}")
        stmts.append(tirx.Bind(var, value))
        return var

    rows = [name(row) for row in rows]
    distance = 1
    while distance < len(rows):
        low = [c - distance + lanes if c & distance else c for c in range(lanes)]
        high = [c + lanes if c & distance else c + distance for c in range(lanes)]
        for i in range(len(rows)):
            if not i & distance:
                pair = [rows[i], rows[i + distance]]
                rows[i], rows[i + distance] = (
                    name(tirx.Shuffle(pair, [tirx.const(c, "int32") for c in order]))
                    for order in (low, high)
                )
        distance *= 2
    return stmts, rows
