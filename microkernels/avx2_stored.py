"""fp32 micro-kernels for AVX2 whose weights are stored in fewer bytes (`stored`).

For layers bound by memory, so of few rows. A conversion needs a register or two beside the block:
only blocks with four registers left are offered. F16C converts fp16.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx2 import ISA
from tvm_blislike.microkernels.stored import stored_kernels

SHAPES = (
    *((1, nr) for nr in (8, 16, 24, 32)),
    *((2, nr) for nr in (8, 16, 24)),
    *((mr, 16) for mr in (3, 4)),
    *((mr, 8) for mr in (3, 4, 6)),
)

KERNELS = stored_kernels(ISA, SHAPES)
