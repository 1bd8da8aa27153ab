"""Zeros around data become a convolution's padding; `Pad` arrives as the operator of Relax."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from relax_graphs import assert_same_as_plain_tvm, calls, graph, operators, random
from tvm import relax
from tvm.relax import op

import tvm_blislike
from tvm_blislike.hardware import native_core
from tvm_blislike.onnx import frontend
from tvm_blislike.passes.canonicalize import Canonicalize


def padded(pixels: tuple[int, ...], widths: list[int], **attrs: object) -> object:
    axes = len(pixels)
    weights = relax.const(random(8, 4, *[3] * axes) / np.float32(2 * np.sqrt(3**axes)))
    pad = {name: attrs.pop(name) for name in ("pad_mode", "pad_value") if name in attrs}

    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        around = b.emit(op.nn.pad(x, widths, **pad))
        return getattr(op.nn, f"conv{axes}d")(around, weights, **attrs)

    return graph(function, (2, 4, *pixels))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_zeros_become_padding(axes: int) -> None:
    widths = [0, 0, 0, 0, *(2, 1, 0, 3, 1, 0)[: 2 * axes]]
    mod = padded((7, 6, 5)[:axes], widths, padding=1, dilation=2)
    kinds = operators(Canonicalize(native_core())(mod))
    assert kinds["nn.pad"] == 0 or axes == 3
    assert_same_as_plain_tvm(mod)


@pytest.mark.parametrize(
    ("widths", "attrs"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1], {"pad_value": 0.5}),
        ([0, 0, 0, 0, 1, 1, 1, 1], {"pad_mode": "reflect"}),
        ([1, 0, 0, 0, 1, 1, 1, 1], {}),
    ],
    ids=["another number", "reflected", "of the batch"],
)
def test_others_stay(widths: list[int], attrs: dict[str, object]) -> None:
    mod = padded((7, 6), widths, **attrs)
    assert operators(Canonicalize(native_core())(mod))["nn.pad"] == 1
    assert_same_as_plain_tvm(mod)


def pad_model(
    opset: int, pads: list[int], value: float | None, axes: list[int] | None, mode: str = "constant"
) -> onnx.ModelProto:
    constants = {"pads": np.array(pads, np.int64)}
    if value is not None:
        constants["value"] = np.array(value, np.float32)
    if axes is not None:
        constants["axes"] = np.array(axes, np.int64)
    if opset < 11:
        attrs = {"pads": pads, "mode": mode, **({} if value is None else {"value": value})}
        node, constants = helper.make_node("Pad", ["x"], ["y"], **attrs), {}
    else:
        names = ["x", *(n if n in constants else "" for n in ("pads", "value", "axes"))]
        while not names[-1]:
            names.pop()
        node = helper.make_node("Pad", names, ["y"], mode=mode)
    values = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 4, 5]),
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None),
    ]
    arrays = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    made = helper.make_graph([node], "pad", values[:1], values[1:], arrays)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(
    ("opset", "pads", "value", "axes"),
    [
        (2, [0, 0, 1, 2, 0, 0, 3, 0], None, None),
        (10, [0, 1, 1, 2, 0, 0, 3, 0], 1.5, None),
        (13, [0, 0, 1, 2, 0, 0, 3, 0], None, None),
        (18, [1, 2, 3, 0], -2.0, [-1, 2]),
        (21, [1, 2, 3, 0], None, [3, 1]),
    ],
)
def test_pads_arrive_as_operators(
    opset: int, pads: list[int], value: float | None, axes: list[int] | None
) -> None:
    model = pad_model(opset, pads, value, axes)
    assert len(calls(frontend.load(model).module, "nn.pad")) == 1
    x = random(2, 3, 4, 5)
    widths = np.zeros((4, 2), int)
    places = range(4) if axes is None else axes
    widths[list(places)] = np.reshape(pads, (2, -1)).T
    expected = np.pad(x, widths, constant_values=value or 0)
    result = tvm_blislike.compile(model, records="none", cache=False).run({"x": x})["y"]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("mode", ["edge", "reflect"])
def test_other_modes_are_left_to_tvm(mode: str) -> None:
    model = pad_model(13, [0, 0, 1, 2, 0, 0, 3, 0], None, None, mode)
    assert not calls(frontend.load(model).module, "nn.pad")
    x = random(2, 3, 4, 5)
    expected = np.pad(x, [(0, 0), (0, 0), (1, 3), (2, 0)], mode=mode)
    result = tvm_blislike.compile(model, records="none", cache=False).run({"x": x})["y"]
    np.testing.assert_array_equal(result, expected)
