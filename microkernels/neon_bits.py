"""s32 = signs x signs for NEON: `eor`, `cnt`, and sums of the counts of four bytes.

`cnt` counts by byte. Where there are dot products, LLVM adds the bytes of a lane to the sums by
`udot` with ones, three instructions for 128 signs; elsewhere by `uaddlp` and `uadalp`, four. Words
of A come from vectors of A, broadcast by a `dup` that all vectors of a row share. Blocks are small,
since a product takes long beside its loads: half of the registers hold them with vectors along k of
each row of A (`spills.in_doubt`), and what passes by has the other half.
"""

from __future__ import annotations

from tvm_blislike.hardware.neon import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import differing_bits
from tvm_blislike.model.types import BITS

_NAME = "blislike_differing_bits_4"
_SUMS = "<4 x i32>"
_SOURCE = f"""
declare {_SUMS} @llvm.ctpop.v4i32({_SUMS})
define linkonce_odr {_SUMS} @{_NAME}({_SUMS} %c, {_SUMS} %a, {_SUMS} %b) alwaysinline nounwind {{
  %x = xor {_SUMS} %a, %b
  %p = call {_SUMS} @llvm.ctpop.v4i32({_SUMS} %x)
  %r = add {_SUMS} %c, %p
  ret {_SUMS} %r
}}
"""
PRODUCT = differing_bits(_NAME, 4, _SOURCE, instructions=4)

SHAPES = (
    *((mr, 4) for mr in range(1, 8)),
    *((mr, 8) for mr in range(1, 5)),
    *((mr, 12) for mr in range(1, 4)),
    *((mr, 16) for mr in range(1, 3)),
    *((1, nr) for nr in (20, 24, 28)),
)

_ALL = [Microkernel(ISA, mr, nr, BITS, product=PRODUCT) for mr, nr in SHAPES]
KERNELS = tuple(
    k for k in _ALL if 2 * max(k.registers, k.registers_in_place) <= ISA.vector_registers
)
