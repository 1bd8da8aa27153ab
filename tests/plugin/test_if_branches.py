"""Branches of `If`: functions of their own, with the kernels that they would have outside."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rewrites import Arrays, several_nodes

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.frontend import load

RANDOM = np.random.default_rng(2)
SHAPE = [1, 16, 12, 12]


def graph(
    name: str, nodes: list[onnx.NodeProto], weights: Arrays, *shapes: list[int]
) -> onnx.GraphProto:
    """Return a branch whose results are those of its last nodes."""
    last = [node.output[0] for node in nodes[-len(shapes) :]]
    results = [
        helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)
        for result, shape in zip(last, shapes, strict=True)
    ]
    tensors = [numpy_helper.from_array(a, n) for n, a in weights.items()]
    return helper.make_graph(nodes, name, [], results, tensors)


def convolution(data: str, name: str) -> tuple[onnx.NodeProto, Arrays]:
    weights = RANDOM.standard_normal((16, 16, 3, 3)).astype(np.float32) / 12
    node = helper.make_node("Conv", [data, f"w_{name}"], [name], pads=[1, 1, 1, 1])
    return node, {f"w_{name}": weights}


def two_branches() -> onnx.ModelProto:
    """Return a model with a convolution, and one of two others with activations behind it."""
    first, weights = convolution("x", "first")
    branches = {}
    for which, activation in (("then", "Relu"), ("else", "Tanh")):
        node, own = convolution("h", f"{which}_c")
        after = helper.make_node(activation, [node.output[0]], [f"{which}_a"])
        branches[f"{which}_branch"] = graph(which, [node, after], own, SHAPE)
    nodes = [
        first,
        helper.make_node("Relu", ["first"], ["h"]),
        helper.make_node("If", ["c"], ["i"], **branches),
        helper.make_node("Add", ["i", "h"], ["y"]),
    ]
    return model_of(nodes, {"x": np.zeros(SHAPE, np.float32), "c": np.array(True)}, weights)


def model_of(nodes: list[onnx.NodeProto], inputs: Arrays, constants: Arrays) -> onnx.ModelProto:
    model = several_nodes(nodes, inputs, constants)
    del model.graph.output[:]
    unknown = [None] * inputs["x"].ndim
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, unknown) for name in nodes[-1].output
    )
    return model


def assert_like_reference(model: onnx.ModelProto, inputs: Arrays) -> None:
    expected = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
    compiled = tvm_blislike.compile(model)
    for name, theirs in zip(compiled.run(inputs), expected, strict=True):
        np.testing.assert_allclose(compiled.run(inputs)[name], theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches(condition: bool) -> None:
    x = RANDOM.standard_normal(SHAPE).astype(np.float32)
    assert_like_reference(two_branches(), {"x": x, "c": np.array(condition)})


def test_branches_have_the_kernels_of_other_layers() -> None:
    layers = tvm_blislike.compile(two_branches()).explain().layers
    convolutions = [layer for layer in layers if "conv" in layer.name]
    assert len(convolutions) == 3
    assert not [c.name for c in convolutions if c.implementation == "default rule"]
    # Each with what follows it.
    assert sum("tanh" in layer.name or "relu" in layer.name for layer in convolutions) == 3


def test_nothing_of_a_branch_is_computed_outside() -> None:
    module = load(two_branches()).module
    assert module["main"].script().count("conv2d(") == 1
    assert len(module.functions) == 3


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_branches_inside_branches_and_several_results(outer: bool, inner: bool) -> None:
    node = helper.make_node
    deep = {
        f"{which}_branch": graph(which, [node(op, ["x"], [f"{which}_deep"])], {}, [3])
        for which, op in (("then", "Neg"), ("else", "Abs"))
    }
    nested = [node("If", ["d"], ["n"], **deep), node("Exp", ["x"], ["e"])]
    plain = [node("Identity", ["x"], ["p"]), node("Mul", ["x", "k"], ["q"])]
    constant = {"k": np.array([1, 2, 3], np.float32)}
    branches = {
        "then_branch": graph("a", nested, {}, [3], [3]),
        "else_branch": graph("b", plain, constant, [3], [3]),
    }
    x = RANDOM.standard_normal(3).astype(np.float32)
    inputs = {"x": x, "c": np.array(outer), "d": np.array(inner)}
    model = model_of([node("If", ["c"], ["y", "z"], **branches)], inputs, {})
    assert_like_reference(model, inputs)


def test_faults_inside_branches_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node
    fault = [node("Reshape", ["x", "s"], ["r"], "it")]
    branches = {
        "then_branch": graph("a", fault, {}, [3]),
        "else_branch": graph("b", [node("Neg", ["x"], ["p"])], {}, [3]),
    }
    inputs = {"x": np.zeros(3, np.float32), "c": np.array(True), "s": np.array([3])}
    model = model_of([node("If", ["c"], ["y"], **branches)], inputs, {})
    with pytest.raises(
        UnsupportedOperatorError, match=r"Reshape .node 'it'.*'s' is known at run time"
    ):
        load(model)
    assert not capfd.readouterr().err


def test_layers_around_a_branch_read_what_they_did() -> None:
    """The maximum, of several tensors, is read behind a branch that ends the block before it."""
    node = helper.make_node
    branches = {
        "then_branch": graph("a", [node("Sigmoid", ["x"], ["t"])], {}, [2]),
        "else_branch": graph("b", [node("Identity", ["x"], ["e"])], {}, [2]),
    }
    nodes = [
        node("Max", ["k", "x", "j"], ["m"]),
        node("If", ["c"], ["i"], **branches),
        node("Add", ["i", "m"], ["y"]),
    ]
    x = RANDOM.standard_normal(2).astype(np.float32)
    constants = {n: RANDOM.standard_normal((3, 2)).astype(np.float32) for n in ("k", "j")}
    inputs = {"x": x, "c": np.array(True), **constants}
    model = several_nodes(nodes, inputs)
    del model.graph.output[:]
    types = [("i", [2]), ("y", [3, 2]), ("m", [3, 2])]
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in types
    )
    assert_like_reference(model, inputs)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("operand", ["x", "k"])
def test_branches_of_halves(condition: bool, operand: str) -> None:
    """What is converted in each branch has memory of its own; a constant keeps its type."""
    node = helper.make_node
    branches = {}
    for which, operator in (("then", "Neg"), ("else", "Abs")):
        branches[f"{which}_branch"] = graph(which, [node(operator, [operand], [which])], {}, [7])
        branches[f"{which}_branch"].output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    x, k = RANDOM.standard_normal((2, 7)).astype(np.float16)
    model = model_of(
        [node("If", ["c"], ["y"], **branches)], {"x": x, "c": np.array(True)}, {"k": k}
    )
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    # A core without arithmetic of float16.
    compiled = tvm_blislike.compile(model, "x86-64-v3")
    inputs = {"x": x, "c": np.array(condition)}
    data = {"x": x, "k": k}[operand]
    np.testing.assert_array_equal(compiled.run(inputs)["y"], -data if condition else np.abs(data))
