"""int32 = bytes x bytes for NEON with i8mm: `smmla` multiplies two rows by two columns of eight.

Twice the products of `sdot` in as many instructions; registers of sums are tiles of 2 x 2
(`neon_row_pairs`). Where k is no multiple of eight, or blocks have a single row, `neon_s8` serves.

In place a multiply-add is lost for each pair of rows that is joined: wide blocks are best, 4x24
loses one in thirteen, 8x12 one in seven.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware.neon import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.neon_row_pairs import KS, fits, row_pairs_loop
from tvm_blislike.microkernels.products import Product
from tvm_blislike.model.types import Types


def _words(elements: Any, groups: int) -> Any:
    return T.reinterpret("int64" if groups == 1 else f"int64x{groups}", elements)


def _stands_for(c: Any, a: Any, b: Any, lanes: int) -> Any:
    """Some use of all operands: TIR only shows where a block is cut (`KLoopCall`)."""
    return c + tirx.Cast(f"int32x{lanes}", T.broadcast(a, lanes) * b)


PRODUCT = Product(KS, _words, _stands_for, group_type="int64", rows=2)
SHAPES = (
    *((mr, 4) for mr in range(2, 17, 2)),
    *((mr, 8) for mr in range(2, 13, 2)),
    *((mr, 12) for mr in range(2, 9, 2)),
    *((mr, 16) for mr in range(2, 7, 2)),
    *((mr, 24) for mr in (2, 4)),
    (2, 32),
    (2, 40),
)
# By the signs of A and B.
_INSTRUCTIONS = {
    Types("int8", "int8", "int32", "int32"): "smmla",
    Types("uint8", "int8", "int32", "int32"): "usmmla",
    Types("uint8", "uint8", "int32", "int32"): "ummla",
}
KERNELS = tuple(
    Microkernel(ISA, mr, nr, types, ("i8mm",), PRODUCT, row_pairs_loop(f"neon_{by}", by))
    for types, by in _INSTRUCTIONS.items()
    for mr, nr in SHAPES
    if fits(mr, nr)
)
