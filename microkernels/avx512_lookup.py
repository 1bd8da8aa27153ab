"""Lookups of bytes for AVX-512 with avx512_vbmi: `vpermi2b` permutes the bytes of two registers.

The table of 256 stays in four. Both halves are permuted by the low seven bits of each index; the
highest one chooses.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.lookups import ENTRIES, Lookup

_LANES = 64
_PERMUTE = "llvm.x86.avx512.vpermi2var.qi.512"


def _looked_up(table: list[Any], index: Any) -> Any:
    low, high = (
        T.call_llvm_pure_intrin(f"uint8x{_LANES}", _PERMUTE, first, index, second)
        for first, second in (table[:2], table[2:])
    )
    middle = T.broadcast(T.uint8(ENTRIES // 2), _LANES)
    return tirx.Select(index >= middle, high, low)


LOOKUP = Lookup(ISA, _LANES, _looked_up, ("vbmi",))
