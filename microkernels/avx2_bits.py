"""s32 = signs x signs for AVX2: bits are counted by a table of 16 counts, `vpshufb`.

AVX2 has no instruction that counts bits of vectors. The halves of each byte of the difference look
their counts up; their sum is a count by byte, and products with 1 add four bytes to a lane:
`vpmaddubsw` of counts up to 8 saturates nothing. In all ten instructions for 256 signs, beside
which the table and three constants take registers, and what passes by two more.
"""

from __future__ import annotations

from tvm_blislike.hardware.avx2 import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import differing_bits
from tvm_blislike.model.types import BITS

_NAME = "blislike_differing_bits_8"
_SUMS, _BYTES, _PAIRS = "<8 x i32>", "<32 x i8>", "<16 x i16>"
_COUNTS = ", ".join(f"i8 {n.bit_count()}" for n in (*range(16), *range(16)))
_SOURCE = f"""
declare {_BYTES} @llvm.x86.avx2.pshuf.b({_BYTES}, {_BYTES})
declare {_PAIRS} @llvm.x86.avx2.pmadd.ub.sw({_BYTES}, {_BYTES})
declare {_SUMS} @llvm.x86.avx2.pmadd.wd({_PAIRS}, {_PAIRS})
define linkonce_odr {_SUMS} @{_NAME}({_SUMS} %c, {_SUMS} %a, {_SUMS} %b) alwaysinline nounwind {{
  %x = xor {_SUMS} %a, %b
  %w = bitcast {_SUMS} %x to {_PAIRS}
  %s = lshr {_PAIRS} %w, splat (i16 4)
  %y = bitcast {_SUMS} %x to {_BYTES}
  %z = bitcast {_PAIRS} %s to {_BYTES}
  %l = and {_BYTES} %y, splat (i8 15)
  %h = and {_BYTES} %z, splat (i8 15)
  %m = call {_BYTES} @llvm.x86.avx2.pshuf.b({_BYTES} <{_COUNTS}>, {_BYTES} %l)
  %n = call {_BYTES} @llvm.x86.avx2.pshuf.b({_BYTES} <{_COUNTS}>, {_BYTES} %h)
  %t = add {_BYTES} %m, %n
  %u = call {_PAIRS} @llvm.x86.avx2.pmadd.ub.sw({_BYTES} %t, {_BYTES} splat (i8 1))
  %p = call {_SUMS} @llvm.x86.avx2.pmadd.wd({_PAIRS} %u, {_PAIRS} splat (i16 1))
  %r = call {_SUMS} asm "vpaddd $2, $1, $0", "=v,v,v"({_SUMS} %c, {_SUMS} %p) memory(none)
  ret {_SUMS} %r
}}
"""
PRODUCT = differing_bits(_NAME, 8, _SOURCE, instructions=10)
_CONSTANTS, _PASSING = 4, 2

SHAPES = (
    *((mr, 8) for mr in range(1, 9)),
    *((mr, 16) for mr in range(1, 5)),
    *((mr, 24) for mr in range(1, 3)),
    (1, 32),
)

_ALL = [Microkernel(ISA, mr, nr, BITS, product=PRODUCT) for mr, nr in SHAPES]
KERNELS = tuple(k for k in _ALL if k.registers + _CONSTANTS + _PASSING <= ISA.vector_registers)
