"""s32 = u8 x s8 for cores with tile registers: `tdpbusd` multiplies 16 x 64 by 64 x 16 bytes.

A block is two tiles tall and two wide, so that each tile that is loaded is used twice, or four by
one. Rows of tiles need not be 16: a product takes a cycle a row down to about nine of them
(`tile_loops`), so blocks of 2 x 14 rows lose little on images of 14 or 28 pixels.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import Product, dot_of_bytes
from tvm_blislike.microkernels.tile_loops import TileLoop
from tvm_blislike.model.types import Types

# 256 sums of 64 products in 16 cycles, where as many vectors of `vpdpbusd` take 128.
_WORD = dot_of_bytes("llvm.x86.avx512.vpdpbusd.512", lanes=16)
PRODUCT = Product(4, _WORD.load, _WORD.multiply_add, instructions=1 / 8, folds_a=False)
TYPES = Types("uint8", "int8", "int32", "int32")
LOOP = TileLoop("u8s8", "tdpbusd")

# Two tiles by two, and four by one, for images of 7 and 8 pixels.
SHAPES = (*((mr, 32) for mr in range(18, 33, 2)), *((mr, 16) for mr in range(28, 65, 4)))
KERNELS = tuple(
    Microkernel(ISA, mr, nr, TYPES, ("amx_tile", "amx_int8"), PRODUCT, tiles=LOOP)
    for mr, nr in SHAPES
)
