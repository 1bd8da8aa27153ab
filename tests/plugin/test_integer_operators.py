"""Operators on integers of 8 bits against ONNX Runtime: sums are exact."""

from __future__ import annotations

import numpy as np
import pytest
from effort import crossed
from quantized_nodes import Node
from rewrites import computed, runtime

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.frontend import load

TYPES = ["uint8", "int8"]
# Of data and of weights; ONNX Runtime has no kernel for a product of s8 and u8.
PAIRS = [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")]


@pytest.mark.parametrize("zeros", ["none", "data", "both", "several"])
@pytest.mark.parametrize(("dtype", "weights"), PAIRS)
def test_matrix_products(dtype: str, weights: str, zeros: str) -> None:
    node = Node("MatMulInteger", dtype, 2, 5, 33)
    node.operands.append("x")
    node.put(node.integers(weights, 33, 20))
    if zeros != "none":
        node.put(np.array(7, dtype))
    if zeros in ("both", "several"):
        node.put(node.integers(weights, *([20] if zeros == "several" else [])))
    assert_exact(node)


ATTRIBUTES = [
    {"dilations": [1, 2]},
    {"pads": [1, 0, 1, 2], "strides": [2, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [1, 2]},
]
GROUPS = [(1, 12), (2, 12), (8, 8), (8, 16)]


@pytest.mark.parametrize(
    ("weights", "zeros", "sizes", "attributes"),
    crossed(TYPES, ["none", "data", "both", "weights"], GROUPS, ATTRIBUTES),
)
def test_convolutions(weights: str, zeros: str, sizes: tuple[int, int], attributes: dict) -> None:
    groups, outputs = sizes
    node = Node("ConvInteger", "uint8", 1, 8, 9, 8)
    node.operands.append("x")
    node.put(node.integers(weights, outputs, 8 // groups, 3, 3))
    node.put(np.array(117, "uint8") if zeros in ("data", "both") else None)
    node.put(np.array(3, weights) if zeros in ("weights", "both") else None)
    assert_exact(node, group=groups, **attributes)


def assert_exact(node: Node, **attributes: object) -> None:
    model = node.model(**attributes)
    ours, theirs = computed(model, node.x), runtime(model, node.x)
    assert ours.dtype == theirs.dtype == np.int32
    np.testing.assert_array_equal(ours, theirs)


def test_sums_need_more_than_the_digits_of_floats() -> None:
    node = Node("MatMulInteger", "uint8", 1, 1 << 15)
    node.x = np.full_like(node.x, 255)
    node.x[0, 0] = 254
    node.operands.append("x")
    node.put(np.full((1 << 15, 1), 127, "int8"))
    (found,) = computed(node.model(), node.x).ravel()
    assert found == 127 * (255 * (1 << 15) - 1)
    assert np.float32(found) != found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zeros", ["none", "data", "both"])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize(("dtype", "weights"), PAIRS)
def test_products_in_floats(
    dtype: str, weights: str, by_column: bool, zeros: str, bias: bool
) -> None:
    node = Node("MatMulIntegerToFloat", dtype, 3, 33, domain="com.microsoft")
    columns = 20 if by_column else ()
    node.operands.append("x")
    node.put(node.integers(weights, 33, 20))
    node.put(np.array(0.02, "float32"))
    node.put(np.asarray(node.rng.uniform(1e-3, 4e-3, columns), "float32"))
    node.put(None if zeros == "none" else np.array(7, dtype))
    node.put(np.full(columns, 5, weights) if zeros == "both" else None)
    node.put(node.rng.standard_normal(20).astype("float32") if bias else None)
    assert_close(node)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("weights", TYPES)
def test_products_of_steps_of_the_data(
    weights: str, by_column: bool, zero: bool, bias: bool
) -> None:
    node = Node("DynamicQuantizeMatMul", "uint8", domain="com.microsoft")
    node.x = node.rng.standard_normal((3, 33)).astype("float32")
    columns = 20 if by_column else ()
    node.operands.append("x")
    node.put(node.integers(weights, 33, 20))
    node.put(np.asarray(node.rng.uniform(1e-3, 4e-3, columns), "float32"))
    node.put(np.full(columns, 5, weights) if zero else None)
    node.put(node.rng.standard_normal(20).astype("float32") if bias else None)
    assert_close(node)


@pytest.mark.parametrize(("scales", "reason"), [(3, "scales"), (1, "zero points")])
def test_steps_of_rows_are_refused(scales: int, reason: str) -> None:
    node = Node("MatMulIntegerToFloat", "uint8", 3, 33, domain="com.microsoft")
    node.operands.append("x")
    node.put(node.integers("int8", 33, 20))
    node.put(np.ones(scales, "float32"))
    node.put(np.float32(1))
    node.put(np.zeros(3, "uint8"))
    with pytest.raises(UnsupportedOperatorError, match=f"'it'.*its data have several {reason}"):
        load(node.model())


def assert_close(node: Node) -> None:
    model = node.model()
    ours, theirs = computed(model, node.x), runtime(model, node.x)
    assert ours.dtype == theirs.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
