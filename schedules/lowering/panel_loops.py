"""K loops that are functions of LLVM: whole blocks and cut ones call the one of their size.

A micro-kernel leaves a call by the name of its `KLoop` (`microkernels.k_loops`), because where
blocks are cut is known only after the edges of tiles have been split off.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_blislike.microkernels import FUNCTIONS, LOOPS
from tvm_blislike.microkernels.k_loops import Block, block_named
from tvm_blislike.model.directives import KLoopCall, Named
from tvm_blislike.schedules.lowering import imported
from tvm_blislike.schedules.lowering.rewrite import collect, sequence


def with_sources(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Attach the LLVM source of the functions that `func` calls."""
    return imported.with_sources(func, filter(None, map(_source, imported.names_called(func))))


def _source(symbol: str) -> str:
    """Return the LLVM function of that name, "" when it is none of a micro-kernel's."""
    if symbol in FUNCTIONS:
        return FUNCTIONS[symbol]
    found = block_named(symbol)
    return LOOPS[found[0]].source(symbol, found[1]) if found and found[0] in LOOPS else ""


def chosen(loop: tirx.For, whole: KLoopCall) -> tirx.Stmt:
    """Give a call the name of the function for its block, and drop the plain loops."""
    call, *plain = loop.body.seq
    size = _extents(sequence(plain))
    rows, columns = size["mh"] * size["mw"], whole.lanes * size["nr"]
    block = Block(rows, columns, whole.mr, whole.nr, bool(whole.in_order))
    loop_name, a, a_row, a_step, b, b_step, steps, *c = call.value.args
    operands = (_of_whole_buffer(a), a_row, a_step, _of_whole_buffer(b), b_step)
    name = LOOPS[str(loop_name.value)].symbol(block)
    # TVM may give a cut block of C shorter rows: each row has its own address.
    return tirx.Evaluate(tirx.call_extern("void", name, *operands, steps, *c[:rows]))


def _of_whole_buffer(address: Any) -> Any:
    """Return an address as one from which all of its buffer may be read.

    Of the address of an element TVM concludes that only this element is read: the panel of a cut
    tile, which is packed for itself, would get shorter rows than the function expects.
    """
    load = address.args[0]
    (offset,) = load.source.offset_of(load.indices)
    return load.source.access_ptr("r", offset=offset)


def _extents(body: tirx.Stmt) -> dict[str, int]:
    """Extents of the loops over the axes of the block; an axis without a loop has one."""
    found = {"mh": 1, "mw": 1, "nr": 1}
    for loop in collect(body, tirx.For):
        named = Named.of(loop)
        if named is not None and named.name in found:
            found[named.name] = int(loop.extent)
    return found
