"""Operators that TVM's importer misreads in some form, each against ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from engines import by_onnxruntime, by_reference
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedByRuntime
from rewrites import several_nodes

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx import frontend

RNG = np.random.default_rng(23)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def between(low: int, high: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def array(*values: Any, dtype: str = "int64") -> np.ndarray:
    return np.array(values, dtype)


@dataclass(frozen=True)
class Form:
    """One form of an operator.

    Parameters
    ----------
    label : str
        Operator, and what is special.
    inputs : list of array or None
        Operands that the model gets; None is left out.
    constants : list of array or None
        Operands behind them that it holds.
    outputs : int
        Results.
    opset : int
        Version of the operator.
    attributes : dict
        Attributes.
    """

    label: str
    inputs: list
    constants: list = field(default_factory=list)
    outputs: int = 1
    opset: int = 20
    attributes: dict = field(default_factory=dict)

    @property
    def model(self) -> onnx.ModelProto:
        operator, given = self.label.split()[0], self._named()
        operands = [*self.inputs, *self.constants]
        names = [f"o{i}" if a is not None else "" for i, a in enumerate(operands)]
        results = [f"r{i}" for i in range(self.outputs)]
        node = helper.make_node(operator, names, results, "it", **self.attributes)
        held = {n: a for n, a in zip(names, operands, strict=True) if n and n not in given}
        return several_nodes([node], given, held, self.opset)

    def _named(self) -> dict[str, np.ndarray]:
        return {f"o{i}": a for i, a in enumerate(self.inputs)}

    def expected(self) -> list[np.ndarray]:
        try:
            return by_onnxruntime(self.model, self._named())
        except NotImplementedByRuntime:
            return by_reference(self.model, self._named())

    def computed(self) -> list[np.ndarray]:
        return list(tvm_blislike.compile(self.model, threads=1).run(self._named()).values())


BOXES = np.sort(RNG.random((1, 7, 2, 2)), axis=2).reshape(1, 7, 4).astype("float32")
SCORES = RNG.random((1, 2, 7)).astype("float32")
PLACES = np.stack([RNG.permutation(6)[:2] for _ in range(3)], axis=1)[:, :, None]
LAST_IN_FOUR = {"axis": -1, "num_outputs": 4}
FORMS = [
    Form(
        "Compress by a constant",
        [normal(4, 5)],
        [array(1, 0, 1, 1, 0, dtype="bool")],
        attributes={"axis": -1},
    ),
    Form("Compress of all elements", [normal(2, 3)], [array(0, 1, 1, 0, 1, dtype="bool")]),
    Form(
        "OneHot of float values",
        [between(-4, 6, 2, 3)],
        [array(5), array(0.25, 2, dtype="float32")],
        attributes={"axis": 1},
    ),
    Form("OneHot of int64", [between(-4, 4, 3)], [array(4), array(0, 7)]),
    Form("ScatterElements of a part", [normal(6, 4, 5), PLACES], [normal(2, 3, 1)]),
    Form(
        "ScatterElements that adds",
        [normal(6, 4, 5), PLACES],
        [normal(2, 3, 1)],
        attributes={"reduction": "add"},
    ),
    Form("ScatterElements from behind", [normal(6, 4, 5), PLACES - 6], [normal(2, 3, 1)]),
    Form("ArgMax before opset 11", [normal(3, 4)], opset=10, attributes={"axis": 1}),
    Form(
        "Slice with steps, without axes",
        [normal(6, 7)],
        [array(5, 1), array(0, 6), None, array(-2, 2)],
    ),
    Form("NonMaxSuppression with defaults", [BOXES, SCORES], [array(3)]),
    Form(
        "NonMaxSuppression with a limit", [BOXES, SCORES], [array(3), array(0.3, dtype="float32")]
    ),
    Form(
        "Einsum batches",
        [normal(3, 4, 5), normal(3, 5, 6)],
        attributes={"equation": "bij,bjk->bik"},
    ),
    Form(
        "Einsum transposed",
        [normal(3, 4, 5)],
        [normal(3, 6, 5)],
        attributes={"equation": "bij,bkj->bki"},
    ),
    Form(
        "Einsum with a matrix", [normal(3, 4, 5)], [normal(5, 6)], attributes={"equation": "abc,cd"}
    ),
    Form(
        "Einsum of an ellipsis",
        [normal(2, 3, 4, 5), normal(1, 3, 5, 6)],
        attributes={"equation": "...ij,...jk->...ik"},
    ),
    Form("Split with an empty last part", [normal(4, 3)], outputs=4, attributes=LAST_IN_FOUR),
    Form(
        "Split with a smaller last part",
        [normal(4, 5)],
        outputs=3,
        attributes={"axis": 1, "num_outputs": 3},
    ),
    Form(
        "MeanVarianceNormalization of small differences",
        [normal(1, 3, 4) + 1e-3 * normal(2, 3, 4)],
        attributes={"axes": [0]},
    ),
    Form("MeanVarianceNormalization of halves", [normal(2, 3, 4, 5, dtype="float16")]),
    Form("Einsum that sums", [normal(3, 4, 5)], attributes={"equation": "bij->i"}),
    Form(
        "Einsum of three",
        [normal(3, 4), normal(4, 5), normal(5, 2)],
        attributes={"equation": "ij,jk,kl->il"},
    ),
    Form("Einsum outer", [normal(3), normal(4)], attributes={"equation": "i,j->ij"}),
    Form("Einsum elementwise", [normal(2, 3), normal(2, 3)], attributes={"equation": "ij,ij->ij"}),
    Form(
        "Einsum of heads",
        [normal(2, 5, 3, 4), normal(2, 6, 3, 4)],
        attributes={"equation": "bqhd,bkhd->bhqk"},
    ),
    Form(
        "Einsum before opset 13",
        [normal(2, 3, 4), normal(2, 3)],
        opset=12,
        attributes={"equation": "bij,bi->b"},
    ),
    Form("Dropout with a mask", [normal(2, 3)], outputs=2, opset=13),
    Form("EyeLike of another type", [normal(3, 4)], attributes={"dtype": 7, "k": 1}),
    Form("AffineGrid", [normal(2, 2, 3)], [array(2, 3, 3, 4)]),
    Form("AffineGrid of volumes", [normal(1, 3, 4)], [array(1, 3, 2, 3, 4)]),
    Form(
        "RoiAlign of a scale",
        [normal(2, 3, 8, 9), array([1, 2, 9, 11], [0, 0, 4, 5], dtype="float32"), array(1, 0)],
        attributes={
            "spatial_scale": 0.5,
            "output_height": 3,
            "output_width": 2,
            "sampling_ratio": 2,
        },
    ),
    Form(
        "GatherElements of a part",
        [normal(9, 8, 4), between(-4, 4, 2, 7, 3)],
        attributes={"axis": 2},
    ),
    Form(
        "GatherElements by negative indices",
        [normal(3, 8, 4), between(-8, 8, 3, 7, 4)],
        attributes={"axis": -2},
    ),
    Form(
        "Slice before opset 10",
        [normal(5, 6)],
        opset=9,
        attributes={"starts": [1, 0], "ends": [4, -2]},
    ),
    Form(
        "Slice of some axes before opset 10",
        [normal(5, 6)],
        opset=9,
        attributes={"starts": [-3], "ends": [9], "axes": [1]},
    ),
    Form("Split with empty parts", [normal(5, 4)], [array(1, 0, 4)], outputs=3, opset=13),
    Form("Pow of integers", [between(-5, 6, 3, 4)], [array(3)]),
    Form("Pow of a float by an integer", [normal(3, 4)], [array(2)]),
    Form("Mean of float64", [normal(2, 3, dtype="float64"), normal(3, dtype="float64")], opset=13),
    Form("Mean that broadcasts", [normal(2, 1, 3), normal(4, 1), normal(1)]),
    Form(
        "Clip of float16 before opset 11",
        [normal(2, 3, dtype="float16")],
        opset=9,
        attributes={"min": 0.17, "max": 0.5},
    ),
    Form(
        "IsInf of positive ones",
        [array(1, np.inf, -np.inf, np.nan, dtype="float32")],
        attributes={"detect_negative": 0},
    ),
    Form(
        "IsInf of negative ones",
        [array(1, np.inf, -np.inf, np.nan, dtype="float32")],
        attributes={"detect_positive": 0},
    ),
    Form(
        "IsInf of none",
        [array(1, np.inf, -np.inf, dtype="float32")],
        attributes={"detect_positive": 0, "detect_negative": 0},
    ),
    Form("Elu of float64", [normal(3, 4, dtype="float64")], attributes={"alpha": 0.5}),
    Form("LRN of float32", [normal(1, 5, 3, 3)], attributes={"size": 3}),
    Form(
        "LayerNormalization with its mean",
        [normal(3, 8), normal(8), normal(8)],
        outputs=3,
        attributes={"axis": -1},
    ),
    Form(
        "LayerNormalization of float64",
        [normal(3, 8, dtype="float64")],
        [normal(8, dtype="float64")],
    ),
    Form("Cosh of float64", [normal(3, dtype="float64")]),
    Form("Sinh of float64", [normal(3, dtype="float64")]),
    Form(
        "Gather along an axis from behind",
        [normal(2, 16, 2)],
        [array([-4], [9], [-14])],
        attributes={"axis": -2},
    ),
    Form("ThresholdedRelu of a scalar", [np.array(1.5, "float32")], attributes={"alpha": 1.0}),
    Form(
        "BatchNormalization of float64",
        [normal(2, 3, 4, 5, dtype="float64")],
        [np.abs(normal(3, dtype="float64")) for _ in range(4)],
    ),
    Form("Unsqueeze of unordered axes", [normal(2, 3)], [array(3, 1)]),
    Form("Unsqueeze of an axis without a list", [normal(2, 3)], [np.array(-1, "int64")]),
    *(
        Form(f"Flatten of nothing, {n}", [normal(0, 3)], attributes={"axis": n})
        for n in range(-2, 3)
    ),
    Form("CumSum of nothing", [normal(2, 0, 3)], [array(-1)], attributes={"reverse": 1}),
    Form(
        "ReduceLogSumExp of nothing",
        [normal(5, 0, 1, 0)],
        opset=9,
        attributes={"axes": [2], "keepdims": 0},
    ),
    Form(
        "ConvTranspose to a shape",
        [normal(1, 2, 4, 3)],
        [normal(2, 3, 3, 3)],
        attributes={"output_shape": [8, 5], "strides": [2, 2]},
    ),
    Form(
        "ConvTranspose to an odd shape",
        [normal(1, 2, 4, 3)],
        [normal(2, 3, 4, 3)],
        attributes={"output_shape": [7, 6], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    *(
        Form(
            f"{name} of nothing",
            [np.abs(normal(2, 3)) + 0.1],
            [np.array([], "int64")],
            opset=18,
            attributes={"noop_with_empty_axes": 1},
        )
        for name in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceProd")
    ),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.label)
def test_forms(form: Form) -> None:
    for found, expected in zip(form.computed(), form.expected(), strict=True):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5)


# ONNX's text since opset 20; ONNX Runtime returns its operand.
ELEMENTWISE = {
    "ReduceL1": np.abs,
    "ReduceL2": np.abs,
    "ReduceLogSum": np.log,
    "ReduceLogSumExp": np.array,
    "ReduceSumSquare": np.square,
}
HALF = ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Elu", "LRN", "Selu", "ThresholdedRelu")


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_reductions_of_nothing_are_elementwise(name: str) -> None:
    x = np.abs(normal(2, 3)) + np.float32(0.1)
    form = Form(name, [x], [np.array([], "int64")], 1, 18, {"noop_with_empty_axes": 1})
    np.testing.assert_allclose(form.computed()[0], ELEMENTWISE[name](x), rtol=1e-5)


@pytest.mark.parametrize("name", HALF)
def test_functions_of_halves(name: str) -> None:
    low = 1.1 if name == "Acosh" else -0.9
    x = RNG.uniform(low, low + 1.7, (2, 3, 4, 5)).astype("float16")
    attributes = {"size": 3} if name == "LRN" else {}
    (found,) = Form(name, [x], attributes=attributes).computed()
    (expected,) = Form(name, [x.astype("float32")], attributes=attributes).expected()
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3)


def test_grids_of_one_row_begin_at_the_border() -> None:
    """ONNX's reference has -1 there, ONNX Runtime 1, PyTorch 0."""
    x = normal(2, 2, 3)
    form = Form("AffineGrid", [x], [array(2, 3, 1, 4)], attributes={"align_corners": 1})
    (expected,) = by_reference(form.model, {"o0": x})
    np.testing.assert_allclose(form.computed()[0], expected, rtol=1e-5, atol=1e-6)


def test_rms_normalization_over_all_axes() -> None:
    x, scale = normal(3, 4), normal(3, 4)
    form = Form("RMSNormalization", [x, scale], opset=23, attributes={"axis": 0})
    expected = x / np.sqrt((x * x).mean() + 1e-5) * scale
    np.testing.assert_allclose(form.computed()[0], expected, rtol=1e-4, atol=1e-5)


def test_mean_variance_normalization_of_a_constant_channel() -> None:
    """ONNX Runtime takes the root of a variance that came out below zero."""
    x = normal(2, 3, 4, 5) * array(1, 0, 2, dtype="float32").reshape(3, 1, 1) + 1.1
    (found,) = Form("MeanVarianceNormalization", [x.astype("float32")]).computed()
    wide = x.astype("float64")
    centred = wide - wide.mean((0, 2, 3), keepdims=True)
    expected = centred / (wide.std((0, 2, 3), keepdims=True) + 1e-9)
    assert np.abs(found[:, 1]).max() < 1  # of the rounding of the mean: no quotient by 0
    np.testing.assert_allclose(found[:, ::2], expected[:, ::2], rtol=1e-4, atol=2e-5)


REFUSED = {
    "sorted is 0": Form("Unique", [between(0, 5, 9)], attributes={"sorted": 0}),
    "results behind the first": Form("Unique", [between(0, 5, 9)], outputs=4),
    "training_mode": Form(
        "Dropout", [normal(2, 3)], [array(0.5, dtype="float32")[0], np.array(True)]
    ),
    "larger than its kernel reaches": Form(
        "ConvTranspose",
        [normal(1, 2, 4, 3)],
        [normal(2, 3, 1, 2)],
        attributes={"auto_pad": "SAME_LOWER", "strides": [3, 3]},
    ),
    "diagonal": Form("Einsum", [normal(3, 3)], attributes={"equation": "ii->i"}),
    "known at run time only": Form("NonMaxSuppression", [BOXES, SCORES, array(3)]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_refused(reason: str) -> None:
    form = REFUSED[reason]
    operator = form.label.split()[0]
    with pytest.raises(UnsupportedOperatorError, match=rf"{operator} \(node 'it'\): .*{reason}"):
        frontend.load(form.model)


def test_masks_that_nobody_reads_are_none() -> None:
    node = helper.make_node("Dropout", ["x"], ["y", "mask"], "it")
    model = several_nodes([node], {"x": normal(2, 3)}, {}, 9)
    with pytest.raises(UnsupportedOperatorError, match=r"Dropout \(node 'it'\): .*mask"):
        frontend.load(model)
    del model.graph.output[1]
    assert frontend.load(model).outputs[0].shape == (2, 3)


@pytest.mark.parametrize(
    "nodes",
    [
        [helper.make_node("Unsqueeze", ["c"], ["k"], axes=[3, 1])],
        [
            helper.make_node("Cos", ["c"], ["a"]),
            helper.make_node("Unsqueeze", ["a"], ["k"], axes=[1, 0]),
        ],
    ],
)
def test_what_the_reference_misreads_is_not_folded(nodes: list) -> None:
    x = normal(1, 2, 3, 4)
    model = several_nodes(
        [*nodes, helper.make_node("Mul", ["k", "x"], ["y"])],
        {"x": x},
        {"c": normal(2, 1) if len(nodes) == 1 else normal(3, 4)},
        11,
    )
    found = tvm_blislike.compile(model, threads=1).run({"x": x})
    for value, expected in zip(found.values(), by_onnxruntime(model, {"x": x}), strict=True):
        assert value.shape == expected.shape
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def test_chains_of_functions_with_a_tail_of_one_element_compile() -> None:
    """LLVM did not end on a scalar tanh of a log of an exp in one expression."""
    x = normal(1, 17)
    (found,) = Form("Mish", [x], opset=18).computed()
    expected = x * np.tanh(np.log1p(np.exp(x)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_boxes_that_others_read_are_refused() -> None:
    form = Form("NonMaxSuppression", [BOXES, SCORES], [array(3)])
    model = form.model
    assert frontend.load(model).outputs[0].shape == (None, 3)
    model.graph.node.append(helper.make_node("Cast", ["r0"], ["y"], "reader", to=1))
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    message = r"NonMaxSuppression \(node 'it'\): how many boxes.*Cast \(node 'reader'\)"
    with pytest.raises(UnsupportedOperatorError, match=message):
        frontend.load(model)


def test_folding_leaves_numbers_to_the_compiler() -> None:
    """ONNX's reference implementation errs in grouped ConvTranspose."""
    form = Form("ConvTranspose", [], [normal(1, 4, 3), normal(4, 1, 3)], attributes={"group": 4})
    x = normal(2)
    model = form.model
    model.graph.input.append(helper.make_tensor_value_info("x", 1, [2]))
    model.graph.node.append(helper.make_node("Neg", ["x"], ["y"]))
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    expected = by_onnxruntime(model, {"x": x})
    for found, value in zip(
        tvm_blislike.compile(model).run({"x": x}).values(), expected, strict=True
    ):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
