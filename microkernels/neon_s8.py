"""int32 = int8 x int8 for NEON with dot products: `sdot` multiplies four steps of k at once.

A group is a word of four elements, and `sdot v.4s, v.16b, v.4b[i]` takes one from a vector of A as
`fmla` takes an element: the budget and the shapes are those of `neon_f32`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware.neon import ISA
from tvm_blislike.microkernels.kernel import Microkernel, within_budget
from tvm_blislike.microkernels.neon_f32 import PANEL_SHAPES, SHAPES
from tvm_blislike.microkernels.neon_in_order import MultiplyAdd
from tvm_blislike.microkernels.neon_panels import panel_loop, streams
from tvm_blislike.microkernels.products import dot_by_words, words
from tvm_blislike.model.types import Types

_NAME = "blislike_sdot"
_DOT = "@llvm.aarch64.neon.sdot.v4i32.v16i8"
# The broadcast group stands last: LLVM folds it there only, and else makes a `dup` of each.
_SOURCE = f"""
declare <4 x i32> {_DOT}(<4 x i32>, <16 x i8>, <16 x i8>)
define linkonce_odr <4 x i32> @{_NAME}(<4 x i32> %c, <4 x i32> %a, <4 x i32> %b)
    alwaysinline nounwind {{
  %x = bitcast <4 x i32> %a to <16 x i8>
  %y = bitcast <4 x i32> %b to <16 x i8>
  %r = call <4 x i32> {_DOT}(<4 x i32> %c, <16 x i8> %y, <16 x i8> %x)
  ret <4 x i32> %r
}}
"""
# A word from memory alone would be broadcast by its load (`ld1r`), which takes a vector unit, too.
# As element 0 of a vector that LLVM knows nothing of it is multiplied by element: `ldr s`.
_ALONE = "blislike_word_alone"
_ALONE_SOURCE = f"""
define linkonce_odr i32 @{_ALONE}(i32 %word) alwaysinline nounwind {{
  %v = insertelement <4 x i32> zeroinitializer, i32 %word, i64 0
  %w = call <4 x i32> asm "", "=w,0"(<4 x i32> %v) memory(none)
  %r = extractelement <4 x i32> %w, i64 0
  ret i32 %r
}}
"""


def _load(elements: Any, groups: int) -> Any:
    found = words(elements, groups)
    return T.call_pure_extern("int32", _ALONE, found) if groups == 1 else found


_BY_WORDS = dot_by_words(4, _NAME, "int32x4", _SOURCE)
PRODUCT = replace(_BY_WORDS, load=_load, functions=(*_BY_WORDS.functions, (_ALONE, _ALONE_SOURCE)))
TYPES = Types("int8", "int8", "int32", "int32")

LOOP = panel_loop("neon_s8", MultiplyAdd("sdot v{c}.4s, v{b}.16b, v{a}.4b[{lane}]", "<4 x i32>"))
_ALL = [
    Microkernel(ISA, mr, nr, TYPES, ("dotprod",), PRODUCT, LOOP)
    for mr, nr in (*SHAPES, *PANEL_SHAPES)
]
KERNELS = within_budget([k for k in _ALL if not k.panels_only or streams(k.mr, k.nr)])
