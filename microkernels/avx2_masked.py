"""s32 = u8 x s8 for AVX2: `vpmaddubsw` of magnitudes of B, exact (`masks`), four steps of k a time.

Its sums of two products have 16 bits and saturate nothing, as `masks` proves; `vpmaddwd` by ones
adds them to those of four, `vpaddd` these to C. As many instructions for 32 products as `avx2_s16`
has for 32, but half of the broadcasts, and bytes where activations of that one have 16 bits: on
Zen 4 up to a tenth more products a second with all in L1, and half of the images' traffic.

`vpsignb` in the place of the exclusive or takes -128 for its own opposite, and is slower. Where a
row of B is one vector, its masks are loaded to a register. Of wider rows each exclusive or reads
them from memory, in assembly, as LLVM would keep them: blocks of several vectors need fewer
broadcasts, and have no register left. The ones take one, a byte that is turned around another.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware.avx2 import ISA
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.masks import KS
from tvm_blislike.microkernels.products import Product, words
from tvm_blislike.model.types import MASKED

_LANES = 8
_SUMS, _PAIRS, _BYTES = "<8 x i32>", "<16 x i16>", "<32 x i8>"
# In assembly, since LLVM reads a constant anew from memory, in k loops as well, to have its
# register for what is used around them: 5x16 blocks of a 3x3 layer took 1.18 of the time then. All
# bits of each half of a word, and then the last one.
_ONES = r"vpcmpeqd $0, $0, $0\0A\09vpsrlw $$15, $0, $0"
# Of assembly: what stands behind it may be moved out of a loop.
_PURE = "nounwind willreturn memory(none)"
# Half of a row's 16-bit elements, of a vector of sums: magnitudes, and then masks.
_HALF = _LANES * KS // 2


def _masked(name: str, kind: str, turned: str) -> tuple[str, str]:
    """Return a function of LLVM (sums, bytes of A, magnitudes, masks) and its name.

    Parameters
    ----------
    kind : str
        LLVM's type of masks.
    turned : str
        What the bytes of A are with them.
    """
    source = f"""
declare {_PAIRS} @llvm.x86.avx2.pmadd.ub.sw({_BYTES}, {_BYTES})
declare {_SUMS} @llvm.x86.avx2.pmadd.wd({_PAIRS}, {_PAIRS})
define linkonce_odr {_SUMS} @{name}({_SUMS} %c, {_SUMS} %a, {_SUMS} %b, {kind} %m)
    alwaysinline nounwind {{
  %s = {turned}
  %x = bitcast {_SUMS} %s to {_BYTES}
  %w = bitcast {_SUMS} %b to {_BYTES}
  %u = call {_PAIRS} @llvm.x86.avx2.pmadd.ub.sw({_BYTES} %w, {_BYTES} %x)
  %ones = call {_PAIRS} asm "{_ONES}", "=x"() {_PURE}
  %p = call {_SUMS} @llvm.x86.avx2.pmadd.wd({_PAIRS} %u, {_PAIRS} %ones)
  %r = call {_SUMS} asm "vpaddd $2, $1, $0", "=v,v,v"({_SUMS} %c, {_SUMS} %p) {_PURE}
  ret {_SUMS} %r
}}
"""
    return name, source


_IN_REGISTERS = _masked("blislike_dot_of_masked", _SUMS, f"xor {_SUMS} %a, %m")
_IN_MEMORY = _masked(
    "blislike_dot_of_masked_in_memory",
    "ptr",
    f'call {_SUMS} asm "vpxor $1, $2, $0", "=v,*m,v"'
    f"(ptr elementtype({_SUMS}) %m, {_SUMS} %a) nounwind willreturn memory(argmem: read)",
)


def _product(function: tuple[str, str], masks: Any, **others: Any) -> Product:
    """Return the product by a function; `masks` is how those behind a load lie."""

    def load(elements: Any, groups: int) -> Any:
        if groups == 1:
            return words(elements, 1)
        first = elements.indices[-1].base
        return words(_half(elements, first), groups), masks(elements, first + _HALF)

    def multiply_add(c: Any, a: Any, b: tuple[Any, Any], lanes: int) -> Any:
        return T.call_pure_extern(f"int32x{lanes}", function[0], c, T.broadcast(a, lanes), *b)

    named = {"group_type": "int32", "functions": (function,), **others}
    return Product(KS, load, multiply_add, instructions=4, folds_a=False, **named)


def _half(elements: Any, first: Any) -> Any:
    """Return the load of the elements of half a row from `first` on."""
    return tirx.BufferLoad(elements.source, [*elements.indices[:-1], T.ramp(first, 1, _HALF)])


def _loaded(elements: Any, first: Any) -> Any:
    return words(_half(elements, first), _LANES)


def _address(elements: Any, first: Any) -> Any:
    return T.address_of(tirx.BufferLoad(elements.source, [*elements.indices[:-1], first]))


PRODUCT = _product(_IN_REGISTERS, _loaded, b_vectors=2)
OF_MEMORY = _product(_IN_MEMORY, _address, folded_b=1)
# The ones, and what passes.
_MORE = 2

# Not offered: 5x8 to 11x8. A broadcast of theirs serves one product, of wider blocks two or three:
# 7x8 to 10x8 take 1.02 to 1.04 times as long as 5x16 (Zen 4). Nor 2x32, which LLVM 22 spills.
SHAPES = (
    *((mr, 8) for mr in range(1, 5)),
    *((mr, 16) for mr in range(1, 6)),
    *((mr, 24) for mr in range(1, 4)),
    (1, 32),
)

_ALL = [
    Microkernel(
        ISA, mr, nr, MASKED, (), OF_MEMORY if nr > _LANES else PRODUCT, superseded_by=("avxvnni",)
    )
    for mr, nr in SHAPES
]
KERNELS = tuple(k for k in _ALL if k.registers + _MORE <= ISA.vector_registers)
