"""fp32 micro-kernels for AVX-512 whose weights are stored in fewer bytes (`stored`).

For layers bound by memory, so of few rows. A conversion needs a register or two beside the block:
only blocks with eight registers left are offered.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.avx512_broadcasts import SPREAD
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.stored import CONVERSIONS, by_tables, stored_kernels
from tvm_blislike.model.types import Types

SHAPES = (
    *((1, nr) for nr in (16, 32, 48, 64, 96, 128)),
    *((2, nr) for nr in (16, 32, 48, 64, 96)),
    *((3, nr) for nr in (16, 32, 48, 64)),
    *((4, nr) for nr in (16, 32, 48, 64)),
    *((mr, 32) for mr in (5, 6, 7, 8, 9, 10)),
    *((mr, 16) for mr in (7, 8)),
)

# Whole vectors of 64 bytes, converted by tables where a core has avx512_vbmi.
WIDE = (*((mr, 64) for mr in (1, 2, 3, 4)), (1, 128))
BY_TABLES = ("float8_e4m3fn", "float8_e5m2")

KERNELS = (
    *stored_kernels(
        ISA, SHAPES, [dtype for dtype in CONVERSIONS if dtype not in BY_TABLES], SPREAD
    ),
    *stored_kernels(ISA, [shape for shape in SHAPES if shape not in WIDE], BY_TABLES, SPREAD),
    *(
        Microkernel(ISA, mr, nr, Types.stored(dtype), ("vbmi",), by_tables(dtype, SPREAD))
        for dtype in BY_TABLES
        for mr, nr in WIDE
    ),
)
