"""fp32 from bytes by tables, for AVX-512 with avx512_vbmi: `vpermi2b` looks up 64 bytes at once.

Numbers of 8 bits, a sign and seven others, need at most the upper 16 bits of fp32. So one table of
128 bytes holds the highest bits of what each magnitude becomes, another the next ones; the sign is
that of the byte itself. Two lookups, two operations for the signs and six interleavings, of bytes
and then of words with zeros below, make four vectors of fp32 of 64 bytes.

LLVM would make one operation of three sources, `vpternlogq`, of the two for the signs. Lookups and
multiply-adds have three sources, too, of which Zen 4 reads few a cycle: in L1 64 bytes take 8.9
cycles with it and 8.3 with two.

One permutation that places bytes of both lookups in words of 32 bits instead of two interleavings
takes longer (0.8 of the rate), as `vpermi2b` has two units and an interleaving three.

Interleaving works inside of parts of 16 bytes, so a vector gets four columns of each part: vectors
of sums are those of a square of 4 x 4 such groups, turned over. The sums are turned back behind the
k loop (`vector_code`), panels are as ever.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  names types of 8 bits for NumPy
import numpy as np
from tvm.script.ir_builder import tirx as T

# Vectors of fp32 of a register of bytes.
VECTORS = 4
# Two lookups, those for signs, two interleavings of bytes and four of words, for `VECTORS`; both
# for signs take as long as one of the others.
INSTRUCTIONS = 9 / VECTORS
_LANES = 16
_FLOATS, _WORDS, _BYTES = "<16 x float>", "<16 x i32>", "<64 x i8>"
_LOOKUP = "llvm.x86.avx512.vpermi2var.qi.512"


def part(dtype: str, loaded: Any, number: int) -> Any:
    """Return one of the `VECTORS` vectors of fp32 of a vector of 64 loaded bytes."""
    words = T.reinterpret("int32x16", loaded)
    return T.call_pure_extern(f"float32x{_LANES}", _name(dtype, number), words)


def functions(dtype: str) -> tuple[tuple[str, str], ...]:
    """Return the functions of LLVM that make the vectors, by name.

    Parameters
    ----------
    dtype : str
        Of 8 bits, the highest one a sign; all numbers are at most 16 bits of fp32.
    """
    return tuple((_name(dtype, number), _source(dtype, number)) for number in range(VECTORS))


def _name(dtype: str, number: int) -> str:
    return f"blislike_{dtype}_by_tables_{number}"


def _source(dtype: str, number: int) -> str:
    """Return the function (16 words of four bytes each) to fp32; LLVM shares what is equal."""
    of_bytes, of_words = divmod(number, 2)
    return f"""{_DECLARED}
define linkonce_odr {_FLOATS} @{_name(dtype, number)}({_WORDS} %w) alwaysinline nounwind {{
{_upper_halves(dtype, of_bytes)}
  %z = call {_BYTES} asm "vpunpck{"lh"[of_words]}wd $2, $1, $0", "=v,v,v"(
    {_BYTES} zeroinitializer, {_BYTES} %p) memory(none)
  %f = bitcast {_BYTES} %z to {_FLOATS}
  ret {_FLOATS} %f
}}
"""


_DECLARED = f"""
declare {_BYTES} @{_LOOKUP}({_BYTES}, {_BYTES}, {_BYTES})"""


def _upper_halves(dtype: str, number: int) -> str:
    """Return the code that makes `%p` of `%w`: the upper 16 bits of fp32 of half of the bytes."""
    magnitudes = np.arange(128, dtype=np.uint8).view(dtype).astype(np.float32).view(np.uint32)
    return f"""  %i = bitcast {_WORDS} %w to {_BYTES}
  %n = call {_BYTES} @{_LOOKUP}({_halves(magnitudes >> 16)})
  %m = call {_BYTES} @{_LOOKUP}({_halves(magnitudes >> 24)})
  %s = and {_BYTES} %i, splat (i8 -128)
  %h = call {_BYTES} asm "vpord $2, $1, $0", "=v,v,v"({_BYTES} %m, {_BYTES} %s) memory(none)
  %p = call {_BYTES} asm "vpunpck{"lh"[number]}bw $2, $1, $0", "=v,v,v"({_BYTES} %n, {_BYTES} %h)
    memory(none)"""


def _halves(table: np.ndarray) -> str:
    """Return the operands of a lookup in the lowest bytes of 128 numbers: indices between both."""
    low, high = (", ".join(f"i8 {x & 255}" for x in half) for half in table.reshape(2, 64))
    return f"{_BYTES} <{low}>, {_BYTES} %i, {_BYTES} <{high}>"
