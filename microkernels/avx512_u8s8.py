"""s32 = u8 x s8 for AVX-512 with avx512_vnni: `vpdpbusd` multiplies four steps of k at once.

A group of A is a word of four bytes, broadcast from memory; a row of B holds such words. The
instruction takes its signed factor from memory, but not the unsigned one: a broadcast always has a
register. Otherwise the budget is that of `avx512_f32`. Sums of four products are exact, and wrap
around as all sums of 32 bits do.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget
from tvm_blislike.microkernels.products import dot_of_bytes
from tvm_blislike.model.types import BYTES

PRODUCT = dot_of_bytes("llvm.x86.avx512.vpdpbusd.512", lanes=16)

# Not offered: 28x16, 29x16 and 9x48, which LLVM 22 spills on some core.
SHAPES = (
    *((mr, 16) for mr in range(1, 28)),
    *((mr, 32) for mr in range(1, 15)),
    *((mr, 48) for mr in range(1, 9)),
    *((mr, 64) for mr in range(1, 7)),
    *((mr, 96) for mr in range(1, 5)),
    *((mr, 128) for mr in range(1, 3)),
)

KERNELS = within_budget([Microkernel(ISA, mr, nr, BYTES, ("vnni",), PRODUCT) for mr, nr in SHAPES])
