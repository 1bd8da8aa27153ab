"""s32 = s16 x s16 for AVX-512 without avx512_vnni (Skylake-X): `vpmaddwd`, as in `avx2_s16`.

There are two units for vectors of 512 bits, so two instructions for 32 products take as long as
two multiply-adds of fp32 do, which are as many products: by the ports no arithmetic is saved.
Where additions have units of their own (Zen 4), half is; Winograd convolutions of bytes, whose
transformed operands have 16 bits, look here whatever the core has for bytes.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.avx2_s16 import TYPES
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import dot_of_pairs

PRODUCT = dot_of_pairs("llvm.x86.avx512.pmaddw.d.512", lanes=16)
_PASSING = 1

# Not offered: 20x16 to 27x16, and 11x32 to 14x32. LLVM 22 loads groups of A early, and spills.
SHAPES = (
    *((mr, 16) for mr in range(1, 20)),
    *((mr, 32) for mr in range(1, 11)),
    *((mr, 48) for mr in range(1, 9)),
    *((mr, 64) for mr in range(1, 7)),
    *((mr, 96) for mr in range(1, 5)),
)

_ALL = [
    Microkernel(ISA, mr, nr, TYPES, product=PRODUCT, superseded_by=("vnni",)) for mr, nr in SHAPES
]
KERNELS = tuple(k for k in _ALL if k.registers + _PASSING <= ISA.vector_registers)
