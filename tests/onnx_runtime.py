"""Sessions of ONNX Runtime whose results are a reference on any machine."""

from __future__ import annotations

import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelError

_Levels = onnxruntime.GraphOptimizationLevel
# ONNX Runtime multiplies u8 by s8 with vpmaddubsw on x86 without VNNI, whose sums of two products
# saturate at 16 bits, unless this entry lets its optimizations of the second level turn weights to
# unsigned ones. Products of s8 by s8 are exact as they are, and have no kernel when so turned.
_UNSIGNED_WEIGHTS = "session.x64quantprecision", "1"
_OF_INTEGERS = {
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "QGemm",
    "QLinearConv",
    "QLinearMatMul",
}


def exact_session(model: onnx.ModelProto, optimized: bool = False) -> onnxruntime.InferenceSession:
    """Return a session of one thread of a model whose integer products are exact.

    Parameters
    ----------
    model : onnx.ModelProto
    optimized : bool
        By default nodes are computed as they are written, one by one, but for those of integers.
    """
    level = _Levels.ORT_ENABLE_ALL if optimized else _Levels.ORT_DISABLE_ALL
    if any(node.op_type in _OF_INTEGERS for node in model.graph.node):
        options = _options(level if optimized else _Levels.ORT_ENABLE_EXTENDED)
        options.add_session_config_entry(*_UNSIGNED_WEIGHTS)
        try:
            return _session(model, options)
        except NoKernelError:
            pass
    return _session(model, _options(level))


def _options(level: onnxruntime.GraphOptimizationLevel) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = level
    return options


def _session(
    model: onnx.ModelProto, options: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
