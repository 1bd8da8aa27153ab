"""Shape arithmetic of exporters is computed ahead; everything else stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from small_models import float_input, make_model

import tvm_blislike
from tvm_blislike.onnx.folding import replace_by_constants, settled

IMAGE = (2, 3, 4, 5)
RNG = np.random.default_rng(5)


def made(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, object] | None = None,
    outputs: Sequence[str] = ("y",),
    elem_type: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """Return a model of one image x, whose sizes have names, and these constants."""
    return make_model(
        list(nodes),
        [float_input("x", ["n", "c", "h", "w"])],
        [helper.make_tensor_value_info(name, elem_type, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the folded model, checked to compute the same; the given one must not change."""
    before = model.SerializeToString(deterministic=True)
    values, _ = settled(model, {"x": IMAGE})
    assert model.SerializeToString(deterministic=True) == before
    result = onnx.ModelProto.FromString(before)
    replace_by_constants(result, values)
    x = RNG.standard_normal(IMAGE).astype("float32")
    expected, mine = (ReferenceEvaluator(m).run(None, {"x": x}) for m in (model, result))
    for one, other in zip(expected, mine, strict=True):
        np.testing.assert_array_equal(one, other)
    return result


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def node(operator: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), output.split(), **attributes)


FLATTEN = [
    node("Shape", "x", "sizes"),
    node("Gather", "sizes zero", "batch", axis=0),
    node("Unsqueeze", "batch axis", "batches"),
    node("Concat", "batches rest", "target", axis=0),
    node("Reshape", "x target", "y"),
]
FLATTEN_CONSTANTS = {"zero": np.int64(0), "axis": np.array([0]), "rest": np.array([-1])}


def test_what_exporters_write_for_a_flatten_compiles() -> None:
    model = made(FLATTEN, FLATTEN_CONSTANTS)
    assert operators(folded(model)) == ["Reshape"]
    before = model.SerializeToString(deterministic=True)
    compiled = tvm_blislike.compile(model, shapes={"x": IMAGE})
    assert model.SerializeToString(deterministic=True) == before
    x = RNG.standard_normal(IMAGE).astype("float32")
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], x.reshape(2, -1))


def test_constants_of_nodes_and_of_attributes() -> None:
    nodes = [
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Constant", [], ["axis"], value_ints=[0]),
        helper.make_node("Constant", [], ["rest"], value=numpy_helper.from_array(np.array([-1]))),
        *FLATTEN,
    ]
    assert "Shape" not in operators(folded(made(nodes)))


def test_shapes_behind_arithmetic_that_inference_cannot_follow() -> None:
    # Only when the first target is a constant are the sizes of `halves` known, and so on.
    nodes = [
        node("Shape", "x", "sizes", start=2),
        node("Cast", "sizes", "real", to=TensorProto.FLOAT),
        node("Mul", "real factor", "scaled"),
        node("Floor", "scaled", "whole"),
        node("Cast", "whole", "half", to=TensorProto.INT64),
        node("Slice", "x start half axes", "part"),
        node("Shape", "part", "sizes_of_part"),
        node("ReduceProd", "sizes_of_part", "count", keepdims=1),
        node("Reshape", "part count", "y"),
    ]
    constants = {
        "factor": np.float32(0.5),
        "start": np.array([0, 0]),
        "axes": np.array([2, 3]),
    }
    result = folded(made(nodes, constants))
    assert operators(result) == ["Slice", "Reshape"]


def test_grids_of_detectors() -> None:
    nodes = [
        node("Shape", "x", "sizes", start=3),
        node("Squeeze", "sizes", "width"),
        node("Range", "zero width one", "columns"),
        node("Cast", "columns", "grid", to=TensorProto.FLOAT),
        node("ConstantOfShape", "sizes", "zeros"),
        node("Add", "grid zeros", "moved"),
        node("Add", "x moved", "y"),
    ]
    assert operators(folded(made(nodes, {"zero": np.int64(0), "one": np.int64(1)}))) == ["Add"]


def test_outputs_may_be_constants() -> None:
    model = made(
        [node("Shape", "x", "y"), node("Size", "x", "count"), node("Neg", "count", "z")],
        outputs=("y", "z"),
        elem_type=TensorProto.INT64,
    )
    assert operators(folded(model)) == []
    results = tvm_blislike.compile(model, shapes={"x": IMAGE}).run({"x": np.ones(IMAGE, "float32")})
    assert results["y"].tolist() == list(IMAGE) and results["z"] == -120


def test_branches_read_what_was_folded() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(operator, "x sizes_real", name)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, operator in (("then", "Add"), ("else", "Sub"))
    }
    nodes = [
        node("Shape", "x", "sizes", start=3),
        node("Cast", "sizes", "sizes_real", to=TensorProto.FLOAT),
        node("ReduceMax", "x", "most", keepdims=0),
        node("Greater", "most zero", "positive"),
        node("If", "positive", "y", **branches),
    ]
    result = folded(made(nodes, {"zero": np.float32(0)}))
    assert operators(result) == ["ReduceMax", "Greater", "If"]


@pytest.mark.parametrize(
    "kept",
    [
        node("RandomUniformLike", "weight", "value"),
        node("Bernoulli", "weight", "value"),
        node("DequantizeLinear", "quantized scale", "value"),
    ],
    ids=lambda kept: kept.op_type,
)
def test_what_must_not_be_computed_ahead(kept: onnx.NodeProto) -> None:
    constants = {
        "weight": np.full(5, 0.5, "float32"),
        "quantized": np.arange(5, dtype="int8"),
        "scale": np.float32(0.5),
    }
    model = made([kept, node("Add", "x value", "y")], constants)
    assert settled(model, {"x": IMAGE})[0] == {}


def test_large_results_stay_computations() -> None:
    nodes = [
        node("ConstantOfShape", "many", "zeros"),
        node("ReduceSum", "zeros", "sum", keepdims=0),
        node("Shape", "zeros", "sizes"),
        node("Cast", "sizes", "real", to=TensorProto.FLOAT),
        node("Add", "sum real", "shift"),
        node("Add", "x shift", "y"),
    ]
    model = made(nodes, {"many": np.array([1 << 14, 1 << 14])})
    values, _ = settled(model, {"x": IMAGE})
    assert set(values) == {"sizes", "real"}


def test_weights_are_not_computed_but_their_shapes_are() -> None:
    nodes = [
        node("Shape", "weight", "sizes"),
        node("Neg", "weight", "negative"),
        node("ReduceSum", "negative", "sum", keepdims=0),
        node("Cast", "sizes", "real", to=TensorProto.FLOAT),
        node("ReduceMin", "real", "least", keepdims=0),
        node("Mul", "sum least", "shift"),
        node("Add", "x shift", "y"),
    ]
    model = made(nodes, {"weight": np.ones((1 << 11, 1 << 10), "float32")})
    assert operators(folded(model)) == ["Neg", "ReduceSum", "Mul", "Add"]


def test_faulty_arithmetic_is_left_to_the_importer() -> None:
    nodes = [
        node("Shape", "x", "sizes"),
        node("Gather", "sizes ninth", "size", axis=0),
        node("Reshape", "x size", "y"),
    ]
    model = made(nodes, {"ninth": np.array([9])})
    assert set(settled(model, {"x": IMAGE})[0]) == {"sizes"}
    with pytest.raises(tvm_blislike.errors.BlislikeError):
        tvm_blislike.compile(model, shapes={"x": IMAGE})


def test_models_without_such_arithmetic_are_left_alone() -> None:
    model = made([node("Add", "x bias", "y")], {"bias": np.float32(1)})
    assert settled(model, {"x": IMAGE})[0] == {}


def padded(zero: str) -> onnx.ModelProto:
    """Return a model that pads by a number in steps."""
    constants = {
        "steps": np.full(1, 7, "int8"),
        "scale": np.float32(0.5),
        "zero": np.int8(3),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    }
    number = node("DequantizeLinear", f"steps scale {zero}", "number")
    return made([number, node("Pad", "x pads number", "y")], constants)


@pytest.mark.parametrize(("zero", "number"), [("", 3.5), ("zero", 2.0)])
def test_the_number_of_a_padding_is_computed_from_its_steps(zero: str, number: float) -> None:
    model = padded(zero)
    result, _ = settled(model, {"x": IMAGE})
    assert {name: value.item() for name, value in result.items()} == {"number": number}
    image = RNG.standard_normal(IMAGE).astype("float32")
    mine = tvm_blislike.compile(model, shapes={"x": IMAGE}, threads=1).run({"x": image})["y"]
    widths = [(0, 0), (0, 0), (1, 1), (1, 1)]
    np.testing.assert_array_equal(mine, np.pad(image, widths, constant_values=number))


def test_weights_in_steps_stay_in_steps() -> None:
    weights = np.ones((4, 3, 3, 3), "int8")
    nodes = [node("DequantizeLinear", "w scale", "weights"), node("Conv", "x weights", "y")]
    model = made(nodes, {"w": weights, "scale": np.float32(0.5)})
    assert settled(model, {"x": IMAGE})[0] == {}
