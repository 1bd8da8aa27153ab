"""Whole networks of quantized operators, as ONNX Runtime's quantizer writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from rewrites import Arrays, computed, runtime, several_nodes
from test_quantized_layers import call_types

ALL_OF_THEM = frozenset(
    """
    QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool
    QLinearLeakyRelu QLinearMul QLinearSigmoid
    """.split()
)


def mixed_network() -> onnx.ModelProto:
    """Return a network with an operator of each kind between two convolutions."""
    rng = np.random.default_rng(31)
    weights = {
        "first": rng.standard_normal((16, 3, 3, 3)) / 5,
        "second": rng.standard_normal((8, 32, 1, 1)) / 6,
        "matrix": rng.standard_normal((10, 8)) / 3,
        "bias": rng.standard_normal(10),
    }
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], "a", pads=[1] * 4),
        helper.make_node("LeakyRelu", ["a"], ["b"], "b"),
        helper.make_node("Concat", ["a", "b"], ["c"], "c", axis=1),
        helper.make_node("AveragePool", ["c"], ["d"], "d", kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("Sigmoid", ["d"], ["e"], "e"),
        helper.make_node("Mul", ["d", "e"], ["f"], "f"),
        helper.make_node("Conv", ["f", "second"], ["g"], "g"),
        helper.make_node("Add", ["g", "g"], ["h"], "h"),
        helper.make_node("GlobalAveragePool", ["h"], ["i"], "i"),
        helper.make_node("Flatten", ["i"], ["j"], "j"),
        helper.make_node("Gemm", ["j", "matrix", "bias"], ["y"], "y", transB=1),
    ]
    x = np.zeros((1, 3, 9, 9), "float32")
    model = several_nodes(
        nodes, {"x": x}, {n: w.astype("float32") for n, w in weights.items()}, opset=17
    )
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 10]))
    return model


class Samples(CalibrationDataReader):
    def __init__(self, samples: list[np.ndarray]) -> None:
        self.left = list(samples)

    def get_next(self) -> Arrays | None:
        return {"x": self.left.pop()} if self.left else None


@pytest.mark.parametrize("by_channel", [False, True])
def test_networks_of_the_quantizer(by_channel: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(37)
    x, *samples = rng.standard_normal((5, 1, 3, 9, 9)).astype("float32")
    path = tmp_path / "quantized.onnx"
    quantize_static(
        mixed_network(),
        path,
        Samples(samples),
        quant_format=QuantFormat.QOperator,
        per_channel=by_channel,
    )
    model = onnx.load(path)
    assert {node.op_type for node in model.graph.node} >= ALL_OF_THEM
    (step,) = (numpy_helper.to_array(i) for i in model.graph.initializer if i.name == "y_scale")
    ours, theirs = computed(model, x), runtime(model, x)
    assert np.abs(ours - theirs).max() <= 1.01 * step
    assert call_types(model).count(("nn.conv2d", "int32")) == 2
