"""int32 = int8 x int8 for NEON without dot products (Cortex-A53, A57, A72): `smull` and `sadalp`.

A group is a pair of elements. `smull` multiplies the pairs of four columns by one of A, to 16 bits,
where every product of bytes fits; `sadalp` adds the two products of a column to its sum in 32 bits.
So sums stand as those of `neon_f32` do, and eight products take one instruction of each of the two
vector units of Cortex-A57 and A72, twice as many a cycle as `fmla`. (`smlal` on top of `smull`
would save every other `sadalp`, but overflows where both weights are -128.)

A pair of A is copied to all columns first (`dup`), so wide blocks are best. Beside accumulators and
a row of B there are two registers for copies and products.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware.neon import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.neon_s8 import TYPES
from tvm_blislike.microkernels.products import Product

_MULTIPLY = "llvm.aarch64.neon.smull.v8i16"
_ADD_PAIRS = "llvm.aarch64.neon.saddlp.v4i32.v8i16"
_PASSING = 2


def _load(elements: Any, groups: int) -> Any:
    return T.reinterpret("int16" if groups == 1 else f"int16x{groups}", elements)


def _multiply_add(c: Any, a: Any, b: Any, lanes: int) -> Any:
    left = T.reinterpret("int8x8", T.broadcast(a, lanes))
    products = T.call_llvm_pure_intrin("int16x8", _MULTIPLY, left, T.reinterpret("int8x8", b))
    return c + T.call_llvm_pure_intrin("int32x4", _ADD_PAIRS, products)


PRODUCT = Product(2, _load, _multiply_add, instructions=2, group_type="int16")

SHAPES = (
    *((mr, 4) for mr in range(1, 17)),
    *((mr, 8) for mr in range(1, 11)),
    *((mr, 12) for mr in range(1, 8)),
    *((mr, 16) for mr in range(1, 6)),
    *((mr, 20) for mr in range(1, 5)),
    *((mr, 24) for mr in range(1, 4)),
    *((mr, 32) for mr in range(1, 3)),
)

_ALL = [
    Microkernel(ISA, mr, nr, TYPES, product=PRODUCT, superseded_by=("dotprod",))
    for mr, nr in SHAPES
]
KERNELS = tuple(k for k in _ALL if k.registers + _PASSING <= ISA.vector_registers)
