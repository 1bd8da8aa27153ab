"""f32 = bf16 x bf16 for AVX-512 with avx512_bf16: `vdpbf16ps` multiplies two steps of k at once.

A group of A is a word of two elements, broadcast from memory; a row of B holds such words. The
budget is that of `avx512_f32`. On Zen 5 the instruction takes six cycles and starts twice a cycle,
so twelve accumulators are the least that keep it busy; Emerald Rapids starts one in two cycles
(`Core.bf16_per_cycle`), which is half of what FMAs of fp32 compute. 15x32 and 7x64 spill.

TVM turns vectors of bfloat16 into others before LLVM sees them: the product is a function of LLVM
on words of 32 bits.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget
from tvm_blislike.microkernels.products import dot_by_words
from tvm_blislike.model.types import BFLOAT_DOT

_NAME = "blislike_dpbf16ps"
_DOT = "@llvm.x86.avx512bf16.dpbf16ps.512"
_SOURCE = f"""
declare <16 x float> {_DOT}(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define linkonce_odr <16 x float> @{_NAME}(<16 x float> %c, <16 x i32> %a, <16 x i32> %b)
    alwaysinline nounwind {{
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> {_DOT}(
    <16 x float> %c, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}}
"""
PRODUCT = replace(dot_by_words(2, _NAME, "float32x16", _SOURCE), is_bfloat16=True)

SHAPES = (
    *((mr, 16) for mr in range(1, 25)),
    *((mr, 32) for mr in range(1, 15)),
    *((mr, 48) for mr in range(1, 9)),
    *((mr, 64) for mr in range(1, 7)),
    *((mr, 96) for mr in range(1, 5)),
)

KERNELS = within_budget(
    [Microkernel(ISA, mr, nr, BFLOAT_DOT, ("bf16",), PRODUCT) for mr, nr in SHAPES]
)
