"""Operators that ONNX defines by functions, and others that TVM lacks, against its reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rewrites import Arrays, close, computed, one_node, operators, several_nodes

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.frontend import load
from tvm_blislike.onnx.schema_functions import without_schema_functions

RANDOM = np.random.default_rng(11)


def data(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def assert_like_reference(
    operator: str, inputs: Arrays, opset: int, constants: Arrays | None = None, **attributes: object
) -> None:
    operands = [*inputs, *(constants or {})]
    node = helper.make_node(operator, operands, ["y"], **attributes)
    model = several_nodes([node], inputs, constants, opset)
    before = model.SerializeToString(deterministic=True)
    (ours,) = tvm_blislike.compile(model).run(inputs).values()
    assert model.SerializeToString(deterministic=True) == before
    close(ours, onnx.reference.ReferenceEvaluator(model).run(None, inputs)[0])


@pytest.mark.parametrize("opset", [12, 19])
def test_activations(opset: int) -> None:
    assert_like_reference("Celu", {"x": data(3, 7)}, opset, alpha=1.5)


def test_swish_has_the_usual_alpha_of_its_schema() -> None:
    assert_like_reference("Swish", {"x": data(3, 7)}, 24)
    assert_like_reference("Swish", {"x": data(3, 7)}, 24, alpha=0.5)


@pytest.mark.parametrize(("shape", "axes"), [([4, 9], [1, 2]), ([3, 5, 8], None), ([2], [-1])])
def test_crops_and_pads(shape: list[int], axes: list[int] | None) -> None:
    more = {} if axes is None else {"axes": axes}
    constants = {"shape": np.array(shape)}
    assert_like_reference("CenterCropPad", {"x": data(3, 6, 8)}, 18, constants, **more)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("opset", [13, 22])
def test_losses(reduction: str, opset: int) -> None:
    inputs = {"x": data(4, 5, 3), "target": RANDOM.integers(0, 5, (4, 3))}
    more = {"reduction": reduction, "ignore_index": 2}
    assert_like_reference("NegativeLogLikelihoodLoss", inputs, opset, **more)
    assert_like_reference("SoftmaxCrossEntropyLoss", inputs, opset, **more)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(kv_heads: int, masked: bool, causal: int) -> None:
    inputs = {"q": data(2, 4, 6, 8), "k": data(2, kv_heads, 10, 8), "v": data(2, kv_heads, 10, 4)}
    if masked:
        inputs["mask"] = data(6, 10)
    assert_like_reference("Attention", inputs, 23, is_causal=causal, scale=0.25)


def test_rotary_embedding() -> None:
    inputs = {"x": data(2, 3, 4, 8), "cos": data(2, 4, 4), "sin": data(2, 4, 4)}
    assert_like_reference("RotaryEmbedding", inputs, 23)
    assert_like_reference("RotaryEmbedding", inputs, 23, interleaved=1)


@pytest.mark.parametrize("twice", [False, True])
def test_functions_with_loops(twice: bool) -> None:
    inputs = {"q": data(1, 5, 8), "k": data(1, 5, 8), "v": data(1, 5, 8)}
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}
    make = helper.make_node
    nodes = [make("LinearAttention", ["q", "k", "v"], ["y", "s"], **attributes)]
    if twice:
        nodes.append(make("LinearAttention", ["k", "q", "v"], ["z", "t"], **attributes))
    model = several_nodes(nodes, inputs, None, 27)
    ours = tvm_blislike.compile(model).run(inputs)
    for name, theirs in zip(
        ours, onnx.reference.ReferenceEvaluator(model).run(None, inputs), strict=True
    ):
        np.testing.assert_allclose(ours[name], theirs, rtol=1e-4, atol=1e-4)


def test_functions_inside_branches_are_written_out() -> None:
    inputs = {"x": data(2, 5), "b": np.array(True)}
    branches = {}
    for name, nodes in {
        "then_branch": [helper.make_node("Celu", ["x"], ["t"])],
        "else_branch": [helper.make_node("Identity", ["x"], ["e"])],
    }.items():
        result = helper.make_tensor_value_info(nodes[0].output[0], TensorProto.FLOAT, [2, 5])
        branches[name] = helper.make_graph(nodes, name, [], [result])
    node = helper.make_node("If", ["b"], ["y"], **branches)
    model = several_nodes([node], inputs)
    compiled = tvm_blislike.compile(model)
    for chosen in (True, False):
        expected = reference_of(model, {**inputs, "b": np.array(chosen)})
        close(compiled.run({**inputs, "b": np.array(chosen)})["y"], expected)


def reference_of(model: onnx.ModelProto, inputs: Arrays) -> np.ndarray:
    return onnx.reference.ReferenceEvaluator(model).run(None, inputs)[0]


def test_nodes_keep_the_name_of_their_function() -> None:
    x = data(2, 3)
    model = one_node(helper.make_node("Celu", ["x"], ["y"], "ours"), x)
    written = without_schema_functions(model, {"x": x.shape}, owned=False)
    assert "Celu" not in operators(written)
    assert {node.name for node in written.graph.node} == {"ours"}
    assert operators(model) == ["Celu"]


def test_functions_of_unknown_operators_are_refused_by_their_own_names() -> None:
    x = np.full((2, 3), 0.5, np.float32)
    with pytest.raises(UnsupportedOperatorError, match=r"Bernoulli \(node 'n'\)"):
        load(one_node(helper.make_node("Bernoulli", ["x"], ["y"], "n"), x))


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("opset", [13, 22])
def test_lp_normalization(power: int, axis: int, opset: int) -> None:
    x = data(4, 6)
    x[2] = 0
    model = one_node(
        helper.make_node("LpNormalization", ["x"], ["y"], p=power, axis=axis), x, None, opset
    )
    norm = np.linalg.norm(x, power, axis, keepdims=True)  # ONNX's reference lacks |x|
    close(computed(model, x), x / np.where(norm == 0, 1, norm))


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_cumulative_products(reverse: int, exclusive: int, axis: int) -> None:
    inputs, constants = {"x": data(4, 6)}, {"axis": np.array(axis)}
    assert_like_reference("CumProd", inputs, 26, constants, reverse=reverse, exclusive=exclusive)


@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 2, 1]])
@pytest.mark.parametrize("dilations", [[1, 1], [2, 1]])
def test_columns_to_images(strides: list[int], pads: list[int], dilations: list[int]) -> None:
    image, block = (11, 12), (3, 2)
    axes = zip(image, block, strides, dilations, pads[:2], pads[2:], strict=True)
    steps = [(i + b + e - d * (k - 1) - 1) // s + 1 for i, k, s, d, b, e in axes]
    x = data(2, 5 * 6, steps[0] * steps[1])
    constants = {"image": np.array(image), "block": np.array(block)}
    assert_like_reference(
        "Col2Im", {"x": x}, 18, constants, strides=strides, pads=pads, dilations=dilations
    )
