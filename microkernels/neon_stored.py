"""fp32 micro-kernels for NEON whose weights are stored in fewer bytes (`stored`).

For layers bound by memory, so of few rows. Only blocks that leave half of the registers free are
offered, also with a vector along k of every row of A. `fcvtl` of ARMv8.0 converts fp16.
"""

from __future__ import annotations

from tvm_blislike.hardware.neon import ISA
from tvm_blislike.microkernels.stored import stored_kernels

SHAPES = (
    *((1, nr) for nr in (4, 8, 12, 16)),
    *((2, nr) for nr in (4, 8, 12)),
    *((3, nr) for nr in (4, 8, 12)),
    *((4, nr) for nr in (4, 8)),
)

KERNELS = stored_kernels(ISA, SHAPES)
