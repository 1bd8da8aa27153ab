"""Models whose nodes are not in an order to compute are put into one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_runtime import exact_session
from small_models import float_input, make_model

import tvm_blislike
from tvm_blislike.errors import ModelError
from tvm_blislike.onnx.frontend import read_model
from tvm_blislike.onnx.node_order import in_order

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3)).astype("float32")


def node(operator: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], output, **attributes)


CHAIN = [
    node("Neg", "x", "a"),
    node("Exp", "a", "b"),
    node("Add", "b a", "c"),
    node("Abs", "c", "y"),
]


def chain(order: list[int]) -> onnx.ModelProto:
    ends = [float_input("x", X.shape)], [float_input("y", X.shape)]
    return make_model([CHAIN[place] for place in order], *ends, [])


def names(model: onnx.ModelProto) -> str:
    return "".join(each.name for each in model.graph.node)


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 2, 3, 0], [0, 2, 1, 3]])
def test_models_are_sorted_and_given_ones_stay(order: list[int]) -> None:
    model = chain(order)
    before = model.SerializeToString(deterministic=True)
    assert names(read_model(model)[0]) == "abcy"
    (y,) = tvm_blislike.compile(model, threads=1).run([X]).values()
    np.testing.assert_allclose(y, np.abs(np.exp(-X) - X), rtol=1e-6)
    assert model.SerializeToString(deterministic=True) == before


def test_sorted_models_are_not_copied() -> None:
    model = chain([0, 1, 2, 3])
    assert in_order(model, owned=False) is model


def test_nodes_stay_as_near_to_their_places_as_they_can() -> None:
    """Those that are independent keep the order that decides how long tensors live."""
    nodes = [node("Neg", f"x{i // 2}", f"y{i}") for i in range(6)]
    casts = [node("Abs", f"x{i}_given", f"x{i}") for i in range(3)]
    inputs = [float_input(f"x{i}_given", X.shape) for i in range(3)]
    outputs = [float_input(f"y{i}", X.shape) for i in range(6)]
    model = in_order(make_model(nodes + casts, inputs, outputs, []), owned=True)
    assert [each.name for each in model.graph.node] == [
        *("x0", "y0", "y1", "x1", "y2", "y3", "x2", "y4", "y5")
    ]


def test_branches_wait_for_what_they_read_outside() -> None:
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, X.shape) for name in "pq"]
    then = helper.make_graph(
        [node("Exp", "t", "p"), node("Neg", "late", "t")], "then", [], results[:1]
    )
    otherwise = helper.make_graph([node("Abs", "x", "q")], "else", [], results[1:])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    nodes = [
        node("If", "flag", "y", then_branch=then, else_branch=otherwise),
        node("Sqrt", "x", "late"),
    ]
    model = make_model(nodes, [flag, float_input("x", X.shape)], [float_input("y", X.shape)], [])
    ordered = in_order(model, owned=False)
    assert [each.op_type for each in ordered.graph.node] == ["Sqrt", "If"]
    then = next(item.g for item in ordered.graph.node[1].attribute if item.name == "then_branch")
    assert [each.op_type for each in then.node] == ["Neg", "Exp"]
    inputs = {"flag": np.array(True), "x": np.abs(X)}
    expected = exact_session(ordered).run(None, inputs)[0]
    (y,) = tvm_blislike.compile(model, threads=1).run(inputs).values()
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_nodes_that_wait_for_each_other_are_named() -> None:
    nodes = [node("Add", "x b", "a"), node("Neg", "a", "b"), node("Abs", "b", "y")]
    model = make_model(nodes, [float_input("x", X.shape)], [float_input("y", X.shape)], [])
    with pytest.raises(ModelError, match=r"nodes wait for each other: \w, \w"):
        tvm_blislike.compile(model)
