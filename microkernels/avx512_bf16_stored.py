"""f32 = bf16 x fp8 for AVX-512 with avx512_bf16 and avx512_vbmi, bound by memory.

B lies in memory in 8 bits, as codes of which a lookup and a mask make pairs of bfloat16
(`byte_codes`), exactly. A vector of 64 bytes takes four instructions for two vectors of pairs,
where one of fp32 takes nine for four, and half as many products for each row. For rows of fp32 in
two parts (`passes.brain_parts`), so blocks have an even number of rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels import byte_codes
from tvm_blislike.microkernels.avx512_bf16 import PRODUCT
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import Product
from tvm_blislike.model.types import Types

# Two vectors of sums share a load of B. Not offered: 2x96 and 2x128, which take 1.02 times as long
# as 2x64 on Zen 4.
SHAPES = (*((mr, 32) for mr in (2, 4, 6, 8)), (2, 64), (4, 64))


def _product(dtype: str) -> Product:
    return replace(
        PRODUCT,
        functions=(*PRODUCT.functions, *byte_codes.functions(dtype)),
        conversion=byte_codes.INSTRUCTIONS,
        joined=byte_codes.PAIRS,
        part=partial(byte_codes.pairs, dtype),
    )


KERNELS = tuple(
    Microkernel(ISA, mr, nr, Types.brain_by(dtype), ("bf16", "vbmi"), _product(dtype))
    for dtype in byte_codes.DTYPES
    for mr, nr in SHAPES
)
