"""f32 = bf16 x bf16 for cores with tile registers: `tdpbf16ps` multiplies 16 x 32 by 32 x 16.

Blocks are those of `amx_u8s8`; a group of k is two elements instead of four. The unit flushes
denormal factors and sums to zero and rounds to nearest, whatever the process has set.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels import avx512_bf16
from tvm_blislike.microkernels.amx_u8s8 import SHAPES
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import Product
from tvm_blislike.microkernels.tile_loops import TileLoop
from tvm_blislike.model.types import BFLOAT_DOT

# 256 sums of 32 products in 16 cycles, where as many vectors of `vdpbf16ps` take 128 at two a
# cycle, and 256 where one starts a cycle.
_WORD = avx512_bf16.PRODUCT
PRODUCT = Product(2, _WORD.load, _WORD.multiply_add, instructions=1 / 8, folds_a=False)
LOOP = TileLoop("bf16", "tdpbf16ps")

KERNELS = tuple(
    Microkernel(ISA, mr, nr, BFLOAT_DOT, ("amx_tile", "amx_bf16"), PRODUCT, tiles=LOOP)
    for mr, nr in SHAPES
)
