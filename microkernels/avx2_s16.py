"""s32 = s16 x s16 or s8 for AVX2: `vpmaddwd` multiplies two steps of k at once.

For cores without dot products of bytes, whose quantized operands lie in memory widened to 16 bits
(`cost_models.data_types`). The instruction for bytes that AVX2 has, `vpmaddubsw`, saturates sums of
two products in 16 bits: with weights of eight bits they are wrong. Weights may lie there in bytes,
which the load of a row of B widens (`vpmovsxbw`). On Zen 3 with all in L1 that takes 0 to 6 % more
time, two rows most; layers whose weights come from beyond L2 take up to half as long
(`passes.stored_weights`).

A group of A is a word of two elements, broadcast from memory; a row of B holds such words. Products
are added by an instruction of their own, which waits for nothing but the last sum, one cycle: a few
accumulators are enough. Beside them, a row of B and A a register is left for products.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx2 import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import dot_of_pairs
from tvm_blislike.model.types import WORDS, Types

_MULTIPLY = "llvm.x86.avx2.pmadd.wd"
PRODUCT = dot_of_pairs(_MULTIPLY, lanes=8)
TYPES = WORDS
WIDENING = dot_of_pairs(_MULTIPLY, lanes=8, widens_b=True)
WITH_BYTES = Types("int16", "int8", "int32", "int32")
_PASSING = 1

SHAPES = (
    *((mr, 8) for mr in range(1, 13)),
    *((mr, 16) for mr in range(1, 7)),
    *((mr, 24) for mr in range(1, 5)),
    *((mr, 32) for mr in range(1, 4)),
    (1, 48),
)

# Not offered with bytes: LLVM 22 widens rows of B early, and spills in loops of their own.
_CROWDED = ((11, 8), (12, 8), (6, 16))

_ALL = [
    Microkernel(ISA, mr, nr, types, product=product, superseded_by=("avxvnni",))
    for types, product, without in ((TYPES, PRODUCT, ()), (WITH_BYTES, WIDENING, _CROWDED))
    for mr, nr in SHAPES
    if (mr, nr) not in without
]
KERNELS = tuple(k for k in _ALL if k.registers + _PASSING <= ISA.vector_registers)
