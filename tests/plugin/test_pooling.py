"""Pooling whose padding follows from rules: windows lie where ONNX says, and hold what it says."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import helper
from rewrites import (
    close,
    computed,
    one_node,
    operators,
    runtime,
    runtime_results,
    several_nodes,
    written,
)

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError

RNG = np.random.default_rng(17)
SIZES, KERNEL, STRIDES = (9, 7, 6), (3, 2, 4), (2, 3, 1)
RULES = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
Attributes = dict[str, object]


def image(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def pooling(operator: str, x: np.ndarray, opset: int = 22, **attributes: object) -> onnx.ModelProto:
    return one_node(helper.make_node(operator, ["x"], ["y"], "it", **attributes), x, opset=opset)


def windows(size: int, axis: int, attributes: Attributes) -> list[list[int]]:
    """Return where the elements of each window along an axis lie, as ONNX's text has it."""
    names = ("kernel_shape", "strides", "dilations")
    kernel, stride, dilation = (attributes[name][axis] for name in names)
    reach = dilation * (kernel - 1) + 1
    rule = attributes.get("auto_pad", "NOTSET")
    begin, end = _pads(size, axis, attributes)
    if rule.startswith("SAME"):
        count = -(-size // stride)
    else:
        span = size + begin + end - reach
        count = (-(-span // stride) if attributes["ceil_mode"] else span // stride) + 1
        count -= (count - 1) * stride >= size + begin
    starts = [number * stride - begin for number in range(count)]
    return [[start + dilation * tap for tap in range(kernel)] for start in starts]


def _pads(size: int, axis: int, attributes: Attributes) -> tuple[int, int]:
    names = ("kernel_shape", "strides", "dilations")
    kernel, stride, dilation = (attributes[name][axis] for name in names)
    rule = attributes.get("auto_pad", "NOTSET")
    if rule.startswith("SAME"):
        count = -(-size // stride)
        pads = max(0, (count - 1) * stride + dilation * (kernel - 1) + 1 - size)
        less, more = pads // 2, pads - pads // 2
        return (less, more) if rule == "SAME_UPPER" else (more, less)
    pads = attributes.get("pads") or [0] * 2 * len(attributes["strides"])
    return pads[axis], pads[axis + len(attributes["strides"])]


def slow(operator: str, x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """Return the pooled image, window by window."""
    spatial = x.shape[2:]
    axes = [windows(size, axis, attributes) for axis, size in enumerate(spatial)]
    pads = [_pads(size, axis, attributes) for axis, size in enumerate(spatial)]
    result = np.empty((*x.shape[:2], *map(len, axes)))
    for where in np.ndindex(*map(len, axes)):
        chosen = [axis[index] for axis, index in zip(axes, where, strict=True)]
        inside = [
            [i for i in at if 0 <= i < size] for at, size in zip(chosen, spatial, strict=True)
        ]
        held = [
            [i for i in at if -begin <= i < size + end]
            for at, size, (begin, end) in zip(chosen, spatial, pads, strict=True)
        ]
        window = np.float64(x[np.ix_(*map(range, x.shape[:2]), *inside)])
        window = window.reshape(*x.shape[:2], -1)
        if operator == "MaxPool":
            pooled = window.max(-1)
        elif operator == "AveragePool":
            counted = held if attributes.get("count_include_pad") else inside
            pooled = window.sum(-1) / np.prod([len(at) for at in counted])
        else:
            pooled = (np.abs(window) ** attributes["p"]).sum(-1) ** (1 / attributes["p"])
        result[(slice(None), slice(None), *where)] = pooled
    return result.astype(x.dtype)


def grid(rank: int, further: Attributes) -> list[Attributes]:
    """Return attributes of each rule of padding, with and without dilation and rounding up."""
    chosen = []
    for rule, ceil_mode, dilation in itertools.product(RULES, (0, 1), (1, 2)):
        attributes: Attributes = {
            "kernel_shape": list(KERNEL[:rank]),
            "strides": list(STRIDES[:rank]),
            "dilations": [dilation, 1, 1][:rank],
            "ceil_mode": ceil_mode,
            **further,
        }
        if rule == "NOTSET":
            attributes["pads"] = [1, 0, 2][:rank] + [0, 1, 1][:rank]
        else:
            attributes["auto_pad"] = rule
        chosen.append(attributes)
    return chosen


OPERATORS = {
    "MaxPool": ("MaxPool", {}),
    "AveragePool": ("AveragePool", {"count_include_pad": 0}),
    "AveragePool with padding": ("AveragePool", {"count_include_pad": 1}),
    "LpPool 1": ("LpPool", {"p": 1}),
    "LpPool 2": ("LpPool", {"p": 2}),
    "LpPool 3": ("LpPool", {"p": 3}),
}


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        *itertools.product(OPERATORS, [2]),
        *itertools.product(["MaxPool", "AveragePool", "LpPool 2"], [1, 3]),
    ],
)
def test_windows_lie_where_onnx_says(name: str, rank: int) -> None:
    operator, further = OPERATORS[name]
    chosen = grid(rank, further)
    x = image(1, 2, *SIZES[:rank])
    nodes = [
        helper.make_node(operator, ["x"], [f"y_{index}"], **attributes)
        for index, attributes in enumerate(chosen)
    ]
    results = tvm_blislike.compile(several_nodes(nodes, {"x": x}, opset=22)).run({"x": x})
    for index, attributes in enumerate(chosen):
        expected = slow(operator, x, attributes)
        close(results[f"y_{index}"], expected)
        # ONNX Runtime forgets the dilation where it pads by itself.
        same = attributes.get("auto_pad", "").startswith("SAME")
        if not (same and attributes["dilations"][0] > 1):
            close(runtime(pooling(operator, x, **attributes), x), expected)


def test_a_stride_larger_than_the_window_needs_no_padding() -> None:
    x = image(1, 2, 6)
    model = pooling("MaxPool", x, kernel_shape=[1], strides=[2], auto_pad="SAME_LOWER")
    close(computed(model, x), x[:, :, ::2])


def test_plain_pooling_stays_as_it_is() -> None:
    x = image(1, 2, 8, 8)
    plain = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    for operator in ("MaxPool", "AveragePool"):
        model = pooling(operator, x, **plain)
        assert written(model, x) == model
    model = pooling("MaxPool", x, **plain, ceil_mode=1)
    assert operators(written(model, x)) == ["MaxPool"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float64"])
def test_data_types(dtype: str) -> None:
    x = (image(1, 2, 7, 7) * 20).astype(dtype)
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
    result = computed(pooling("MaxPool", x, **attributes), x)
    whole = {"dilations": [1, 1], "ceil_mode": 0, **attributes}
    np.testing.assert_array_equal(result, slow("MaxPool", x, whole))
    assert result.dtype == dtype


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_indices(rank: int) -> None:
    # Few values, so that windows hold the largest one several times.
    x = RNG.integers(-3, 3, (2, 3, *SIZES[:rank])).astype("float32")
    nodes, models = [], []
    chosen = [grid(rank, {"storage_order": 0})[2], *grid(rank, {"storage_order": 1})[1:9:4]]
    for index, attributes in enumerate(chosen):
        results = [f"y_{index}", f"at_{index}"]
        nodes.append(helper.make_node("MaxPool", ["x"], results, **attributes))
        models.append(several_nodes([nodes[-1]], {"x": x}, opset=12))
    ours = tvm_blislike.compile(several_nodes(nodes, {"x": x}, opset=12)).run({"x": x})
    theirs = [array for model in models for array in runtime_results(model, x)]
    for name, array in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("shape", [(1, 3, 9), (1, 3, 5, 4), (1, 3, 4, 3, 2)], ids=str)
def test_global_lp_pool(p: int, shape: tuple[int, ...]) -> None:
    x = image(*shape)
    model = pooling("GlobalLpPool", x, opset=17, p=p)
    close(computed(model, x), runtime(model, x))


@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"kernel_shape": [5, 3], "strides": [3, 1]}, "window of 5 is larger than .* image of 4"),
        ({"kernel_shape": [3, 3], "dilations": [3, 1]}, "window of 7 is larger than .* image of 4"),
        ({"kernel_shape": [2, 2], "pads": [0, 2, 0, 0]}, "axis 1 holds nothing but padding"),
        ({"kernel_shape": [2]}, "1 sizes for 2 spatial axes"),
    ],
    ids=str,
)
def test_windows_that_onnx_does_not_define(
    operator: str, attributes: Attributes, reason: str
) -> None:
    x = image(1, 1, 4, 6)
    with pytest.raises(UnsupportedOperatorError, match=rf"{operator} \(node 'it'\): .*{reason}"):
        tvm_blislike.compile(pooling(operator, x, **attributes))
