"""fp32 micro-kernels for AVX-512 whose weights are stored in fewer bytes (`stored`).

For layers bound by memory, so of few rows. A conversion needs a register or two beside the block:
only blocks with eight registers left are offered.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.stored import stored_kernels

SHAPES = (
    *((1, nr) for nr in (16, 32, 48, 64, 96, 128)),
    *((2, nr) for nr in (16, 32, 48, 64, 96)),
    *((3, nr) for nr in (16, 32, 48, 64)),
    *((4, nr) for nr in (16, 32, 48, 64)),
    *((mr, 32) for mr in (5, 6, 7, 8, 9, 10)),
    *((mr, 16) for mr in (7, 8)),
)

KERNELS = stored_kernels(ISA, SHAPES)
