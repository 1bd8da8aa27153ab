"""Layers between DequantizeLinear and QuantizeLinear: integers, within a step of the floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_layers import Layers, assert_within_a_step, call_types
from rewrites import computed, runtime

import tvm_blislike
from tvm_blislike.hardware import Core
from tvm_blislike.runtime.runnable import why_not_runnable

TYPES = ["uint8", "int8"]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 99),
    data=st.sampled_from(TYPES),
    weights=st.sampled_from([("int8", 0), ("uint8", 128), ("int8", 3)]),
    result=st.sampled_from(TYPES),
    zeros=st.tuples(st.integers(0, 127), st.integers(0, 127)),
    by_channel=st.booleans(),
    bias=st.sampled_from(["", "int32", "float32"]),
    bound=st.sampled_from(["", "Relu", "Clip"]),
    padding=st.integers(0, 1),
    scale=st.sampled_from([0.002, 0.05, 1.0]),
)
def test_convolutions(
    seed: int,
    data: str,
    weights: tuple[str, int],
    result: str,
    zeros: tuple[int, int],
    by_channel: bool,
    bias: str,
    bound: str,
    padding: int,
    scale: float,
) -> None:
    layers = Layers(seed, 1, 5, 7, 6)
    image = layers.steps("x", 0.02, zeros[0], data)
    dtype, zero = weights
    kernel = layers.weights((9, 5, 3, 3), dtype, zero, 0 if by_channel else None)
    operands = [image, kernel]
    if bias == "float32":
        operands.append(layers.constant(layers.rng.standard_normal(9).astype("float32")))
    elif bias:
        scales = layers.constants[layers.nodes[-1].input[1]] * np.float32(0.02)
        numbers = layers.rng.integers(-9000, 9000, 9).astype("int32")
        along = {"axis": 0} if by_channel else {}
        parts = map(layers.constant, (numbers, np.asarray(scales)))
        operands.append(layers.put("DequantizeLinear", *parts, **along))
    value = layers.put("Conv", *operands, pads=[padding] * 4)
    if bound == "Clip":
        value = layers.put("Clip", value, *(layers.constant(np.float32(v)) for v in (-0.3, 0.7)))
    elif bound:
        value = layers.put(bound, value)
    quantized, _ = layers.quantized(value, scale, zeros[1], result)
    model = layers.model(quantized)
    assert_within_a_step(model, layers.x)
    if weights != ("int8", 3):  # less 3, -128 needs 9 bits
        assert ("nn.conv2d", "int32") in call_types(model)


@pytest.mark.parametrize("zeros", [(0, 0), (77, 9)])
@pytest.mark.parametrize(
    ("shape", "kernel", "attributes"),
    [
        ((2, 16, 30), (24, 16, 3), {"pads": [1, 1], "strides": [2]}),
        ((1, 5, 31), (8, 5, 5), {"pads": [2, 4], "dilations": [2]}),
        ((1, 12, 20), (12, 1, 3), {"group": 12, "pads": [1, 1]}),
        ((1, 8, 5, 6, 7), (16, 8, 3, 3, 3), {"pads": [1] * 6}),
        ((2, 8, 5, 6, 7), (16, 8, 3, 1, 1), {"pads": [1, 0, 0] * 2, "strides": [2, 1, 1]}),
        ((2, 4, 6, 6, 6), (8, 2, 3, 1, 2), {"group": 2, "strides": [2, 1, 1]}),
        ((1, 8, 9, 9), (16, 1, 3, 3), {"group": 8, "pads": [1] * 4}),
        ((1, 16, 9, 9), (32, 4, 3, 3), {"group": 4, "pads": [1] * 4}),
    ],
)
def test_signals_volumes_and_groups(
    shape: tuple[int, ...], kernel: tuple[int, ...], attributes: dict, zeros: tuple[int, int]
) -> None:
    layers = Layers(4, *shape)
    weights = layers.weights(kernel, "int8", 0, 0)
    bias = layers.constant(layers.rng.standard_normal(kernel[0]).astype("float32"))
    value = layers.put("Conv", layers.steps("x", 0.02, zeros[0]), weights, bias, **attributes)
    value = layers.steps(layers.put("Relu", value), 0.05, zeros[1])
    silu = layers.put("Mul", value, layers.put("Sigmoid", value))
    model = layers.model(layers.quantized(silu, 0.05, 30, "uint8")[0])
    calls = call_types(model)
    assert ("nn.conv2d", "int32") in calls
    assert not [call for call in calls if call == ("nn.conv2d", "float32")]
    ours, theirs = computed(model, layers.x), runtime(model, layers.x)
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 2  # a step each of two layers
    assert (ours != theirs).mean() < 0.02


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 77), ("int8", -20)])
@pytest.mark.parametrize("size", [(30,), (5, 6, 7)])
def test_pools_of_signals_and_volumes_stay_integers(
    size: tuple[int, ...], dtype: str, zero: int
) -> None:
    rank = len(size)
    layers = Layers(4, 2, 8, *size)
    weights = layers.weights((16, 8, *[3] * rank), "int8", 0, 0)
    value = layers.put("Conv", layers.steps("x", 0.02, 20), weights)
    value = layers.steps(value, 0.05, zero, dtype)
    window = {"kernel_shape": [3] * rank, "pads": [1] * 2 * rank, "strides": [2] * rank}
    value = layers.steps(layers.put("MaxPool", value, **window), 0.05, zero, dtype)
    model = layers.model(layers.quantized(value, 0.05, zero, dtype)[0])
    pools = [types for name, *types in call_types(model) if "pool" in name]
    assert pools
    assert all(types in (["int8"], ["uint8"]) for types in pools)
    assert_within_a_step(model, layers.x)


@pytest.mark.parametrize("scale", [0.001, 1e3])
def test_results_saturate_at_both_ends_and_vanish(scale: float) -> None:
    layers = Layers(3, 1, 8, 6, 6)
    kernel = layers.weights((16, 8, 3, 3), "int8", 0, 0)
    value = layers.put("Conv", layers.steps("x"), kernel)
    quantized, _ = layers.quantized(value, scale, 77, "uint8")
    found = assert_within_a_step(layers.model(quantized), layers.x)
    assert set(np.unique(found)) >= {0, 255} if scale < 1 else np.all(found == 77)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 5])
def test_matrix_products(transposed: int, dtype: str, rows: int) -> None:
    layers = Layers(4, rows, 33)
    data = layers.steps("x", 0.02, 60, dtype)
    shape, axis = ((20, 33), 0) if transposed else ((33, 20), 1)
    matrix = layers.weights(shape, "int8", 0, axis)
    bias = layers.constant(layers.rng.standard_normal(20).astype("float32"))
    value = layers.put("Gemm", data, matrix, bias, transB=transposed)
    quantized, _ = layers.quantized(value, 0.02, -3, "int8")
    model = layers.model(quantized)
    assert_within_a_step(model, layers.x)
    assert ("matmul", "int32") in call_types(model)


def chain() -> tuple[Layers, str]:
    """Return two convolutions, a residual addition, a pool, a join, and a mean."""
    layers = Layers(5, 1, 16, 12, 12)
    first = layers.steps("x", 0.03, 100)
    value = first
    for zero in (0, 90):
        kernel = layers.weights((16, 16, 3, 3), "int8", 0, 0)
        value = layers.steps(layers.put("Conv", value, kernel, pads=[1] * 4), 0.1, zero)
    value = layers.steps(layers.put("Add", first, value), 0.1, 80)
    pooled = layers.put("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    pooled = layers.steps(pooled, 0.1, 80)
    kernel = layers.weights((8, 16, 1, 1), "int8", 0, 0)
    other = layers.steps(layers.put("Conv", pooled, kernel), 0.07, 30)
    value = layers.steps(layers.put("Concat", pooled, other, axis=1), 0.1, 50)
    value = layers.steps(layers.put("GlobalAveragePool", value), 0.05, 40)
    value = layers.steps(layers.put("Flatten", value), 0.05, 40)
    product = layers.put("MatMul", value, layers.weights((24, 10), "int8", 0, 1))
    return layers, layers.quantized(product, 0.05, 9, "uint8")[0]


def test_tensors_between_layers_have_8_bits_and_one_layout() -> None:
    layers, result = chain()
    model = layers.model(result)
    ours, theirs = computed(model, layers.x), runtime(model, layers.x)
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 3  # roundings of six layers
    compiled = tvm_blislike.compile(model, "zen4", threads=1)
    names = [layer.name for layer in compiled.explain().layers]
    kernels = [name for name in names if "conv2d" in name]
    assert len(kernels) == 3
    assert all("tir_round" in name for name in kernels)
    moving = [name for name in names if "transpose" in name]
    assert len(moving) <= 1
    assert not moving or moving == names[:1]


@pytest.mark.parametrize("name", ["x86-64-v3", "skylake-avx512", "golden-cove"])
def test_other_products_of_integers_have_the_same_results(name: str) -> None:
    """16 bits in memory, or AVX-VNNI: every tensor is within a step, signed results are signed."""
    if reason := why_not_runnable(Core.named(name).target_config(1)):
        pytest.skip(reason)
    layers, result = chain()
    model = layers.model(result)
    assert ("nn.conv2d", "int32") in call_types(model, name)
    ours, theirs = computed(model, layers.x, name), runtime(model, layers.x)
    assert ours.dtype == theirs.dtype
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 3  # roundings of six layers
    report = tvm_blislike.compile(model, name, threads=1).explain()
    assert all("tir_round" in n.name for n in report.layers if "conv2d" in n.name)
    layers = Layers(7, 1, 8, 5, 5)
    kernel = layers.weights((8, 8, 3, 3), "int8", 0, 0)
    value = layers.put("Conv", layers.steps("x", 0.03, -4, "int8"), kernel)
    quantized, _ = layers.quantized(value, 0.02, 100, "int8")
    model = layers.model(quantized)
    ours, theirs = computed(model, layers.x, name), runtime(model, layers.x)
    assert ours.dtype == theirs.dtype == np.int8
    assert theirs.max() == 127 and np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


def test_s8_of_the_model_is_u8_in_memory_and_s8_as_a_result() -> None:
    layers = Layers(6, 1, 8, 5, 5)
    kernel = layers.weights((8, 8, 3, 3), "int8", 0, 0)
    value = layers.put("Conv", layers.steps("x", 0.03, -4, "int8"), kernel)
    quantized, _ = layers.quantized(value, 0.05, -9, "int8")
    model = layers.model(quantized)
    assert assert_within_a_step(model, layers.x).dtype == np.int8
    assert not any(dtype == "int8" for _, dtype in call_types(model)[:-1])


def test_signed_dot_products_have_signed_activations() -> None:
    layers, result = chain()
    dtypes = [dtype for _, dtype in call_types(layers.model(result), "cortex-a76")]
    assert dtypes.count("int8") > 6
    assert dtypes.count("uint8") == 1  # the result, as the model says


def test_layers_left_in_floats_are_named() -> None:
    layers = Layers(7, 1, 6, 5, 5)
    values = layers.rng.integers(0, 256, (4, 6, 1, 1)).astype("uint8")
    operands = (values, np.float32(0.01), np.uint8(0))
    kernel = layers.put("DequantizeLinear", *map(layers.constant, operands))
    value = layers.put("Conv", layers.steps("x"), kernel)
    model = layers.model(layers.quantized(value, 0.1, 9, "uint8")[0])
    assert_within_a_step(model, layers.x)
    notes = tvm_blislike.compile(model).explain().notes
    (note,) = (note for note in notes if note.startswith("in float32"))
    assert "need more than 8 bits" in note
    assert "conv2d 1x6x5x5" in note


@pytest.mark.parametrize("core", ["x86-64-v3", "icelake-server", "zen4"])
@pytest.mark.parametrize("data", TYPES)
def test_winograd_of_quantized_layers_changes_no_bit(data: str, core: str) -> None:
    """Zero points, padding with them, bias and clipping, beside direct convolution."""
    if why_not_runnable(Core.named(core).target_config(1)):
        pytest.skip(f"this machine runs no code for {core}")
    layers = Layers(3, 1, 16, 9, 11)
    image = layers.steps("x", 0.02, 7, data)
    kernel = layers.weights((24, 16, 3, 3), "int8", 0, 0)
    first = layers.steps(layers.put("Conv", image, kernel, pads=[1, 0, 2, 1]), 0.3, 9, data)
    kernel = layers.weights((16, 24, 3, 3), "uint8", 128, 0)
    second = layers.put("Conv", first, kernel, pads=[1, 1, 1, 1])
    model = layers.model(layers.quantized(layers.put("Relu", second), 0.4, 3, data)[0])
    results = []
    for name in ("conv2d_winograd", "conv2d_direct"):
        constraints = tvm_blislike.Constraints(only=(name,))
        compiled = tvm_blislike.compile(model, core, threads=1, constraints=constraints)
        assert [layer.implementation for layer in compiled.explain().layers].count(name) == 2
        results += compiled.run({"x": layers.x}).values()
    np.testing.assert_array_equal(*results)
    assert len(np.unique(results[0])) > 20
