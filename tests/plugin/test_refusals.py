"""What TVM cannot take is refused with the operator, the node and the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rewrites import one_node, several_nodes
from small_models import small_network

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.blame import find_fault
from tvm_blislike.onnx.frontend import prepared

X = np.arange(6, dtype="float32").reshape(2, 3)


def refused(model: onnx.ModelProto, *said: str) -> None:
    """Assert that a model is refused, in order, for what is said."""
    with pytest.raises(UnsupportedOperatorError, match=".*".join(said)):
        tvm_blislike.compile(model)


def test_sequences_as_outputs() -> None:
    model = one_node(helper.make_node("SplitToSequence", ["x"], ["parts"], "s"), X)
    of_tensors = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 1])
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(of_tensors))
    refused(model, "SplitToSequence", "'s'", "'parts' is no tensor but sequence")


def inserted(position: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "z"], ["two"]),
        helper.make_node("SequenceInsert", ["two", "w", "position"], ["three"], "in"),
        helper.make_node("SequenceAt", ["three", "one"], ["y"]),
    ]
    constants = {"w": X + 100, "position": np.array(position), "one": np.array(1)}
    model = several_nodes(nodes, {"x": X, "z": -X}, constants)
    del model.graph.output[:2]
    return model


def test_places_that_count_from_the_back_of_a_sequence() -> None:
    """ONNX puts -1 before the last tensor, TVM's importer behind it."""
    refused(inserted(-1), "SequenceInsert", "'in'", "position is negative")
    (y,) = tvm_blislike.compile(inserted(1)).run([X, -X]).values()
    np.testing.assert_array_equal(y, X + 100)


@pytest.mark.parametrize(
    "operator, operands, setting",
    [
        ("Reshape", ["x", "late"], "shape"),
        ("ReduceSum", ["x", "late"], "axes"),
        ("TopK", ["x", "late"], "K"),
        ("ConstantOfShape", ["late"], "input"),
        ("Pad", ["x", "late"], "pads"),
    ],
)
def test_settings_that_come_at_run_time(operator: str, operands: list[str], setting: str) -> None:
    """Whether the importer or the compiler gives up, the message is the same."""
    results = ["y", "z"] if operator == "TopK" else ["y"]
    late = np.array([1] * (4 if operator == "Pad" else 1))
    node = helper.make_node(operator, operands, results, "n0")
    model = several_nodes([node], {"x": X, "late": late})
    for result in model.graph.output:
        result.CopyFrom(helper.make_tensor_value_info(result.name, TensorProto.FLOAT, ["n"]))
    refused(model, operator, "'n0'", f"its {setting} 'late' is known at run time only")


@pytest.mark.parametrize("dtype", ["int16", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("operator", ["TopK", "Unique"])
def test_order_of_types_that_the_runtime_cannot_sort(operator: str, dtype: str) -> None:
    x = np.arange(5).astype(dtype)
    operands, results = (["x", "k"], ["y", "z"]) if operator == "TopK" else (["x"], ["y"])
    node = helper.make_node(operator, operands, results, "n0")
    refused(one_node(node, x, {"k": np.array([2])}), operator, "'n0'", f"type {dtype}")


def bad_in_the_middle() -> onnx.ModelProto:
    """A model whose third node TVM imports, but cannot compile."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.BOOL),
        helper.make_node("ReduceMax", ["b", "axes"], ["c"], "largest"),
        helper.make_node("Not", ["c"], ["y"]),
    ]
    model = several_nodes(nodes, {"x": X}, {"axes": np.array([1])}, opset=20)
    del model.graph.output[:3]
    return model


def test_a_node_that_cannot_be_compiled_is_found() -> None:
    refused(bad_in_the_middle(), "ReduceMax", "'largest'", "cannot be compiled by TVM", "bool")


def test_a_fault_of_this_package_is_no_unsupported_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TVM compiles each node of the model, so whatever is wrong is not TVM's."""

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("tvm_blislike.pipeline.compile_functions", broken)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        tvm_blislike.compile(small_network())


def test_weights_are_not_looked_at_by_the_search() -> None:
    """Nodes that differ in names and weights alone are compiled once."""
    weights = {f"w{i}": np.full((64, 64), i, "float32") for i in range(3)}
    names = ["x", "a", "b", "y"]
    nodes = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(3)]
    x = np.zeros((64, 64), "float32")
    proto, _, _ = prepared(several_nodes(nodes, {"x": x}, weights))
    seen: list[onnx.ModelProto] = []

    def compiled(model: onnx.ModelProto, _target: object) -> None:
        seen.append(model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tvm_blislike.onnx.blame._error_of", compiled)
        assert find_fault(proto, {"x": x.shape}, None) is None
    assert len(seen) == 1
    assert not seen[0].graph.initializer


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainder_has_the_sign_of_the_divisor(dtype: str) -> None:
    numbers = [0.0, 5.3, -5.3, 2.0, -2.0, np.inf, -np.inf, np.nan, 1e-30, 1e30]
    x, y = (grid.ravel().astype(dtype) for grid in np.meshgrid(numbers, numbers))
    node = helper.make_node("Mod", ["x", "y"], ["z"], fmod=0)
    with np.errstate(all="ignore"):
        expected = np.mod(x, y)
    model = several_nodes([node], {"x": x, "y": y}, opset=onnx.defs.onnx_opset_version())
    (z,) = tvm_blislike.compile(model).run([x, y]).values()
    np.testing.assert_allclose(z, expected, rtol=1e-6)


def test_remainder_of_scalars_is_a_scalar() -> None:
    arrays = {"x": np.array(-5.3, "float32"), "y": np.array(2, "float32")}
    node = helper.make_node("Mod", ["x", "y"], ["z"], fmod=0)
    model = several_nodes([node], arrays, opset=onnx.defs.onnx_opset_version())
    (z,) = tvm_blislike.compile(model).run(list(arrays.values())).values()
    assert z.shape == ()
    np.testing.assert_allclose(z, np.mod(*arrays.values()), rtol=1e-6)


@pytest.mark.parametrize("scores", [(-0.1, -0.2, -0.3), (0.5, -0.2, -3.0), (0.0, 0.0, 0.0)])
@pytest.mark.parametrize("limit", [None, -1.0, 0.4])
def test_suppression_whatever_the_sign_of_scores(
    scores: tuple[float, ...], limit: float | None
) -> None:
    """The first two boxes overlap by 0.9, more than is allowed."""
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 0.9], [0, 2, 1, 3]]], "float32")
    inputs = {"boxes": boxes, "scores": np.array([[scores]], "float32")}
    settings = {"most": np.array([9]), "overlap": np.array([0.5], "float32")}
    if limit is not None:
        settings["limit"] = np.array([limit], "float32")
    node = helper.make_node("NonMaxSuppression", [*inputs, *settings], ["chosen"])
    model = several_nodes([node], inputs, settings)
    (chosen,) = tvm_blislike.compile(model).run(inputs).values()
    expected = [i for i in (0, 2) if limit is None or scores[i] > limit]
    np.testing.assert_array_equal(chosen[:, 2], expected)
