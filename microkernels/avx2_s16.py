"""s32 = s16 x s16 or s8 for AVX2: `vpmaddwd` multiplies two steps of k at once.

For cores without dot products of bytes: what Winograd's transforms make of bytes, products of two
tensors, and layers whose weights come from beyond L2. Those may lie there in bytes, which the load
of a row of B widens (`vpmovsxbw`). On Zen 3 with all in L1 that takes 0 to 6 % more time, two rows
most; layers that wait for weights take up to half as long (`passes.stored_weights`). Other layers
have `avx2_masked`.

A group of A is a word of two elements, broadcast from memory; a row of B holds such words. Products
are added by an instruction of their own, which waits for nothing but the last sum, one cycle: a few
accumulators are enough. Beside them, a row of B and A a register is left for products.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx2 import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import dot_of_pairs
from tvm_blislike.model.types import WORDS, WORDS_BY_BYTES

_MULTIPLY = "llvm.x86.avx2.pmadd.wd"
PRODUCT = dot_of_pairs(_MULTIPLY, lanes=8)
TYPES = WORDS
WIDENING = dot_of_pairs(_MULTIPLY, lanes=8, widens_b=True)
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
    for types, product, without in ((TYPES, PRODUCT, ()), (WORDS_BY_BYTES, WIDENING, _CROWDED))
    for mr, nr in SHAPES
    if (mr, nr) not in without
]
KERNELS = tuple(k for k in _ALL if k.registers + _PASSING <= ISA.vector_registers)
