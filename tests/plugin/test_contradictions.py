"""Sizes that an operator does not allow are found; ONNX Runtime fails at the same ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_blislike.onnx.contradictions import contradiction
from tvm_blislike.onnx.shapes import constants_of, inferred

Shape = tuple[int, ...]
# A node's operator, its operands' shapes, its constants, its attributes.
Case = tuple[str, list[Shape], list[object], dict[str, object]]


def model_of(case: Case) -> onnx.ModelProto:
    """Return the model of one node, whose inputs have sizes that it does not tell."""
    operator, shapes, constants, attributes = case
    names = [f"x{i}" for i in range(len(shapes))]
    known = [f"c{i}" for i in range(len(constants))]
    results = {"LSTM": ["y", "h", "c"], "GRU": ["y", "h"], "Split": ["y", "z"]}.get(operator, ["y"])
    node = helper.make_node(operator, [*names, *known], results, "it", **attributes)
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, [f"{name}_{axis}" for axis in range(len(shape))]
        )
        for name, shape in zip(names, shapes, strict=True)
    ]
    pairs = zip(constants, known, strict=True)
    weights = [numpy_helper.from_array(np.array(value), name) for value, name in pairs]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results]
    graph = helper.make_graph([node], "one", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def fault(case: Case) -> str | None:
    model, sizes = model_of(case), {f"x{i}": shape for i, shape in enumerate(case[1])}
    return contradiction(model, inferred(model, sizes, constants_of(model)))


def runs(case: Case) -> bool:
    """Whether ONNX Runtime computes a node."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    model = model_of(case).SerializeToString()
    arrays = {f"x{i}": np.zeros(shape, np.float32) for i, shape in enumerate(case[1])}
    try:
        session = onnxruntime.InferenceSession(model, options, providers=providers)
        session.run(None, arrays)
    except Exception:  # of any kind: it does not compute it
        return False
    return True


def matmul(a: int, b: int, c: int, d: int) -> Case:
    return "MatMul", [(2, a, b), (c, d)], [], {}


def gemm(a: int, b: int, c: int, d: int) -> Case:
    return "Gemm", [(a, b), (c, d)], [], {"transB": 1}


def add(a: int, b: int, c: int, d: int) -> Case:
    return "Add", [(a, b), (c, d)], [], {}


def concat(a: int, b: int, c: int, d: int) -> Case:
    return "Concat", [(a, b), (c, d)], [], {"axis": 1}


def squeeze(a: int, b: int, c: int, d: int) -> Case:
    return "Squeeze", [(a, b)], [[c % 2]], {}


def expand(a: int, b: int, c: int, d: int) -> Case:
    return "Expand", [(a, b)], [[c, d]], {}


def split(a: int, b: int, c: int, d: int) -> Case:
    return "Split", [(a, b)], [[c, d]], {"axis": 1}


def reshape(a: int, b: int, c: int, d: int) -> Case:
    return "Reshape", [(a, b)], [[c, d]], {}


def reshape_open(a: int, b: int, c: int, d: int) -> Case:
    return "Reshape", [(a, b, d)], [[-1, c]], {}


def convolution(a: int, b: int, c: int, d: int) -> Case:
    return "Conv", [(1, a, b), (4, c, d)], [], {}


def grouped(a: int, b: int, c: int, d: int) -> Case:
    return "Conv", [(1, a, b), (4, c, d)], [], {"group": 2}


def transposed(a: int, b: int, c: int, d: int) -> Case:
    return "ConvTranspose", [(1, a, b), (c, 3, d)], [], {}


def pool(a: int, b: int, c: int, d: int) -> Case:
    return "MaxPool", [(1, 2, a, b)], [], {"kernel_shape": [c, d]}


def lstm(a: int, b: int, c: int, d: int) -> Case:
    return "LSTM", [(a, 2, b), (1, 4 * d, c), (1, 4 * d, d)], [], {"hidden_size": d}


def gru_of_any_rank(a: int, b: int, c: int, d: int) -> Case:
    data = (a, 1, 2) if b > 2 else (a, 1, 2, 1)
    return "GRU", [data, (1, 3 * d, 2), (1, 3 * d, d)], [], {"hidden_size": d}


@pytest.mark.parametrize(
    "make",
    [
        matmul,
        gemm,
        add,
        concat,
        squeeze,
        expand,
        split,
        reshape,
        reshape_open,
        convolution,
        grouped,
        transposed,
        pool,
        lstm,
        gru_of_any_rank,
    ],
)
def test_as_onnx_runtime(make: Callable[[int, int, int, int], Case]) -> None:
    found = set()
    for sizes in itertools.product(range(1, 5), repeat=4):
        case = make(*sizes)
        found.add(fault(case) is None)
        assert (fault(case) is None) == runs(case), (case, fault(case))
    assert found == {True, False}
