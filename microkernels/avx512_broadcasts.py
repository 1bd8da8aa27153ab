"""Broadcasts of elements of A for AVX-512 that take no unit of arithmetic: `vpbroadcastd`.

On Zen 4 `vbroadcastss` with 512 bits takes a third of a multiply-add's time of units that compute,
`vpbroadcastd` none (benchmarks/results/precisions-zen4.txt). LLVM takes the first for what floats
are multiplied by, whatever the source says, so the second is assembly. Where conversions keep all
units busy, blocks of one row are 3 to 4 % faster with it.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from tvm_blislike.microkernels.products import Spread

_NAME = "blislike_broadcast_of_float"
_SOURCE = f"""
define linkonce_odr <16 x float> @{_NAME}(ptr %p) alwaysinline nounwind {{
  %r = call <16 x float> asm "vpbroadcastd $1, $0", "=v,*m"(ptr elementtype(i32) %p)
    memory(argmem: read)
  ret <16 x float> %r
}}
"""


def _load(elements: Any, groups: int) -> Any:
    if groups > 1:
        return elements
    return T.call_pure_extern("float32x16", _NAME, T.address_of(elements))


def _multiply_add(sums: Any, a: Any, b: Any, _lanes: int) -> Any:
    return sums + a * b


SPREAD = Spread(_load, _multiply_add, ((_NAME, _SOURCE),))
