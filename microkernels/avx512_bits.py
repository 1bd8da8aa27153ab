"""s32 = signs x signs for AVX-512 with VPOPCNTDQ: `vpxord`, `vpopcntd`, `vpaddd` of 512 of them.

A word is 32 signs along k (`model.types.BITS`): a lane counts those in which a word of A and one of
B differ. Words of A are broadcast from memory, for blocks of one vector by `vpxord` itself. The
addition is assembly, since LLVM would add the counts of several steps of k to each other first, and
keep them in registers that the block needs. Only the addition waits for the one before it, one
cycle. Three instructions a product leave time for more loads than those of other types: blocks need
no more than three quarters of the registers, which LLVM never spills, and counts on their way pass
through the others.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx512 import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import differing_bits
from tvm_blislike.model.types import BITS

_NAME = "blislike_differing_bits_16"
_SUMS = "<16 x i32>"
_SOURCE = f"""
declare {_SUMS} @llvm.ctpop.v16i32({_SUMS})
define linkonce_odr {_SUMS} @{_NAME}({_SUMS} %c, {_SUMS} %a, {_SUMS} %b) alwaysinline nounwind {{
  %x = xor {_SUMS} %a, %b
  %p = call {_SUMS} @llvm.ctpop.v16i32({_SUMS} %x)
  %r = call {_SUMS} asm "vpaddd $2, $1, $0", "=v,v,v"({_SUMS} %c, {_SUMS} %p) memory(none)
  ret {_SUMS} %r
}}
"""
PRODUCT = differing_bits(_NAME, 16, _SOURCE, instructions=3)

# Not offered: more rows of one vector. A word is loaded for each product then, and stores go to as
# many rows of C (22x16 reached 0.91 of the peak where 10x32 and 4x64 did 0.97, Zen 4).
SHAPES = (
    *((mr, 16) for mr in range(1, 9)),
    *((mr, 32) for mr in range(1, 11)),
    *((mr, 48) for mr in range(1, 7)),
    *((mr, 64) for mr in range(1, 5)),
    *((mr, 96) for mr in range(1, 3)),
    (1, 128),
)

_ALL = [Microkernel(ISA, mr, nr, BITS, ("vpopcntdq",), PRODUCT) for mr, nr in SHAPES]
KERNELS = tuple(k for k in _ALL if 4 * k.registers <= 3 * ISA.vector_registers)
