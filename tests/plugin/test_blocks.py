"""Weights of few bits, and those with a scale for each block of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from rewrites import close, computed, reference, runtime, several_nodes

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.onnx.frontend import load
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.few_bits import kernel
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED

TYPES = {"INT4": (-8, 7), "UINT4": (0, 15), "INT8": (-128, 127), "UINT8": (0, 255)}


def packed(steps: np.ndarray, bits: int) -> np.ndarray:
    """Pack the last axis into bytes, least bits first; one by one."""
    per_byte = 8 // bits
    size = -(-steps.shape[-1] // per_byte)
    result = np.zeros((*steps.shape[:-1], size), np.uint8)
    for index in np.ndindex(steps.shape):
        place, part = divmod(index[-1], per_byte)
        result[(*index[:-1], place)] |= np.uint8(int(steps[index]) << (bits * part))
    return result


def nbits(
    bits: int,
    block: int,
    k: int,
    zero: str,
    bias: bool,
    rows: int,
    columns: int = 20,
    **more: int,
) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """A model of MatMulNBits, its input and its result in float64."""
    rng, n = np.random.default_rng(bits * block + k), columns
    blocks = -(-k // block)
    steps = rng.integers(0, 2**bits, (n, blocks, block))
    scale = rng.uniform(0.01, 0.1, (n, blocks)).astype("float32")
    zeros = np.full((n, blocks), 2.0 ** (bits - 1))
    if zero:
        zeros = rng.integers(0, 2**bits, (n, blocks)).astype(float)
    weights = ((steps - zeros[..., None]) * scale[..., None]).reshape(n, -1)[:, :k].T
    x = rng.standard_normal((2, rows, k)).astype("float32")
    constants = {"b": packed(steps, bits), "s": scale.reshape(-1)}
    names = ["x", "b", "s"]
    if zero:
        whole = packed(zeros, bits).reshape(-1)
        constants["z"] = whole if zero == "packed" else zeros.astype("float32").reshape(-1)
    if zero or bias:
        names.append("z" if zero else "")
    expected = x.astype(float) @ weights
    if bias:
        constants["c"] = rng.standard_normal(n).astype("float32")
        names += ["", "c"]
        expected = expected + constants["c"]
    sizes = {"K": k, "N": n, "bits": bits, "block_size": block, **more}
    node = helper.make_node("MatMulNBits", names, ["y"], "it", domain="com.microsoft", **sizes)
    model = several_nodes([node], {"x": x}, constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model, x, expected


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zero", ["", "packed", "floats"])
@pytest.mark.parametrize(("block", "k"), [(16, 16), (32, 70), (64, 192), (128, 130)])
def test_products_of_four_bits(block: int, k: int, zero: str, bias: bool) -> None:
    model, x, expected = nbits(4, block, k, zero, bias, rows=3)
    np.testing.assert_allclose(computed(model, x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(runtime(model, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("zero", ["", "packed"])
@pytest.mark.parametrize("bits", [2, 8])
def test_products_of_other_bits(bits: int, zero: str) -> None:
    model, x, expected = nbits(bits, 32, 70, zero, bias=False, rows=1)
    np.testing.assert_allclose(computed(model, x), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("zero", ["", "packed"])
@pytest.mark.parametrize(("block", "k", "columns"), [(32, 96, 16), (64, 192, 48), (128, 128, 32)])
def test_rows_of_eight_bits(block: int, k: int, columns: int, zero: str, rows: int) -> None:
    model, x, expected = nbits(
        4, block, k, zero, bias=True, rows=rows, columns=columns, accuracy_level=4
    )
    found, largest = computed(model, x), np.abs(expected).max()
    assert np.abs(found - expected).max() <= 1e-2 * largest
    assert np.abs(runtime(model, x) - expected).max() <= 1e-2 * largest
    few = 2 * rows <= 4
    # Steps of rows: the same as computed here, but not the floats.
    rounds = few and kernel.is_of(native_core())
    assert (np.abs(found - expected).max() > 1e-4 * largest) == rounds
    assert is_kept_in_bits(model) == few


def is_kept_in_bits(model: onnx.ModelProto) -> bool:
    mod = Canonicalize(Core.named("zen4"))(load(model).module)
    return any(set(IS_SCHEDULED) <= set(dict(f.attrs or {})) for _, f in mod.functions_items())


@pytest.mark.skipif(not kernel.is_of(native_core()), reason="no such products on this core")
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k", "block"), [(1, 16, 32, 32), (3, 48, 256, 64), (4, 32, 256, 128)]
)
def test_the_kernel_sums_exactly(m: int, n: int, k: int, block: int, zeros: bool) -> None:
    rng, blocks = np.random.default_rng(k + m), k // block
    steps = rng.integers(0, 16, (k, n)).astype("uint8")
    zero = rng.integers(0, 16, (blocks, n)).astype("uint8") if zeros else np.full((blocks, n), 8)
    rows = rng.integers(-127, 128, (m, k)).astype("int8")
    by_block = rows.reshape(m, blocks, block)
    sums = by_block.sum(-1, dtype="int32")
    # Powers of two: every sum is exact in float32.
    of_rows = (2.0 ** rng.integers(-2, 3, (m, blocks))).astype("float32")
    of_columns = (2.0 ** rng.integers(-2, 3, (blocks, n))).astype("float32")
    arguments = [by_block, of_rows, sums, kernel.packed(steps, block), kernel.by_panels(of_columns)]
    if zeros:
        arguments.append(kernel.by_panels(zero))
    target = tvm.target.Target(native_core().target_config(1))
    library = tvm.compile(tvm.IRModule({"main": kernel.product(m, n, k, block, zeros)}), target)
    found = tvm.runtime.tensor(np.zeros((m, n), "float32"))
    library["main"](*map(tvm.runtime.tensor, arguments), found)
    centered = (steps - zero.astype(float).repeat(block, 0)) * of_columns.repeat(block, 0)
    expected = (rows * of_rows.repeat(block, 1).astype(float)) @ centered
    np.testing.assert_array_equal(found.numpy(), expected.astype("float32"))


def test_three_bits_are_refused_by_name() -> None:
    model, _, _ = nbits(4, 32, 32, "", bias=False, rows=1)
    for item in model.graph.node[0].attribute:
        if item.name == "bits":
            item.i = 3
    with pytest.raises(UnsupportedOperatorError, match="its weights have 3 bits"):
        load(model)


def few_bits(dtype: str, shape: tuple[int, ...], name: str, seed: int) -> onnx.TensorProto:
    low, high = TYPES[dtype]
    values = np.random.default_rng(seed).integers(low, high, shape, endpoint=True)
    return helper.make_tensor(name, getattr(TensorProto, dtype), shape, values.ravel().tolist())


def product_of_dequantized(
    dtype: str, shape: tuple[int, ...], scales: tuple[int, ...], zero: bool, **settings: int
) -> tuple[onnx.ModelProto, np.ndarray]:
    """A model of `x` by a dequantized constant."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, shape[0])).astype("float32")
    steps = ["w", "s", "z"] if zero else ["w", "s"]
    nodes = [
        helper.make_node("DequantizeLinear", steps, ["d"], **settings),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    scale = rng.uniform(0.01, 0.1, scales).astype("float32")
    model = several_nodes(nodes, {"x": x}, {"s": scale}, opset=21)
    model.ir_version = 10
    del model.graph.output[0]
    model.graph.initializer.append(few_bits(dtype, shape, "w", 1))
    if zero:
        model.graph.initializer.append(few_bits(dtype, scales, "z", 2))
    return model, x


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(("scales", "axis"), [((), 1), ((7,), 1), ((12,), 0)])
@pytest.mark.parametrize("dtype", ["INT4", "UINT4"])
def test_constants_of_four_bits(dtype: str, scales: tuple[int, ...], axis: int, zero: bool) -> None:
    model, x = product_of_dequantized(dtype, (12, 7), scales, zero, axis=axis)
    close(computed(model, x), reference(model, x))


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize(
    ("scales", "settings"),
    [((3, 7), {"axis": 0, "block_size": 4}), ((12, 2), {"axis": -1, "block_size": 4})],
)
@pytest.mark.parametrize("dtype", ["INT4", "UINT4", "INT8", "UINT8"])
def test_scales_of_blocks(dtype: str, scales: tuple[int, ...], settings: dict, zero: bool) -> None:
    columns = 8 if scales[1] == 2 else 7
    model, x = product_of_dequantized(dtype, (12, columns), scales, zero, **settings)
    close(computed(model, x), reference(model, x))


def test_blocks_of_run_time_are_refused() -> None:
    x = np.zeros((8, 4), "uint8")
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], "it", axis=0, block_size=4)
    model = several_nodes([node], {"x": x}, {"s": np.ones((2, 4), "float32")}, opset=21)
    model.ir_version = 10
    with pytest.raises(UnsupportedOperatorError, match="it is blocked, and not all"):
        load(model)


def test_constants_of_four_bits_that_others_read_are_refused() -> None:
    model, x = product_of_dequantized("INT4", (12, 7), (), False)
    model.graph.node.append(helper.make_node("Shape", ["w"], ["n"]))
    with pytest.raises(UnsupportedOperatorError, match="its data type is INT4"):
        load(model, {"x": x.shape})
