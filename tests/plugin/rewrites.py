"""Models of one node, what the library writes instead, and ONNX Runtime's results."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_runtime import exact_session

import tvm_blislike
from tvm_blislike.onnx.rewrites.rewriting import rewritten

Arrays = dict[str, np.ndarray]


def one_node(
    node: onnx.NodeProto, x: np.ndarray, constants: Arrays | None = None, opset: int = 19
) -> onnx.ModelProto:
    """Return the model of a node that reads `x` and constants; its results have no types."""
    return several_nodes([node], {"x": x}, constants, opset)


def several_nodes(
    nodes: list[onnx.NodeProto], inputs: Arrays, constants: Arrays | None = None, opset: int = 19
) -> onnx.ModelProto:
    """Return the model of nodes, all of whose results are the model's."""
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in inputs.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for node in nodes for name in node.output if name]
    weights = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "nodes", values, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def written(model: onnx.ModelProto, x: np.ndarray) -> onnx.ModelProto:
    """Return what the library gives to TVM for a model of one input; the model must not change."""
    before = model.SerializeToString(deterministic=True)
    result = rewritten(model, {"x": x.shape}, owned=False)
    assert model.SerializeToString(deterministic=True) == before
    return result


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return ReferenceEvaluator(model).run(None, {"x": x})[0]


def runtime(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    return runtime_results(model, x)[0]


def runtime_results(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """Return what ONNX Runtime computes, node by node."""
    return exact_session(model).run(None, {"x": x})


def computed(model: onnx.ModelProto, x: np.ndarray, target: str = "native") -> np.ndarray:
    (result,) = tvm_blislike.compile(model, target).run({"x": x}).values()
    return result


def close(one: np.ndarray, other: np.ndarray) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
