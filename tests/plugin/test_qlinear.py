"""Operators on quantized tensors against ONNX Runtime, within a step, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from engines import by_onnxruntime
from onnx import helper
from quantized_nodes import Node
from rewrites import runtime
from test_quantized_layers import assert_within_a_step, call_types

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.frontend import load, prepared

TYPES = ["uint8", "int8"]


def zero_points(dtype: str) -> Iterator[int | None]:
    yield from (None, 0, 117 if dtype == "uint8" else -9)


TYPES_AND_ZEROS = [(dtype, zero) for dtype in TYPES for zero in zero_points(dtype)]


def convolution(
    dtype: str, weights: tuple[str, int], by_channel: bool, zero: int, bias: bool
) -> Node:
    node = Node("QLinearConv", dtype, 1, 8, 7, 6)
    node.data(0.02, zero)
    kernel, at = weights
    node.put(np.clip(node.integers("int8", 12, 4, 3, 3).astype(int) + at, *limits(kernel)))
    node.constants[node.operands[-1]] = node.constants[node.operands[-1]].astype(kernel)
    node.steps(node.rng.uniform(1e-3, 4e-3, 12 if by_channel else ()), at, kernel)
    node.steps(0.03, zero)
    if bias:
        node.put(node.rng.integers(-9000, 9000, 12).astype("int32"))
    return node


def limits(dtype: str) -> tuple[int, int]:
    return np.iinfo(dtype).min, np.iinfo(dtype).max


@pytest.mark.parametrize(
    ("data", "weights", "by_channel", "zero", "bias"),
    [
        ("uint8", ("int8", 0), True, 117, True),
        ("uint8", ("int8", 0), False, 0, False),
        ("uint8", ("uint8", 128), False, 3, True),
        ("int8", ("int8", 0), True, -9, True),
        ("int8", ("int8", 0), True, 0, False),
    ],
)
def test_convolutions(
    data: str, weights: tuple[str, int], by_channel: bool, zero: int, bias: bool
) -> None:
    node = convolution(data, weights, by_channel, zero, bias)
    model = node.model(group=2, pads=[1, 0, 1, 2], strides=[2, 1])
    assert_within_a_step(model, node.x)
    assert ("nn.conv2d", "int32") in call_types(model)


def test_padding_by_a_rule() -> None:
    node = convolution("uint8", ("int8", 0), True, 117, True)
    node.check(group=2, auto_pad="SAME_UPPER", strides=[2, 2])


def test_a_convolution_is_one_kernel() -> None:
    node = convolution("uint8", ("int8", 0), True, 0, True)
    model = node.model(group=2)
    names = [layer.name for layer in tvm_blislike.compile(model, "zen4").explain().layers]
    kernels = [name for name in names if "conv2d" in name]
    assert len(kernels) == 1
    assert "tir_round" in kernels[0]


@pytest.mark.parametrize(("dtype", "weights"), [("uint8", "int8"), ("int8", "int8")])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("zero", [0, 5])
def test_matrix_products(dtype: str, weights: str, by_column: bool, zero: int) -> None:
    node = Node("QLinearMatMul", dtype, 3, 33)
    node.data(0.02, zero)
    node.put(node.integers(weights, 33, 20))
    node.steps(node.rng.uniform(1e-3, 4e-3, 20 if by_column else ()), 0, weights)
    node.steps(0.02, zero)
    model = node.model()
    assert_within_a_step(model, node.x)
    assert ("matmul", "int32") in call_types(model)


@pytest.mark.parametrize(("dtype", "zero"), TYPES_AND_ZEROS)
@pytest.mark.parametrize("operator", ["Add", "Mul"])
def test_of_two_tensors(operator: str, dtype: str, zero: int | None) -> None:
    node = Node(f"QLinear{operator}", dtype, 2, 5, 7, domain="com.microsoft")
    node.data(0.0213, zero)
    node.put(node.integers(dtype, 5, 1))
    node.steps(0.0317, zero)
    node.steps(0.0391 if operator == "Add" else 0.0173, zero)
    node.check()


@pytest.mark.parametrize(("dtype", "zero"), TYPES_AND_ZEROS)
@pytest.mark.parametrize(("operator", "alpha"), [("Sigmoid", None), ("LeakyRelu", 0.3)])
def test_of_elements(operator: str, alpha: float | None, dtype: str, zero: int | None) -> None:
    node = Node(f"QLinear{operator}", dtype, 2, 50, domain="com.microsoft")
    node.data(0.02, zero)
    node.steps(0.006, zero)
    node.check(**{"alpha": alpha} if alpha else {})


@pytest.mark.parametrize(("dtype", "zero"), [(t, z) for t, z in TYPES_AND_ZEROS if z is not None])
def test_global_means(dtype: str, zero: int) -> None:
    node = Node("QLinearGlobalAveragePool", dtype, 2, 40, 5, 6, domain="com.microsoft")
    node.data(0.0213, zero)
    node.steps(0.0137, zero)
    node.check()


POOLS = [
    {"pads": [1, 1, 1, 1]},
    {"pads": [1, 0, 1, 1], "count_include_pad": 1, "strides": [2, 2]},
    {"ceil_mode": 1, "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 1]},
]


@pytest.mark.parametrize("attributes", POOLS)
@pytest.mark.parametrize(("dtype", "zero"), TYPES_AND_ZEROS)
def test_means_of_windows(dtype: str, zero: int | None, attributes: dict) -> None:
    node = Node("QLinearAveragePool", dtype, 1, 6, 8, 7, domain="com.microsoft")
    node.data(0.0213, zero)
    node.steps(0.0093, zero)
    node.check(kernel_shape=[3, 2], **attributes)


@pytest.mark.parametrize(("dtype", "zero"), [(t, z) for t, z in TYPES_AND_ZEROS if z is not None])
def test_joins(dtype: str, zero: int) -> None:
    node = Node("QLinearConcat", dtype, 2, 5, 3, domain="com.microsoft")
    node.steps(0.03, zero)
    node.data(0.02, 0)
    node.put(node.integers(dtype, 2, 4, 3))
    node.steps(0.03, zero)
    node.check(axis=1)


def product(dtype: str, zero: int, by_column: bool, turned: int, bias: bool) -> Node:
    node = Node("QGemm", dtype, 3, 33, domain="com.microsoft")
    node.data(0.02, zero)
    node.put(node.integers("int8", *((20, 33) if turned else (33, 20))))
    node.steps(node.rng.uniform(1e-3, 4e-3, 20 if by_column else ()), 0, "int8")
    node.put(node.rng.integers(-9000, 9000, 20).astype("int32") if bias else None)
    return node


GEMMS = [("uint8", 3, True, 1, True), ("int8", -5, False, 0, True), ("uint8", 0, True, 0, False)]


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("form", GEMMS)
def test_products_with_a_bias(form: tuple, alpha: float) -> None:
    node = product(*form)
    node.steps(0.02, form[1])
    model = node.model(transB=form[3], alpha=alpha)
    assert_within_a_step(model, node.x)
    assert ("matmul", "int32") in call_types(model)


@pytest.mark.parametrize("form", GEMMS)
def test_products_that_stay_floats(form: tuple) -> None:
    node = product(*form)
    model = node.model(transB=form[3])
    (found,) = tvm_blislike.compile(model).run({"x": node.x}).values()
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, runtime(model, node.x), rtol=1e-5, atol=1e-4)


def test_shapes_and_types_behind_are_known() -> None:
    """What is written otherwise behind an operator of ONNX Runtime's own needs its shape."""
    node = product("uint8", 3, True, 1, True)
    node.steps(0.02, 3)
    model = node.model(transB=1)
    model.graph.node.append(helper.make_node("Hardmax", ["z"], ["h"], axis=1))
    model.graph.node.insert(1, helper.make_node("Cast", ["y"], ["z"], to=onnx.TensorProto.FLOAT))
    model.graph.output[0].name = "h"
    assert prepared(model)[0].graph.node
    assert [spec.shape for spec in load(model).outputs] == [(3, 20)]


def test_channels_at_the_end_are_refused() -> None:
    node = Node("QLinearGlobalAveragePool", "uint8", 2, 4, 3, 3, domain="com.microsoft")
    node.data(0.02, 3)
    node.steps(0.02, 3)
    with pytest.raises(UnsupportedOperatorError, match=r"Pool.*'it'.*channels_last is set"):
        load(node.model(channels_last=1))


def test_steps_of_run_time() -> None:
    node = convolution("uint8", ("int8", 0), True, 117, True)
    model = node.model(group=2)
    late = {name: node.constants[name] for name in node.model().graph.node[0].input[1:3]}
    kept = [item for item in model.graph.initializer if item.name not in late]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.extend(
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in late.items()
    )
    inputs = {"x": node.x, **late}
    (ours,) = tvm_blislike.compile(model).run(inputs).values()
    (theirs,) = by_onnxruntime(model, inputs)
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1
