"""fp16 micro-kernels for NEON with `+fullfp16` (Cortex-A55, A76, Neoverse N1): 8 lanes.

The budget is that of `neon_f32` with vectors of twice the elements; products and sums are fp16, so
errors grow with k (2^-11 per addition), and algorithms widen sums in between
(`cost_models.data_types`). `fmla v.8h, v.8h, v.h[i]` takes its element from the lower sixteen
registers only.
"""

from __future__ import annotations

from tvm_blislike.hardware.neon import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget
from tvm_blislike.model.types import Types

SHAPES = (
    # From 8x8 on LLVM 22 spills where A is read in place: it has sixteen registers for that A.
    *((mr, 8) for mr in range(1, 8)),
    *((mr, 16) for mr in range(1, 13)),
    *((mr, 24) for mr in range(1, 9)),
    *((mr, 32) for mr in range(1, 7)),
)

KERNELS = within_budget(
    [Microkernel(ISA, mr, nr, Types.of("float16"), ("fp16",)) for mr, nr in SHAPES]
)
