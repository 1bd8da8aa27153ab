"""fp16 micro-kernels for AVX-512 with avx512_fp16: 32 lanes, A broadcast from memory.

The budget is that of `avx512_f32` with vectors of twice the elements; {1to32} folds as {1to16}
does. Products and sums are fp16, so errors grow with k, and algorithms widen sums in between
(`cost_models.data_types`).
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget
from tvm_blislike.model.types import Types

# Not offered: 14x64. LLVM 22 spills eight times in four steps of packed panels.
SHAPES = (
    *((mr, 32) for mr in range(1, 30)),
    *((mr, 64) for mr in range(1, 14)),
    *((mr, 96) for mr in range(1, 9)),
    *((mr, 128) for mr in range(1, 7)),
)

KERNELS = within_budget(
    [Microkernel(ISA, mr, nr, Types.of("float16"), ("fp16",)) for mr, nr in SHAPES]
)
