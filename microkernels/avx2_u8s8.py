"""s32 = u8 x s8 for AVX2 with AVX-VNNI: `vpdpbusd` multiplies four steps of k at once.

As `avx512_u8s8` in sixteen registers of 8 lanes: a group of A is a word of four bytes, broadcast
from memory to a register. The instruction takes five cycles and starts twice a cycle, so ten
accumulators are the least that keep it busy.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx2 import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget
from tvm_blislike.microkernels.products import dot_of_bytes
from tvm_blislike.model.types import BYTES

PRODUCT = dot_of_bytes("llvm.x86.avx512.vpdpbusd.256", lanes=8)

SHAPES = (
    *((mr, 8) for mr in range(1, 15)),
    *((mr, 16) for mr in range(1, 7)),
    *((mr, 24) for mr in range(1, 5)),
    *((mr, 32) for mr in range(1, 3)),
    (1, 48),
    (1, 56),
)

KERNELS = within_budget(
    [Microkernel(ISA, mr, nr, BYTES, ("avxvnni",), PRODUCT) for mr, nr in SHAPES]
)
