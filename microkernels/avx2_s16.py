"""s32 = s16 x s16 for AVX2: `vpmaddwd` multiplies two steps of k at once.

For cores without dot products of bytes, whose quantized operands lie in memory widened to 16 bits
(`cost_models.data_types`). The instruction for bytes that AVX2 has, `vpmaddubsw`, saturates sums of
two products in 16 bits: with weights of eight bits they are wrong. Widening in the k loop instead
would take 18 instructions more beside the 48 of a step of 6x16, and save half of the traffic of A
and B; which is faster was not measured.

A group of A is a word of two elements, broadcast from memory; a row of B holds such words. Products
are added by an instruction of their own, which waits for nothing but the last sum, one cycle: a few
accumulators are enough. Beside them, a row of B and A a register is left for products.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx2 import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import dot_of_pairs
from tvm_blislike.model.types import Types

PRODUCT = dot_of_pairs("llvm.x86.avx2.pmadd.wd", lanes=8)
TYPES = Types("int16", "int16", "int32", "int32")
_PASSING = 1

SHAPES = (
    *((mr, 8) for mr in range(1, 13)),
    *((mr, 16) for mr in range(1, 7)),
    *((mr, 24) for mr in range(1, 5)),
    *((mr, 32) for mr in range(1, 4)),
    (1, 48),
)

_ALL = [
    Microkernel(ISA, mr, nr, TYPES, product=PRODUCT, superseded_by=("avxvnni",))
    for mr, nr in SHAPES
]
KERNELS = tuple(k for k in _ALL if k.registers + _PASSING <= ISA.vector_registers)
