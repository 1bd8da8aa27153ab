"""Lookups of bytes for NEON: `tbl` and `tbx` reach 64 bytes, four registers of the table.

`tbl` makes zeros of indices beyond, `tbx` leaves what was there: each quarter of the table is asked
for indices less its beginning, which wrap around below it.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware.neon import ISA
from tvm_blislike.microkernels.lookups import Lookup

_LANES = 16
_REACH = 4


def _looked_up(table: list[Any], index: Any) -> Any:
    vector = f"uint8x{_LANES}"
    first, *others = (table[at : at + _REACH] for at in range(0, len(table), _REACH))
    result = T.call_llvm_pure_intrin(vector, "llvm.aarch64.neon.tbl4.v16i8", *first, index)
    for quarter, part in enumerate(others, 1):
        less = index - T.broadcast(T.uint8(quarter * _REACH * _LANES), _LANES)
        result = T.call_llvm_pure_intrin(
            vector, "llvm.aarch64.neon.tbx4.v16i8", result, *part, less
        )
    return result


LOOKUP = Lookup(ISA, _LANES, _looked_up)
