"""ONNX models of one convolution of any kind, and what ONNX Runtime computes with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tvm_blislike


@dataclass(frozen=True)
class Layer:
    """A `Conv` or `ConvTranspose`; sizes per spatial axis, `pads` as ONNX has them."""

    operator: str
    ci: int
    co: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pads: tuple[int, ...]
    dilation: tuple[int, ...]
    out_pad: tuple[int, ...] = ()
    groups: int = 1
    batch: int = 1
    constant: bool = True
    relu: bool = False

    @property
    def weights_shape(self) -> tuple[int, ...]:
        if self.operator == "Conv":
            return (self.co, self.ci // self.groups, *self.kernel)
        return (self.ci, self.co // self.groups, *self.kernel)

    def model(self) -> onnx.ModelProto:
        attributes = {"strides": self.stride, "pads": self.pads, "dilations": self.dilation}
        attributes |= {"group": self.groups}
        if self.out_pad:
            attributes["output_padding"] = self.out_pad
        nodes = [helper.make_node(self.operator, ["x", "w", "b"], ["y"], **attributes)]
        if self.relu:
            nodes[0].output[0] = "before"
            nodes.append(helper.make_node("Relu", ["before"], ["y"]))
        data = self.arrays()
        constants = ("w", "b") if self.constant else ("b",)
        graph = helper.make_graph(
            nodes,
            "layer",
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
                for name, array in data.items()
                if name not in constants
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(data[name], name) for name in constants],
        )
        opsets = [helper.make_opsetid("", 17)]
        plain = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return onnx.shape_inference.infer_shapes(plain)

    def arrays(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(7)
        depth = math.prod(self.weights_shape[1:])
        weights = rng.standard_normal(self.weights_shape, dtype=np.float32)
        return {
            "x": rng.standard_normal((self.batch, self.ci, *self.size), dtype=np.float32),
            "w": weights / np.float32(math.sqrt(depth)),
            "b": rng.standard_normal(self.co, dtype=np.float32),
        }


def compiled_and_checked(layer: Layer, threads: int = 1) -> tvm_blislike.CompiledModel:
    """Compile a layer and compare its result with ONNX Runtime's."""
    model, arrays = layer.model(), layer.arrays()
    feeds = {value.name: arrays[value.name] for value in model.graph.input}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    compiled = tvm_blislike.compile(model, threads=threads)
    actual = compiled.run(feeds)["y"]
    assert actual.shape == expected.shape
    error = np.abs(actual - expected).max(initial=0) / max(np.abs(expected).max(initial=0), 1)
    assert error <= 2e-5
    return compiled


def implementations(compiled: tvm_blislike.CompiledModel) -> list[str]:
    """The convolutions' implementations; fails when the default rule got one or gave up."""
    layers = compiled.explain().layers
    # Weights that come at run time are packed by default rule.
    rest = [x for x in layers if x.implementation == "default rule" and "_pack" not in x.name]
    assert not [x for x in rest if "conv" in x.name or "unscheduled" in x.reason]
    return [x.implementation for x in layers if x.kind == "conv2d"]
