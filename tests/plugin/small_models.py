"""Small models for the tests of the plugin, and one of them in numpy."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def make_model(nodes: list, inputs: list, outputs: list, weights: list) -> onnx.ModelProto:
    """Return a model that the engines of `bench` accept too (hence the older IR version)."""
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def float_input(name: str, shape: list) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def small_network(
    batch: int | str = 1, size: int | str = 8, names: tuple[str, str] = ("image", "scores")
) -> onnx.ModelProto:
    """Conv 3x3, ReLU, global average, Gemm: 3 channels in, 5 classes out."""
    image, scores = names
    rng = np.random.default_rng(0)
    weights = {
        "kernel": rng.standard_normal((8, 3, 3, 3)),
        "bias": rng.standard_normal(8),
        "matrix": rng.standard_normal((8, 5)),
    }
    nodes = [
        helper.make_node("Conv", [image, "kernel", "bias"], ["c"], "conv0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu0"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool0"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten0"),
        helper.make_node("Gemm", ["f", "matrix"], [scores], "gemm0"),
    ]
    return make_model(
        nodes,
        [float_input(image, [batch, 3, size, size])],
        [float_input(scores, [batch, 5])],
        [numpy_helper.from_array(w.astype("float32"), name) for name, w in weights.items()],
    )


def documented_network(batch: int | str = 1) -> onnx.ModelProto:
    """`small_network` with the names and sizes that commands of the documents give."""
    return small_network(batch, 12, ("input", "logits"))


def small_reference(image: np.ndarray) -> np.ndarray:
    """Compute `small_network` with numpy, shape (batch, 5)."""
    tensors = {t.name: numpy_helper.to_array(t) for t in small_network().graph.initializer}
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    conv = np.einsum("nchwyx,ocyx->nohw", windows, tensors["kernel"])
    active = np.maximum(conv + tensors["bias"][:, None, None], 0)
    return active.mean((2, 3)) @ tensors["matrix"]


def two_convolutions(batch: int = 1) -> onnx.ModelProto:
    """Conv 3x3 of stride 2, ReLU, Conv 1x1: 3 channels to 16 to 24."""
    rng = np.random.default_rng(2)
    weights = {"first": rng.standard_normal((16, 3, 3, 3)), "bias": rng.standard_normal(16)}
    weights["second"] = rng.standard_normal((24, 16, 1, 1)) / 4
    nodes = [
        helper.make_node("Conv", ["image", "first", "bias"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "second"], ["out"]),
    ]
    return make_model(
        nodes,
        [float_input("image", [batch, 3, 15, 17])],
        [float_input("out", [batch, 24, 8, 9])],
        [numpy_helper.from_array(w.astype("float32"), name) for name, w in weights.items()],
    )
