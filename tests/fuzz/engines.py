"""What computes graphs: ONNX Runtime as written, and ONNX's reference implementation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper
from onnx_runtime import exact_session

# Written into the models; the newest that every engine of the tests reads.
IR_VERSION = 10
Values = Mapping[str, np.ndarray]


class CannotComputeError(Exception):
    """Neither engine computes the node."""


def model_of(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    """Return a model of a graph."""
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION
    )


def by_onnxruntime(model: onnx.ModelProto, inputs: Values) -> list[np.ndarray]:
    """Return the outputs that ONNX Runtime computes, node by node and without optimizations."""
    return exact_session(model).run(None, dict(inputs))


def by_reference(model: onnx.ModelProto, inputs: Values) -> list[np.ndarray]:
    """Return the outputs that ONNX's reference implementation computes."""
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [np.asarray(v) for v in ReferenceEvaluator(model).run(None, dict(inputs))]


def compute_node(node: onnx.NodeProto, operands: Values, opset: int) -> list[np.ndarray]:
    """Return the outputs of one node.

    Raises
    ------
    CannotComputeError
        When it is invalid, or known to neither engine.
    """
    inputs = [value_info(name, value) for name, value in operands.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    model = model_of(helper.make_graph([node], "node", inputs, outputs), opset)
    failures = []
    for engine in (by_onnxruntime, by_reference):
        try:
            return [np.asarray(value) for value in engine(model, operands)]
        except Exception as error:  # each operator of each engine has errors of its own
            failures.append(f"{engine.__name__}: {error}")
            if "NOT_IMPLEMENTED" not in str(error) and "Unrecognized" not in str(error):
                break  # invalid, which the lenient reference might not notice
    raise CannotComputeError("; ".join(failures))


def value_info(name: str, value: np.ndarray) -> onnx.ValueInfoProto:
    """Return the description of an input that has this value."""
    return helper.make_tensor_value_info(name, _element_type(value.dtype), value.shape)


@functools.cache
def _element_type(dtype: np.dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)
