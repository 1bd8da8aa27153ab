"""Kinds of operators: what they recognize, their operands, and that others can be added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tvm import relax

from tvm_blislike.bench.graph_layers import layers_of
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.model import workload as workloads
from tvm_blislike.model.types import FLOAT32, MASKED, WORDS, Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.onnx import frontend
from tvm_blislike.operators import operator_in, operator_of, workload_of
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


def _call(name: str, dtypes: tuple[str, str, str]) -> relax.Call:
    """A product or a convolution of those types, normalized."""
    shapes = {"matmul": ((5, 70), (70, 9)), "conv2d": ((1, 20, 6, 7), (8, 20, 3, 3))}[name]
    function = {"matmul": relax.op.matmul, "conv2d": relax.op.nn.conv2d}[name]
    operands = [
        relax.Var(key, relax.TensorType(shape, dtype))
        for key, shape, dtype in zip("xw", shapes, dtypes[:2], strict=True)
    ]
    return relax.BlockBuilder().normalize(function(*operands, out_dtype=dtypes[2]))


@pytest.mark.parametrize("name", ["matmul", "conv2d"])
@pytest.mark.parametrize("a, b", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
def test_products_of_bytes_are_workloads_whose_sums_have_32_bits(name: str, a: str, b: str) -> None:
    workload = workload_of(_call(name, (a, b, "int32")))
    assert workload.types == Types(a, b, "int32", "int32")
    assert {"matmul": "gemm", "conv2d": "conv2d"}[name] == workload.kind


@pytest.mark.parametrize("name", ["matmul", "conv2d"])
@pytest.mark.parametrize(
    "dtypes",
    [("uint8", "int8", "float32"), ("int8", "int16", "int32"), ("float32", "float32", "float64")],
    ids="-".join,
)
def test_other_mixtures_are_refused_with_the_types(name: str, dtypes: tuple[str, str, str]) -> None:
    call = _call(name, dtypes)
    a, b, out = dtypes
    assert workload_of(call) is None
    assert operator_in(call).why_not(call) == f"no kernel multiplies {a} by {b} and sums in {out}"


def test_quantized_activations_have_the_type_that_dot_products_of_the_core_take() -> None:
    names = ("zen4", "golden-cove", "cortex-a76", "cortex-a53", "haswell", "skylake-avx512")
    types = {name: quantized_types(Core.named(name)) for name in names}
    of_arm = replace(BYTES, a="int8")
    # Without dot products of bytes weights lie in 16 bits on x86, with AVX-512 data too.
    expected = BYTES, BYTES, of_arm, of_arm, MASKED, WORDS
    assert types == dict(zip(names, expected, strict=True))


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
    with pytest.raises(
        ValueError, match="unknown workload kind 'fft'; known: conv2d, conv2d chain, conv3d, gemm"
    ):
        Workload.from_json('{"kind": "fft"}')
