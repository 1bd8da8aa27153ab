"""Kinds of operators: what they recognize, their operands, and that others can be added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tvm_blislike.bench.graph_layers import layers_of
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.model import workload as workloads
from tvm_blislike.model.types import FLOAT32, Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.onnx import frontend
from tvm_blislike.operators import operator_of
from tvm_blislike.tuning.tasks import tasks_of

BYTES = Types("uint8", "int8", "int32", "int32")


def _network(dtype: str) -> onnx.ModelProto:
    """A convolution and a product of one type."""
    rng = np.random.default_rng(0)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = {"k": (16, 8, 3, 3), "m": (16, 5)}
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", code, (2, 8, 6, 6))],
        [helper.make_tensor_value_info("y", code, (2, 5))],
        [
            numpy_helper.from_array(rng.standard_normal(shape).astype(dtype), name)
            for name, shape in constants.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_layers_of_a_graph_are_those_of_the_compiler_in_any_type(dtype: str) -> None:
    model = _network(dtype)
    here = [layer.workload for layer in layers_of(model, {})]
    assert [w.types for w in here] == [Types.of(dtype)] * 2
    # The core has kernels for both types.
    strategy = Strategy(Core.named("cortex-a76"), 1)
    there = {task.workload for task in tasks_of(frontend.load(model).module, strategy)}
    assert {str(w) for w in there} == {str(w) for w in here}


@pytest.mark.parametrize(
    "workload",
    [
        Conv2dWorkload(1, 4, 5, 6, 8, 3, 3, (2, 1), (1, 0, 2, 1), groups=2, types=BYTES),
        GemmWorkload(3, 4, 70, types=BYTES),
        GemmWorkload(3, 4, 70, batch=2, types=BYTES, constant_b=False),
    ],
    ids=str,
)
def test_integers_use_their_whole_range_and_are_summed_exactly(workload: Workload) -> None:
    operator = operator_of(workload)
    operands = operator.random(workload)
    assert [x.dtype.name for x in operands] == ["uint8", "int8"]
    assert [x.shape for x in operands] == list(workload.operands.values())
    assert all(x.min() <= np.iinfo(x.dtype).min + 40 for x in operands)
    result = operator.reference(workload, *operands)
    assert result.shape == workload.result_shape
    assert result.dtype == np.int64
    floats = operator.reference(workload, *(x.astype(np.float64) for x in operands))
    np.testing.assert_array_equal(result, floats)


@pytest.mark.parametrize(
    "workload", [Conv2dWorkload(2, 4, 5, 5, 8, 3, 3), GemmWorkload(3, 4, 70)], ids=str
)
def test_results_of_floats_are_about_one(workload: Workload) -> None:
    operator = operator_of(workload)
    result = operator.reference(workload, *operator.random(workload))
    assert 0.5 < np.std(result) < 2


@pytest.fixture
def sum_workload() -> Iterator[type[Workload]]:
    @dataclass(frozen=True)
    class SumWorkload(Workload):
        kind: ClassVar[str] = "sum"
        n: int = 1
        shape: tuple[int, ...] = ()
        types: Types = FLOAT32

        operands: ClassVar = {"data": (1,)}
        result_shape = ()
        macs = 0
        extents: ClassVar = {"depth": 1}

    yield SumWorkload
    del workloads._KINDS["sum"]


def test_workloads_of_other_kinds_are_read(sum_workload: type[Workload]) -> None:
    workload = sum_workload(3, (4, 5), Types.of("float16"))
    assert Workload.from_json(workload.to_json()) == workload


def test_unknown_kinds_are_named() -> None:
    with pytest.raises(ValueError, match="unknown workload kind 'fft'; known: conv2d, gemm"):
        Workload.from_json('{"kind": "fft"}')
