"""The references agree with ONNX Runtime, an implementation independent of them and of TVM."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import reference

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 6, 11, 8), dtype=np.float32)


def onnx_run(op: str, *inputs: np.ndarray, **attributes: object) -> np.ndarray:
    names = [f"i{index}" for index in range(len(inputs))]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in zip(names, inputs, strict=True)
    ]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
    node = helper.make_node(op, names, ["out"], **attributes)
    graph = helper.make_graph([node], op, values, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def check(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == np.float64
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("groups, multiplier", [(1, 4), (2, 2), (3, 1), (6, 1), (6, 3)])
@pytest.mark.parametrize(
    "kernel, stride, padding, dilation",
    [
        ((1, 1), (1, 1), (0, 0, 0, 0), (1, 1)),
        ((3, 3), (2, 2), (0, 0, 1, 1), (1, 1)),
        ((1, 5), (1, 3), (2, 1, 0, 3), (1, 1)),
        ((3, 2), (2, 1), (1, 2, 3, 0), (3, 2)),
        ((11, 8), (4, 4), (0, 0, 0, 0), (1, 1)),
    ],
)
def test_conv2d(groups, multiplier, kernel, stride, padding, dilation) -> None:
    weights = RNG.standard_normal((groups * multiplier, 6 // groups, *kernel), dtype=np.float32)
    bias = RNG.standard_normal(groups * multiplier, dtype=np.float32)
    expected = onnx_run(
        "Conv", X, weights, bias, strides=stride, pads=padding, dilations=dilation, group=groups
    )
    check(reference.conv2d(X, weights, bias, stride, padding, dilation, groups), expected)
    without_bias = reference.conv2d(X, weights, None, stride, padding, dilation, groups)
    check(without_bias + bias.reshape(1, -1, 1, 1), expected)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm(trans_a: bool, trans_b: bool) -> None:
    a = RNG.standard_normal((7, 5) if trans_a else (5, 7), dtype=np.float32)
    b = RNG.standard_normal((3, 7) if trans_b else (7, 3), dtype=np.float32)
    c = RNG.standard_normal((1, 3), dtype=np.float32)
    flags = {"transA": int(trans_a), "transB": int(trans_b)}
    expected = onnx_run("Gemm", a, b, c, alpha=0.5, beta=2.0, **flags)
    check(reference.gemm(a, b, c, 0.5, 2.0, trans_a, trans_b), expected)


def test_batched_gemm_broadcasts() -> None:
    a = RNG.standard_normal((4, 1, 5, 7), dtype=np.float32)
    b = RNG.standard_normal((2, 7, 3), dtype=np.float32)
    check(reference.gemm(a, b), onnx_run("MatMul", a, b))


POOLS = [
    ((3, 3), (2, 2), (1, 1, 1, 1)),
    ((2, 3), (1, 2), (0, 1, 1, 0)),
    ((3, 3), (2, 2), (0, 0, 1, 1)),
    ((1, 1), (3, 3), (0, 0, 0, 0)),
]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("kernel, stride, padding", POOLS)
def test_max_pool(kernel, stride, padding, ceil: bool) -> None:
    attributes = {"kernel_shape": kernel, "strides": stride, "pads": padding}
    expected = onnx_run("MaxPool", X, ceil_mode=int(ceil), **attributes)
    check(reference.max_pool(X, kernel, stride, padding, ceil=ceil), expected)


def test_dilated_max_pool() -> None:
    expected = onnx_run("MaxPool", X, kernel_shape=(3, 2), dilations=(2, 3), pads=(1, 0, 2, 1))
    check(reference.max_pool(X, (3, 2), padding=(1, 0, 2, 1), dilation=(2, 3)), expected)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("kernel, stride, padding", POOLS)
def test_average_pool(kernel, stride, padding, include: bool, ceil: bool) -> None:
    attributes = {"kernel_shape": kernel, "strides": stride, "pads": padding}
    flags = {"count_include_pad": int(include), "ceil_mode": int(ceil)}
    expected = onnx_run("AveragePool", X, **attributes, **flags)
    check(reference.average_pool(X, kernel, stride, padding, ceil, include), expected)


def test_global_average_pool() -> None:
    check(reference.global_average_pool(X), onnx_run("GlobalAveragePool", X))


@pytest.mark.parametrize(
    "op, function",
    [
        ("Relu", reference.relu),
        ("Sigmoid", reference.sigmoid),
        ("HardSwish", reference.hard_swish),
    ],
)
def test_activation(op: str, function) -> None:
    x = np.linspace(-100, 100, 4001, dtype=np.float32)
    check(function(x), onnx_run(op, x))


def test_activations_with_parameters() -> None:
    x = np.linspace(-9, 9, 1001, dtype=np.float32)
    bounds = np.float32(0), np.float32(6)
    check(reference.clip(x, 0, 6), onnx_run("Clip", x, *map(np.asarray, bounds)))
    check(reference.hard_sigmoid(x), onnx_run("HardSigmoid", x, alpha=1 / 6, beta=0.5))
    check(reference.silu(x), onnx_run("Mul", x, onnx_run("Sigmoid", x)))


@pytest.mark.parametrize("block", [1, 4, 6, 16])
def test_layouts_are_inverse_and_block_channels(block: int) -> None:
    packed = reference.pack_nchwc(X, block)
    assert packed.dtype == X.dtype
    assert packed.shape == (2, -(-6 // block), 11, 8, block)
    np.testing.assert_array_equal(reference.unpack_nchwc(packed, 6), X)
    assert packed[1, 5 // block, 10, 7, 5 % block] == X[1, 5, 10, 7]
    assert packed.astype(np.float64).sum() == pytest.approx(X.astype(np.float64).sum())
