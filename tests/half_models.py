"""ONNX models in half precision."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose inputs, weights and outputs are float16 instead of float32."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    for weight in half.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(weight).astype(np.float16)
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    del half.graph.value_info[:]
    for value in (*half.graph.input, *half.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return half
