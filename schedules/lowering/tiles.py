"""Blocks of C in tile registers: zeroed, added to, and stored where plain code reads them.

To a schedule a block of C is a buffer: set to zero, updated by calls of a micro-kernel, and read by
the epilogue. A `TileCall` says that the updates are calls of a `TileLoop`. So the statement that
zeroes the buffer, in front of the loops over those calls, zeroes tiles, and behind these loops the
tiles are stored to the buffer.

The configuration of the unit is loaded once, where a function or an iteration of a parallel loop
begins, and the unit released at its end; a function whose blocks want several loads one in front of
each block.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.microkernels import TILE_LOOPS
from tvm_blislike.microkernels.tile_loops import TileBlock, block_of
from tvm_blislike.microkernels.tile_unit import RELEASE, configure_symbol
from tvm_blislike.model.directive import MisplacedDirective
from tvm_blislike.model.directives import TileCall
from tvm_blislike.schedules.lowering.llvm_functions import extents, of_whole_buffer
from tvm_blislike.schedules.lowering.rewrite import (
    collect,
    is_named,
    remade,
    sequence,
    substitute,
)


def in_tiles(body: tirx.Stmt) -> tirx.Stmt:
    """Have the functions of `TileCall` loops called, with all that they need around them."""
    whole = tvm_ffi.structural_map(body, [(tirx.SeqStmt, _with_block)])
    if any(TileCall.of(loop) is not None for loop in collect(whole, tirx.For)):
        raise MisplacedDirective("TileCall: no statement in front of its loops zeroes C")
    return _configured(whole)


# --- blocks ----------------------------------------------------------------------------------


def _with_block(statements: tirx.SeqStmt) -> tirx.Stmt:
    """Keep the block of C in tiles that one of several statements zeroes and the next adds to."""
    parts = list(statements.seq)
    for place in range(len(parts) - 1, 0, -1):
        loops = [loop for loop in collect(parts[place], tirx.For) if TileCall.of(loop) is not None]
        if not loops:
            continue
        first = place - 1
        # The next panel may be asked for in between.
        while first > 0 and isinstance(parts[first], tirx.Evaluate):
            first -= 1
        if zeroes(parts[first], _sums(loops[0])):
            asked = parts[first + 1 : place]
            parts[first : place + 1] = [*asked, *_in_registers(parts[place], loops[0])]
    return tirx.SeqStmt(parts) if len(parts) > len(statements.seq) else statements


def _sums(loop: tirx.For) -> Any:
    """Return the address of the block of C that a call adds to."""
    return loop.body.seq[0].value.args[-1]


def zeroes(stmt: tirx.Stmt, address: Any) -> bool:
    """Whether a statement does nothing but set a buffer to zero."""
    stores = collect(stmt, tirx.BufferStore)
    buffer = address.args[0].source
    zeroed = (s.buffer.same_as(buffer) and _is_zero(s.value) for s in stores)
    return bool(stores) and all(zeroed) and not collect(stmt, tirx.Evaluate)


def _is_zero(value: Any) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == 0


def _in_registers(loops: tirx.Stmt, first: tirx.For) -> list[tirx.Stmt]:
    """Return the statements that zero, compute, and store a block."""
    block, name = _block(first), str(first.body.seq[0].value.args[0].value)
    load = _sums(first).args[0]
    columns = _row_elements(first, load.source)
    rows = block.first_row(block.tall - 1) + block.rows
    room = 1
    for extent in load.source.shape:
        room *= int(extent)
    if columns < block.columns or room < rows * columns:
        raise MisplacedDirective(f"TileCall: {load.source.name} has no room for whole tiles")
    symbols = {what: TILE_LOOPS[name].symbol(what, block) for what in ("zero", "store")}
    row_bytes = tirx.IntImm("int64", columns * 4)
    address = load.source.access_ptr("w", offset=load.source.offset_of(load.indices)[0])

    def call(loop: tirx.For) -> tirx.Stmt:
        if TileCall.of(loop) is None:
            return loop
        _, a, line, row, b, _ = loop.body.seq[0].value.args
        symbol = TILE_LOOPS[name].symbol("multiply", _block(loop))
        return _call(symbol, of_whole_buffer(a), line, row, of_whole_buffer(b))

    return [
        _call(symbols["zero"]),
        tvm_ffi.structural_map(loops, [(tirx.For, call)]),
        _call(symbols["store"], address, row_bytes),
    ]


def _block(loop: tirx.For) -> TileBlock:
    """Return the block of a call, as the plain loops beside it are cut."""
    call = TileCall.of(loop)
    size = extents(sequence(list(loop.body.seq)[1:]))
    columns = call.lanes * size["nr"]
    sizes = (size["mh"], size["mw"], columns, call.rows, call.nr, call.steps)
    return TileBlock(*sizes, bool(call.streams))


def _row_elements(loop: tirx.For, buffer: Any) -> int:
    """Return how far apart the rows of a block are, as the plain loops beside a call have them.

    Its last axis need not be a row: results that are stored as they lie may have but one.
    """
    plain = sequence(list(loop.body.seq)[1:])
    store = next(s for s in collect(plain, tirx.BufferStore) if s.buffer.same_as(buffer))
    rows = [each.loop_var for each in collect(plain, tirx.For) if is_named(each, "mw")]
    if not rows:
        return TileCall.of(loop).nr
    places = [index.base if isinstance(index, tirx.Ramp) else index for index in store.indices]
    (offset,) = buffer.offset_of(places)
    first, second = (substitute(offset, {rows[0]: row}) for row in range(2))
    return int(sym.Analyzer().simplify(second - first))


def _call(symbol: str, *operands: Any) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("void", symbol, *operands))


# --- the unit --------------------------------------------------------------------------------


def _configured(body: tirx.Stmt) -> tirx.Stmt:
    """Load the configurations of the blocks of a function, and release the unit."""
    blocks = _zeroed(body)
    if not blocks:
        return body
    wanted = {configure_symbol(block) for block in blocks}
    parallel = [
        loop
        for loop in collect(body, tirx.For)
        if loop.kind == tirx.ForKind.PARALLEL and _zeroed(loop)
    ]
    inside = sum(len(_zeroed(loop)) for loop in parallel)
    if len(wanted) == 1 and inside in (0, len(blocks)):
        before = [_call(*wanted)]
    else:
        before = []
        body = tvm_ffi.structural_map(body, [(tirx.Evaluate, _before_block)])
    variables = {loop.loop_var for loop in parallel}

    def around(stmt: tirx.Stmt) -> tirx.Stmt:
        return sequence([*before, stmt, _call(RELEASE)])

    def visit(loop: tirx.For) -> tirx.For:
        return remade(loop, body=around(loop.body)) if loop.loop_var in variables else loop

    each = tvm_ffi.structural_map(body, [(tirx.For, visit)])
    return each if inside == len(blocks) else around(each)


def _zeroed(stmt: tirx.Stmt) -> list[TileBlock]:
    return [block for call in collect(stmt, tirx.Evaluate) if (block := _zeroed_by(call))]


def _zeroed_by(statement: tirx.Evaluate) -> TileBlock | None:
    """Return the block that a call zeroes; None for any other statement."""
    value = statement.value
    if not isinstance(value, ir.Call) or not value.args:
        return None
    symbol = value.args[0]
    found = block_of(str(symbol.value)) if isinstance(symbol, ir.StringImm) else None
    return found[2] if found and found[0] == "zero" else None


def _before_block(statement: tirx.Evaluate) -> tirx.Stmt:
    block = _zeroed_by(statement)
    if block is None:
        return statement
    return tirx.SeqStmt([_call(configure_symbol(block)), statement])
