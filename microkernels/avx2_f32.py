"""fp32 micro-kernels for AVX2 with FMA3: 16 registers of 8 lanes, A broadcast from memory.

Budget: mr * nr / 8 accumulators + nr / 8 for a row of B + 1 for A <= 16 (A folds away only on
AVX-512; here a broadcast always takes its register). Two FMAs a cycle with a latency of four or
five want ten accumulators; 6x16 (twelve) is the classic choice of BLIS on Haswell and Zen.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx2 import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget

# Not offered: 9x8 to 13x8. LLVM 22 keeps the B vectors of four k steps in registers beside the
# block, and spills.
SHAPES = (
    *((mr, 8) for mr in range(1, 9)),
    *((mr, 16) for mr in range(1, 7)),
    *((mr, 24) for mr in range(1, 5)),
    *((mr, 32) for mr in range(1, 3)),
    (1, 48),
    (1, 56),
)

KERNELS = within_budget([Microkernel(ISA, mr, nr) for mr, nr in SHAPES])
