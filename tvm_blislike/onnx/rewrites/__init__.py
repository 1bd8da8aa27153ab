"""Nodes that TVM's ONNX importer misreads, written as others that it reads right.

`REWRITES` says for an operator what to do; the rest of a model stays as it is. What cannot be
written otherwise is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm_blislike.onnx.rewrites import (
    convolution,
    einsum,
    elementwise,
    grids,
    indexing,
    normalization,
    pooling,
    quantization,
    reductions,
    regions,
    resize,
    shapes,
)
from tvm_blislike.onnx.rewrites.site import Site

# Takes the place of a node: returns the tensors that stand for its results, None to leave it.
Rewrite = Callable[[Site], Sequence[str] | None]

REWRITES: dict[str, Rewrite] = {
    "Acos": elementwise.in_single,
    "Acosh": elementwise.in_single,
    "AffineGrid": grids.affine_grid,
    "ArgMax": indexing.arg_reduce,
    "ArgMin": indexing.arg_reduce,
    "Asin": elementwise.in_single,
    "Asinh": elementwise.in_single,
    "Atan": elementwise.in_single,
    "AveragePool": pooling.average_pool,
    "Clip": elementwise.clip,
    "Compress": indexing.compress,
    "ConvTranspose": convolution.conv_transpose,
    "Cosh": elementwise.hyperbolic,
    "Dropout": elementwise.dropout,
    "DynamicQuantizeLinear": quantization.dynamic_quantize,
    "Einsum": einsum.einsum,
    "Elu": elementwise.elu,
    "EyeLike": elementwise.eye_like,
    "IsInf": elementwise.is_inf,
    "Gather": indexing.gather,
    "GatherElements": indexing.gather_elements,
    "GridSample": elementwise.in_single,
    "Hardmax": shapes.hardmax,
    "LRN": elementwise.in_single,
    "LayerNormalization": normalization.layer_norm,
    "LpPool": pooling.lp_pool,
    "MaxPool": pooling.max_pool,
    "Mean": elementwise.mean,
    "MeanVarianceNormalization": elementwise.in_single,
    "Mod": elementwise.mod,
    "NonMaxSuppression": indexing.suppression,
    "OneHot": indexing.one_hot,
    "Pow": elementwise.pow_,
    "RMSNormalization": normalization.rms_norm,
    "ReduceL1": reductions.reduce_nothing,
    "ReduceL2": reductions.reduce_nothing,
    "ReduceLogSum": reductions.reduce_nothing,
    "ReduceLogSumExp": reductions.log_sum_exp,
    "ReduceMax": reductions.reduce_nothing,
    "ReduceMean": reductions.reduce_nothing,
    "ReduceMin": reductions.reduce_nothing,
    "ReduceProd": reductions.reduce_nothing,
    "ReduceSum": reductions.reduce_nothing,
    "ReduceSumSquare": reductions.reduce_nothing,
    "RoiAlign": regions.roi_align,
    "Resize": resize.resize,
    "Scatter": indexing.scatter_elements,
    "ScatterElements": indexing.scatter_elements,
    "Selu": elementwise.elu,
    "Sinh": elementwise.hyperbolic,
    "Slice": indexing.slice_,
    "Split": indexing.split,
    "ThresholdedRelu": elementwise.thresholded_relu,
    "TopK": indexing.top_k,
    "Unique": indexing.unique,
    "Unsqueeze": shapes.unsqueeze,
    "Upsample": resize.upsample,
}
