"""Nodes that TVM's ONNX importer misreads, written as others that it reads right.

`REWRITES` says for an operator what to do; the rest of a model stays as it is. What cannot be
written otherwise is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_blislike.onnx_rewrites import arithmetic, pooling, resize, selection
from tvm_blislike.onnx_rewrites.site import Site

# Takes the place of a node: returns the tensors that stand for its results, None to leave it.
Rewrite = Callable[[Site], Sequence[str] | None]

REWRITES: dict[str, Rewrite] = {
    "AveragePool": pooling.average_pool,
    "LpPool": pooling.lp_pool,
    "MaxPool": pooling.max_pool,
    "Mod": arithmetic.remainder,
    "NonMaxSuppression": selection.non_max_suppression,
    "OneHot": selection.one_hot,
    "Pow": arithmetic.power,
    "Resize": resize.resize,
    "TopK": selection.top_k,
    "Unique": selection.unique,
    "Upsample": resize.upsample,
}
