"""Operators that are converted otherwise than by TVM's importer, or that it does not know."""

from __future__ import annotations

from collections.abc import Mapping

from tvm_blislike.onnx import few_bits, impossible, recurrent
from tvm_blislike.onnx.dynamic_steps import dynamic_quantize
from tvm_blislike.onnx.operator_sets import IMPOSSIBLE
from tvm_blislike.onnx.pads import pad
from tvm_blislike.onnx.products import cum_prod
from tvm_blislike.tvm_seams.importer import Convert

CONVERTERS: Mapping[str, Convert] = {
    "CumProd": cum_prod,
    "DynamicQuantizeLinear": dynamic_quantize,
    "MatMulNBits": few_bits.matmul,
    "Pad": pad,
    IMPOSSIBLE: impossible.convert,
    **recurrent.CONVERTERS,
}
