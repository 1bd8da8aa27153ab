"""Operators that TVM's importer misreads or cannot take, written otherwise, against references."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from rewrites import Arrays, one_node, several_nodes

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError

RNG = np.random.default_rng(3)


def result(model: onnx.ModelProto, *inputs: np.ndarray) -> np.ndarray:
    (array,) = tvm_blislike.compile(model).run(list(inputs)).values()
    return array


@pytest.mark.parametrize("base", ["float32", "float16", "float64", "int32", "int64"])
@pytest.mark.parametrize("exponent", ["float32", "int64", "uint8"])
def test_power_of_two_types(base: str, exponent: str) -> None:
    x, y = np.arange(1, 7).astype(base), np.array([0, 1, 2, 3, 2, 4], exponent)
    if np.dtype(exponent).kind == "f":
        y = y + np.array(0.5, exponent)
    model = several_nodes([helper.make_node("Pow", ["x", "y"], ["z"])], {"x": x, "y": y})
    expected = np.power(x.astype("float64"), y.astype("float64")).astype(base)
    z = result(model, x, y)
    assert z.dtype == x.dtype
    np.testing.assert_allclose(z, expected, rtol=2e-3 if base == "float16" else 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainder_has_the_sign_of_the_divisor(dtype: str) -> None:
    numbers = [0.0, 5.3, -5.3, 2.0, -2.0, np.inf, -np.inf, np.nan, 1e-30, 1e30]
    x, y = (grid.ravel().astype(dtype) for grid in np.meshgrid(numbers, numbers))
    node = helper.make_node("Mod", ["x", "y"], ["z"], fmod=0)
    with np.errstate(all="ignore"):
        expected = np.mod(x, y)
    z = result(several_nodes([node], {"x": x, "y": y}, opset=28), x, y)
    np.testing.assert_allclose(z, expected, rtol=1e-6)


def test_remainder_of_scalars_is_a_scalar() -> None:
    x, y = np.float32(-5.3), np.float32(2)
    arrays = {"x": np.asarray(x), "y": np.asarray(y)}
    node = helper.make_node("Mod", ["x", "y"], ["z"], fmod=0)
    z = result(several_nodes([node], arrays, opset=28), *arrays.values())
    assert z.shape == ()
    np.testing.assert_allclose(z, np.mod(x, y), rtol=1e-6)


@pytest.mark.parametrize("values", ["float32", "int32", "bool", "float16"])
@pytest.mark.parametrize("depth", [np.array([5]), np.array(5, "int32"), np.array(5, "float32")])
@pytest.mark.parametrize("axis", [0, 1, -1, -3])
def test_one_hot(values: str, depth: np.ndarray, axis: int) -> None:
    x = np.array([[1, -1, 4], [7, 0, -6]])
    off_on = np.array([0, 1], values)
    node = helper.make_node("OneHot", ["x", "depth", "values"], ["y"], axis=axis)
    index = np.where(x < 0, x + 5, x)
    expected = off_on[(np.arange(5) == index[..., None]).astype(int)]
    y = result(one_node(node, x, {"depth": depth, "values": off_on}), x)
    assert y.dtype == off_on.dtype
    np.testing.assert_array_equal(y, np.moveaxis(expected, -1, axis))


def suppression(settings: Arrays) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """Three boxes, the first two overlapping by exactly a half."""
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.5], [0, 2, 1, 3]]], "float32")
    scores = np.array([[[0.9, 0.8, 0.7]]], "float32")
    names = ["boxes", "scores", "count", "overlap", "score"]
    operands = [name if name in ("boxes", "scores", *settings) else "" for name in names]
    node = helper.make_node("NonMaxSuppression", operands, ["chosen"])
    return several_nodes([node], {"boxes": boxes, "scores": scores}, settings), [boxes, scores]


@pytest.mark.parametrize("overlap, kept", [(0.5, [0, 1, 2]), (0.499, [0, 2]), (None, [0, 2])])
def test_suppressed_is_what_overlaps_more_than_the_threshold(
    overlap: float | None, kept: list[int]
) -> None:
    settings = {"count": np.array([9]), "score": np.array([0], "float32")}
    if overlap is not None:
        settings["overlap"] = np.array([overlap], "float32")
    model, inputs = suppression(settings)
    np.testing.assert_array_equal(result(model, *inputs)[:, 2], kept)


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"count": np.array([9])}, "score_threshold is left out"),
        ({"count": np.array([9]), "score": np.array([-1], "float32")}, "negative"),
        ({"score": np.array([0], "float32")}, "max_output_boxes_per_class is left out"),
    ],
)
def test_suppression_with_settings_that_tvm_replaces_is_refused(
    settings: Arrays, reason: str
) -> None:
    model, _ = suppression(settings)
    with pytest.raises(UnsupportedOperatorError, match=f"NonMaxSuppression.*{reason}"):
        tvm_blislike.compile(model)


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "uint64"])
def test_order_of_types_that_tvm_cannot_sort_is_refused(dtype: str) -> None:
    x = np.arange(5).astype(dtype)
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["values", "places"]),
        helper.make_node("Unique", ["x"], ["y"]),
    ]
    for node in nodes:
        model = one_node(node, x, {"k": np.array([2])})
        with pytest.raises(UnsupportedOperatorError, match=rf"{node.op_type} .*type {dtype}"):
            tvm_blislike.compile(model)
