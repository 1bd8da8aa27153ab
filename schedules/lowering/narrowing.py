"""Two vectors of 32-bit integers become one of bytes by a single permutation, on AVX-512 with VBMI.

    out[i : i + 16] = int8(a)
    out[i + 16 : i + 32] = int8(b)       ->   out[i : i + 32] = low bytes of a and b

`vpmovdb` narrows one vector, by two instructions on the port of shuffles; `vpermt2b` takes the low
bytes of two vectors at once, and they are one store. Behind short sums that counts: requantizing
the 28 vectors of a 14x32 block takes as long as 32 steps of its products.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import sym, tirx

from tvm_blislike.schedules.lowering.rewrite import constant, has_feature, sequence

SYMBOL = "blislike_low_bytes"
# LLVM's name of the extension with the permutation.
INSTRUCTION = "avx512vbmi"
_LANES = 16
_BYTES = ("int8", "uint8")


def by_permutation(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Narrow and store pairs of neighbouring vectors together, if the target has the instruction.

    Parameters
    ----------
    func : PrimFunc
        Below the level of blocks, with every unrolled loop written out, in vectors.
    """
    if not has_feature(func, INSTRUCTION):
        return func
    return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.SeqStmt, _joined)]))


def _joined(statements: tirx.SeqStmt) -> tirx.Stmt:
    """Join each statement that stores narrowed lanes with the next one, if that stores the next."""
    parts: list[tirx.Stmt] = []
    for part in statements.seq:
        pair = _pair(parts[-1], part) if parts else None
        parts = [*parts[:-1], pair] if pair is not None else [*parts, part]
    return statements if len(parts) == len(statements.seq) else sequence(parts)


def _pair(first: tirx.Stmt, second: tirx.Stmt) -> tirx.Stmt | None:
    words, others = _words(first), _words(second)
    if words is None or others is None or words[1] != others[1] or not _follows(first, second):
        return None
    dtype = f"{first.buffer.dtype}x{2 * _LANES}"
    value = tirx.call_pure_extern(dtype, SYMBOL, words[0], others[0])
    if words[1]:
        value = value + tirx.Broadcast(tirx.const(words[1], str(first.buffer.dtype)), 2 * _LANES)
    *outer, last = first.indices
    return tirx.BufferStore(first.buffer, value, [*outer, tirx.Ramp(last.base, 1, 2 * _LANES)])


def _words(stmt: tirx.Stmt) -> tuple[Any, int] | None:
    """Return the 32-bit integers whose low bytes a statement stores, and what is added to bytes."""
    if not isinstance(stmt, tirx.BufferStore) or str(stmt.buffer.dtype) not in _BYTES:
        return None
    value, added = stmt.value, 0
    if isinstance(value, tirx.Add) and isinstance(value.b, tirx.Broadcast):
        value, added = value.a, constant(value.b.value) or 0
    narrow = isinstance(value, tirx.Cast) and str(value.value.ty) == f"int32x{_LANES}"
    return (value.value, added) if narrow else None


def _follows(first: tirx.BufferStore, second: tirx.BufferStore) -> bool:
    """Whether the second statement stores to the lanes behind those of the first."""
    if not first.buffer.same_as(second.buffer):
        return False
    (*rows, lanes), (*others, behind) = first.indices, second.indices
    if not isinstance(lanes, tirx.Ramp) or not isinstance(behind, tirx.Ramp):
        return False
    analyzer = sym.Analyzer()
    same = all(analyzer.can_prove_equal(a, b) for a, b in zip(rows, others, strict=True))
    return same and analyzer.can_prove_equal(lanes.base + _LANES, behind.base)


_INDICES = ", ".join(f"i8 {4 * lane % 128}" for lane in range(64))
_FIRST = ", ".join(f"i32 {lane}" for lane in range(32))
# The upper half of the permutation is idle. Of indices that it knows LLVM makes other shuffles,
# four instructions for one: they are a variable that nobody changes.
SOURCE = f"""
@{SYMBOL}_indices = linkonce_odr global <64 x i8> <{_INDICES}>, align 64
declare <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512(<64 x i8>, <64 x i8>, <64 x i8>)
define linkonce_odr <32 x i8> @{SYMBOL}(<16 x i32> %x, <16 x i32> %y) alwaysinline nounwind {{
  %a = bitcast <16 x i32> %x to <64 x i8>
  %b = bitcast <16 x i32> %y to <64 x i8>
  %i = load <64 x i8>, ptr @{SYMBOL}_indices, align 64
  %p = call <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512(<64 x i8> %a, <64 x i8> %i, <64 x i8> %b)
  %r = shufflevector <64 x i8> %p, <64 x i8> poison, <32 x i32> <{_FIRST}>
  ret <32 x i8> %r
}}
"""
