"""Functions in LLVM's language that PrimFuncs call, and their source beside the callers.

K loops: whole blocks and cut ones call the function of their size (`chosen`). A micro-kernel leaves
a call by the name of its `KLoop` (`microkernels.k_loops`), because where blocks are cut is known
only after the edges of tiles have been split off.

Fresh registers: loops whose iterations start with empty vector registers, so that a k loop has all
of them (`emptied`). LLVM moves what never changes out of loops as far as it can: the constants of a
Winograd transform end up in registers in front of the whole nest, and stay there through the k
loops of the products in between. F(6, 3) has six; a block of 13x32 needs 29 of 32 registers, so
accumulators went to the stack in every step of k. An empty piece of assembly that claims to
overwrite all vector registers makes LLVM load the constants again behind it, where the transforms
use them, and costs nothing itself. Without registers it keeps pieces of code apart (`apart`): LLVM
moves no load of one into the other.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvm_blislike.hardware import ISAS
from tvm_blislike.microkernels import FUNCTIONS, LOOPS, TILE_LOOPS, tile_loops, tile_unit
from tvm_blislike.microkernels.k_loops import Block, block_named
from tvm_blislike.model.directives import FreshRegisters, InTurn, KLoopCall
from tvm_blislike.model.loop_names import Named
from tvm_blislike.schedules.lowering import narrowing, packs, residues, words
from tvm_blislike.schedules.lowering.rewrite import collect, sequence, without
from tvm_blislike.tvm_seams import attributes

_APART = "apart"
_FRESH = "blislike_fresh_registers_"
# A word of which of 32 bytes are not 0. A comparison of bytes is bits already: LLVM finds what an
# instruction set has for it (`vptestmb`, `vpmovmskb`, sums of powers of two on NEON).
BITS_OF_BYTES = "blislike_bits_of_bytes"
_BITS_OF_BYTES = f"""
define linkonce_odr i32 @{BITS_OF_BYTES}(<32 x i8> %bytes) alwaysinline nounwind {{
  %m = icmp ne <32 x i8> %bytes, zeroinitializer
  %w = bitcast <32 x i1> %m to i32
  ret i32 %w
}}
"""


def with_sources(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Attach the LLVM source of the functions that `func` calls."""
    by_name = (
        call.args[0].value
        for call in collect(func.body, ir.Call)
        if call.args and isinstance(call.args[0], ir.StringImm)
    )
    names = sorted({str(name) for name in by_name})
    return attributes.with_sources(func, filter(None, map(_source, names)))


def _source(symbol: str) -> str:
    """Return the LLVM function of that name, "" when it is none of ours."""
    if symbol.startswith(_FRESH):
        return registers_source(symbol.removeprefix(_FRESH))
    if symbol == BITS_OF_BYTES:
        return _BITS_OF_BYTES
    if symbol == narrowing.SYMBOL:
        return narrowing.SOURCE
    if symbol in FUNCTIONS:
        return FUNCTIONS[symbol]
    if tiled := tile_loops.block_of(symbol):
        what, name, block = tiled
        return TILE_LOOPS[name].source(what, symbol, block)
    found = block_named(symbol)
    if found and found[0] in LOOPS:
        name, block, finish = found
        loop = LOOPS[name]
        return (loop.finish if finish else loop.source)(symbol, block)
    sources = (packs.source, residues.source, words.source, tile_unit.unit_source)
    return next(filter(None, (source_of(symbol) for source_of in sources)), "")


def registers_source(isa: str) -> str:
    """Return the LLVM function that empties the registers of an instruction set.

    Raises
    ------
    KeyError
        When the instruction set is not known.
    """
    clobbers = "~{memory}" if isa == _APART else ISAS[isa].clobbers
    # An empty piece of assembly.
    return (
        f"define linkonce_odr void @{_FRESH}{isa}() alwaysinline nounwind {{\n"
        f'  call void asm sideeffect "", "{clobbers}"()\n'
        "  ret void\n}\n"
    )


def emptied(loop: tirx.For, fresh: FreshRegisters) -> tirx.For:
    """Start the iterations of a loop with a call that empties the registers."""
    return without(loop, FreshRegisters, body=tirx.SeqStmt([_emptying(fresh.isa), loop.body]))


def in_turn(loop: tirx.For, _directive: InTurn) -> tirx.For:
    """Start the iterations of a loop with a call that no load moves across."""
    return without(loop, InTurn, body=tirx.SeqStmt([apart(), loop.body]))


def apart() -> tirx.Stmt:
    """Return a call in front of which loads stay that are in front of it, and the others behind."""
    return _emptying(_APART)


def _emptying(name: str) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_extern("void", f"{_FRESH}{name}"))


def chosen(loop: tirx.For, whole: KLoopCall) -> tirx.Stmt:
    """Give a call the name of the function for its block, and drop the plain loops."""
    call, block = loop.body.seq[0], cut_block(loop, whole)
    loop_name, a, *a_strides, b, b_step, steps = call.value.args[:8]
    operands = (of_whole_buffer(a), *a_strides, of_whole_buffer(b), b_step)
    name = LOOPS[str(loop_name.value)].symbol(block)
    rows = rows_of_c(loop, whole, block)
    return tirx.Evaluate(tirx.call_extern("void", name, *operands, steps, *rows))


def cut_block(loop: tirx.For, whole: KLoopCall) -> Block:
    """Return the block of a call, as the plain loops beside it are cut."""
    size = extents(sequence(list(loop.body.seq)[1:]))
    rows, columns = whole.mh * whole.mw, whole.lanes * size["nr"]
    sizes = (size["mh"], size["mw"], columns, rows, whole.nr)
    return Block(*sizes, whole.view, bool(whole.in_order))


def rows_of_c(loop: tirx.For, whole: KLoopCall, block: Block) -> list[Any]:
    """Return the addresses of the rows of a block that a call adds to.

    TVM may give a cut block of C shorter rows: each row has its own address.
    """
    c = loop.body.seq[0].value.args[8:]
    return [c[ih * whole.mw + iw] for ih in range(block.mh) for iw in range(block.mw)]


def of_whole_buffer(address: Any) -> Any:
    """Return an address as one from which all of its buffer may be read.

    Of the address of an element TVM concludes that only this element is read: the panel of a cut
    tile, which is packed for itself, would get shorter rows than the function expects.
    """
    load = address.args[0]
    (offset,) = load.source.offset_of(load.indices)
    return load.source.access_ptr("r", offset=offset)


def extents(body: tirx.Stmt) -> dict[str, int]:
    """Extents of the loops over the axes of the block; an axis without a loop has one."""
    found = {"mh": 1, "mw": 1, "nr": 1}
    for loop in collect(body, tirx.For):
        named = Named.of(loop)
        if named is not None and named.name in found:
            found[named.name] = int(loop.extent)
    return found
