"""Vectors of rounded sums become one of bytes by packs that saturate, over several rows.

    a[i] = int8(clip(lrint(x) + zero))
    b[j] = int8(clip(lrint(y) + zero))       ->   joined = packs(lrint(x), lrint(y), ..., zero)
    ...                                           a[i], b[j], ... = parts of joined

x86 narrows one vector by an instruction of several cycles, and bounds each of its sums before. A
pack takes two vectors to one of half the bits, and bounds for nothing: first to 16 bits, where the
zero point is added, saturated too, then to 8. Four vectors cost three packs, one permutation or
two, because packs stay in lanes of 128 bits, and two additions; without a zero point none.

Both saturations change nothing: a sum beyond 16 bits is beyond 8 behind a zero point of 9 bits as
well, on the same side. Bounds inside those of the type are those of whole vectors of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, sym, tirx

from tvm_blislike.hardware import ISAS
from tvm_blislike.model.marks import ISA
from tvm_blislike.schedules.lowering.rewrite import collect, constant, sequence

# LLVM's rounding to the nearest integer, ties to even ones: one instruction.
NEAREST = "llvm.lrint"
BYTES = ("int8", "uint8")
# Of bounds and zero point: what is beyond 16 bits stays beyond 8.
MOST_ZERO = 2**8
_ID = tirx.call_llvm_pure_intrin("int32", NEAREST, tirx.const(0.0, "float32")).args[0].value
_SYMBOL = re.compile(r"blislike_packs_(?P<isa>[a-z0-9]+)_(?P<dtype>u?int8)_(?P<lanes>[\d_]+)")
_LANE_BYTES = 16


@dataclass(frozen=True)
class _Bytes:
    """The store of `clip(nearest + zero, low, high)`, in vectors."""

    store: tirx.BufferStore
    nearest: Any
    zero: int
    low: int
    high: int

    @property
    def lanes(self) -> int:
        return tvm.DataType(str(self.nearest.ty)).lanes

    @property
    def shift(self) -> tuple[int, int, int]:
        """What joined vectors share."""
        return self.zero, self.low, self.high


def joins(func: tirx.PrimFunc) -> bool:
    """Whether a function's instruction set has such packs."""
    return bool(_isa(func) and ISAS[_isa(func)].packs)


def nearest(x: Any) -> Any:
    """Return the nearest integer of a float32 that is one of 32 bits; ties to even ones."""
    return tirx.call_llvm_pure_intrin("int32", NEAREST, x)


def packed(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Join stores of rounded sums, where the instruction set has packs.

    Parameters
    ----------
    func : PrimFunc
        Below the level of blocks, with every unrolled loop written out, in vectors.
    """
    if not joins(func):
        return func
    isa = _isa(func)
    return func.with_body(
        tvm_ffi.structural_map(func.body, [(tirx.SeqStmt, lambda s: _joined(s, isa))])
    )


def _isa(func: tirx.PrimFunc) -> str:
    return str(func.attrs[ISA]) if func.attrs and ISA in func.attrs else ""


def _joined(statements: tirx.SeqStmt, isa: str) -> tirx.Stmt:
    parts: list[tirx.Stmt] = []
    run: list[_Bytes] = []
    for part in statements.seq:
        found = _of_registers(part, isa)
        if run and not (found and _go_together(run[0], found)):
            parts, run = [*parts, *_in_registers(run, isa)], []
        if found:
            run.append(found)
        else:
            parts.append(part)
    return sequence([*parts, *_in_registers(run, isa)])


def _of_registers(stmt: tirx.Stmt, isa: str) -> _Bytes | None:
    """Return what a statement stores to bytes of whole registers of sums, None for any other."""
    found = _bytes(stmt)
    return found if found and 4 * found.lanes % ISAS[isa].vector_bytes == 0 else None


def _go_together(first: _Bytes, other: _Bytes) -> bool:
    buffer = first.store.buffer
    same = buffer.same_as(other.store.buffer) and first.shift == other.shift
    # Their loads come in front of the stores of all.
    loads = collect(other.store.value, ir.TensorLoad)
    return same and not any(load.source.same_as(buffer) for load in loads)


def _in_registers(run: Sequence[_Bytes], isa: str) -> list[tirx.Stmt]:
    """Return stores with as many joined as fill a register of bytes, or else half of one."""
    parts: list[tirx.Stmt] = []
    whole = ISAS[isa].vector_bytes
    while run:
        taken = _filling(run, whole) or _filling(run, whole // 2)
        parts += [_together(run[:taken], isa)] if taken else [run[0].store]
        run = run[taken or 1 :]
    return parts


def _filling(run: Sequence[_Bytes], lanes: int) -> int:
    """Return how many of the first stores fill so many lanes of bytes, 0 if none do."""
    total = 0
    for count, each in enumerate(run):
        if total == lanes:
            return count
        total += each.lanes
    return len(run) if total == lanes else 0


def _together(run: Sequence[_Bytes], isa: str) -> tirx.Stmt:
    dtype, lanes = str(run[0].store.buffer.dtype), [each.lanes for each in run]
    zero, low, high = run[0].shift
    count = sum(lanes)
    symbol = f"blislike_packs_{isa}_{dtype}_{'_'.join(map(str, lanes))}"
    operands = [each.nearest for each in run]
    value = tirx.call_pure_extern(f"{dtype}x{count}", symbol, *operands, tirx.const(zero, "int16"))
    ends = np.iinfo(dtype)
    if high < ends.max:
        value = tirx.min(value, tirx.Broadcast(tirx.const(high, dtype), count))
    if low > ends.min:
        value = tirx.max(value, tirx.Broadcast(tirx.const(low, dtype), count))
    buffer = tirx.decl_buffer((count,), dtype, "packed")
    whole = tirx.BufferStore(buffer, value, [tirx.Ramp(0, 1, count)])
    return tirx.SeqStmt([tirx.AllocBuffer(buffer), whole, *_parts(run, buffer)])


def _parts(run: Sequence[_Bytes], joined: tirx.Buffer) -> list[tirx.Stmt]:
    """Return the stores of parts of a vector, neighbours as one."""
    stores = [each.store for each in run]
    starts = [0, *(i for i, pair in enumerate(pairwise(stores), 1) if not _follows(*pair))]
    parts: list[tirx.Stmt] = []
    begin = 0
    for first, last in pairwise([*starts, len(stores)]):
        lanes = sum(each.lanes for each in run[first:last])
        *rows, place = stores[first].indices
        part = tirx.BufferLoad(joined, [tirx.Ramp(begin, 1, lanes)])
        parts.append(
            tirx.BufferStore(stores[first].buffer, part, [*rows, tirx.Ramp(place.base, 1, lanes)])
        )
        begin += lanes
    return parts


def _follows(first: tirx.BufferStore, second: tirx.BufferStore) -> bool:
    """Whether the second statement stores to the lanes behind those of the first."""
    (*rows, lanes), (*others, behind) = first.indices, second.indices
    analyzer = sym.Analyzer()
    same = all(analyzer.can_prove_equal(a, b) for a, b in zip(rows, others, strict=True))
    return same and analyzer.can_prove_equal(lanes.base + lanes.lanes, behind.base)


def _bytes(stmt: tirx.Stmt) -> _Bytes | None:
    """Return what a statement stores to contiguous bytes, None for any other."""
    if not isinstance(stmt, tirx.BufferStore) or str(stmt.buffer.dtype) not in BYTES:
        return None
    value, zero = stmt.value, 0
    if not isinstance(value, tirx.Cast) or not isinstance(stmt.indices[-1], tirx.Ramp):
        return None
    value = value.value
    bounds = {}
    for kind in (tirx.Max, tirx.Min):
        if not isinstance(value, kind) or not isinstance(value.b, tirx.Broadcast):
            return None
        bounds[kind], value = constant(value.b.value), value.a
    # TVM makes differences of sums with negative numbers.
    if isinstance(value, (tirx.Add, tirx.Sub)) and isinstance(value.b, tirx.Broadcast):
        sign = 1 if isinstance(value, tirx.Add) else -1
        value, zero = value.a, sign * (constant(value.b.value) or 0)
    is_nearest = isinstance(value, ir.Call) and constant(value.args[0]) == _ID
    numbers = (zero, bounds[tirx.Max], bounds[tirx.Min])
    return _Bytes(stmt, value, *numbers) if is_nearest and None not in numbers else None


def source(symbol: str) -> str:
    """Return the function of LLVM that joins vectors, "" when the name is none of these."""
    found = _SYMBOL.fullmatch(symbol)
    if found is None:
        return ""
    isa, operands = ISAS[found["isa"]], [int(lanes) for lanes in found["lanes"].split("_")]
    lanes = isa.vector_bytes // 4
    registers, lines = _registers(operands, lanes)
    narrow = "packuswb" if found["dtype"] == "uint8" else "packsswb"
    words, sums, bytes_ = f"<{lanes} x i32>", f"<{2 * lanes} x i16>", f"<{4 * lanes} x i8>"
    pack, narrowest = isa.packs.format("packssdw"), isa.packs.format(narrow)
    halves = []
    for number, (a, b) in enumerate(zip(registers[::2], registers[1::2], strict=True)):
        joined, moved = f"%p{number}", f"%z{number}"
        lines += [
            f"{joined} = call {sums} @{pack}({words} {a}, {words} {b})",
            f"{moved} = call {sums} @llvm.sadd.sat.v{2 * lanes}i16({sums} {joined}, {sums} %zeros)",
        ]
        halves.append(moved)
    result = sum(operands)
    order = ", ".join(f"i32 {at}" for at in _order(len(registers), isa.vector_bytes))
    lines += [
        f"%b = call {bytes_} @{narrowest}({sums} {halves[0]}, {sums} {halves[-1]})",
        f"%w = bitcast {bytes_} %b to {words}",
        f"%o = shufflevector {words} %w, {words} poison, <{result // 4} x i32> <{order}>",
        f"%r = bitcast <{result // 4} x i32> %o to <{result} x i8>",
        f"ret <{result} x i8> %r",
    ]
    given = ", ".join(f"<{count} x i32> %a{number}" for number, count in enumerate(operands))
    body = "".join(f"  {line}\n" for line in lines)
    return f"""
declare {sums} @{pack}({words}, {words})
declare {bytes_} @{narrowest}({sums}, {sums})
declare {sums} @llvm.sadd.sat.v{2 * lanes}i16({sums}, {sums})
define linkonce_odr <{result} x i8> @{symbol}({given}, i16 %zero) alwaysinline nounwind {{
  %first = insertelement {sums} poison, i16 %zero, i32 0
  %zeros = shufflevector {sums} %first, {sums} poison, <{2 * lanes} x i32> zeroinitializer
{body}}}
"""


def _registers(operands: Sequence[int], lanes: int) -> tuple[list[str], list[str]]:
    """Return the names of operands' registers, and the lines that take them out of longer ones."""
    names, lines = [], []
    for number, count in enumerate(operands):
        for begin in range(0, count, lanes):
            name = f"%a{number}" if count == lanes else f"%a{number}_{begin}"
            names.append(name)
            if count > lanes:
                at = ", ".join(f"i32 {lane}" for lane in range(begin, begin + lanes))
                whole = f"<{count} x i32>"
                lines.append(
                    f"{name} = shufflevector {whole} %a{number}, {whole} poison, "
                    f"<{lanes} x i32> <{at}>"
                )
    return names, lines


def _order(registers: int, vector_bytes: int) -> list[int]:
    """Return where packs leave each 4 bytes of a register, register by register."""
    lanes = vector_bytes // _LANE_BYTES
    return [4 * lane + register for register in range(registers) for lane in range(lanes)]
