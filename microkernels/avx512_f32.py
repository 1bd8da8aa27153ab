"""fp32 micro-kernels for AVX-512: 32 registers of 16 lanes, A broadcast from memory.

Budget: mr * nr / 16 accumulators + nr / 16 for a row of B + 1 for A <= 32 (no A register when
nr = 16: the broadcast folds into the FMA as {1to16}). Two FMAs a cycle with a latency of four
need at least eight accumulators; below that a k step takes four cycles whatever it computes.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget

# Ordered by nr, then mr. Tall blocks of one vector reuse B most and suit wide rows; 14x32 and
# 8x48 have few loads per FMA (0.57 and 0.46); wide and low blocks are for matrices of few
# rows (fully connected layers, 7x7 images).
# Not offered: 30x16 and 31x16 need every register and LLVM 22 spills one accumulator; 9x48, with
# one register to spare, too (4 stack accesses in 108 FMAs).
SHAPES = (
    *((mr, 16) for mr in range(1, 30)),
    *((mr, 32) for mr in range(1, 15)),
    *((mr, 48) for mr in range(1, 9)),
    *((mr, 64) for mr in range(1, 7)),
    *((mr, 96) for mr in range(1, 5)),
    *((mr, 128) for mr in range(1, 3)),
)

KERNELS = within_budget([Microkernel(ISA, mr, nr) for mr, nr in SHAPES])
