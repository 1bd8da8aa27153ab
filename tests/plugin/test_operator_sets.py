"""Versions, foreign domains and functions of a model: read right, or refused by name."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, defs, helper, numpy_helper
from small_models import float_input, make_model, small_network, small_reference

import tvm_blislike
from tvm_blislike.errors import ModelError, UnsupportedOperatorError
from tvm_blislike.onnx import frontend

RNG = np.random.default_rng(3)
NEWEST = defs.onnx_opset_version()
CONTRIB = helper.make_opsetid("com.microsoft", 1)


@pytest.mark.parametrize("version", [-1, 0, NEWEST + 1, 99])
def test_operator_sets_that_onnx_does_not_know(version: int) -> None:
    model = small_network()
    model.opset_import[0].version = version
    with pytest.raises(ModelError, match=rf"opset\) {version};.* knows 1 to {NEWEST}\n"):
        frontend.load(model)


@pytest.mark.parametrize("version", [1, 2, onnx.IR_VERSION + 1, 99])
def test_ir_versions_that_onnx_does_not_know(version: int) -> None:
    model = small_network()
    model.ir_version = version
    with pytest.raises(ModelError, match=rf"IR version {version};.* knows 3 to {onnx.IR_VERSION}"):
        frontend.load(model)


@pytest.mark.parametrize("version", [13, NEWEST])
def test_known_versions_still_load(version: int) -> None:
    model = small_network()
    model.opset_import[0].version = version
    model.ir_version = onnx.IR_VERSION
    assert frontend.load(model).outputs[0].shape == (1, 5)


@pytest.mark.parametrize(
    ("sets", "message"),
    [([("com.mine", 1)], "does not say which version"), ([("", 13), ("ai.onnx", 17)], "13 and 17")],
)
def test_models_must_name_one_version_of_onnx(sets: list, message: str) -> None:
    model = small_network()
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(*item) for item in sets)
    with pytest.raises(ModelError, match=message):
        frontend.load(model)


def unary(operator: str, domain: str, functions: tuple = ()) -> onnx.ModelProto:
    """Return y = operator(x), whose domain the model imports."""
    node = helper.make_node(operator, ["x"], ["y"], "it", domain=domain)
    model = make_model([node], [float_input("x", [2, 3])], [float_input("y", [2, 3])], [])
    if domain not in ("", "ai.onnx"):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    model.functions.extend(functions)
    return model


@pytest.mark.parametrize(
    ("operator", "domain"),
    [
        ("Relu", "com.mine"),
        ("Gelu", "com.mine"),
        ("Relu", "com.microsoft"),
        ("Unique", "com.microsoft"),
        ("Constant", "com.mine"),
        ("Attention", ""),
    ],
)
def test_foreign_operators_are_refused_whatever_their_name(operator: str, domain: str) -> None:
    named = f"{domain}.{operator}" if domain else operator
    with pytest.raises(UnsupportedOperatorError, match=rf"{named} \(node 'it'\)"):
        frontend.load(unary(operator, domain))


def test_foreign_operators_inside_branches_are_refused() -> None:
    branches = [
        helper.make_graph(
            [helper.make_node("Relu", ["x"], [f"in_{name}"], name, domain=domain)],
            name,
            [],
            [float_input(f"in_{name}", [2])],
        )
        for name, domain in (("mine", "com.mine"), ("usual", ""))
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[1], else_branch=branches[0])
    condition = helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    model = make_model([node], [condition, float_input("x", [2])], [float_input("y", [2])], [])
    with pytest.raises(UnsupportedOperatorError, match=r"com\.mine\.Relu \(node 'mine'\)"):
        frontend.load(model)


def test_onnx_has_two_names() -> None:
    model = unary("Relu", "ai.onnx")
    x = RNG.standard_normal((2, 3)).astype("float32")
    np.testing.assert_array_equal(tvm_blislike.compile(model).run({"x": x})["y"], np.maximum(x, 0))


def negation(opset: int = 17) -> onnx.FunctionProto:
    """Return a function of the name Relu that is none."""
    body = [helper.make_node("Neg", ["a"], ["b"])]
    return helper.make_function(
        "mine", "Relu", ["a"], ["b"], body, [helper.make_opsetid("", opset)]
    )


def test_functions_of_the_model_are_what_it_says() -> None:
    model = unary("Relu", "mine", (negation(),))
    before = model.SerializeToString(deterministic=True)
    x = RNG.standard_normal((2, 3)).astype("float32")
    np.testing.assert_array_equal(tvm_blislike.compile(model).run({"x": x})["y"], -x)
    assert model.SerializeToString(deterministic=True) == before


def test_functions_between_weights_keep_them() -> None:
    model = small_network()
    body = [helper.make_node("Relu", ["a"], ["b"])]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("mine", "Neg", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    model.graph.node[1].op_type, model.graph.node[1].domain = "Neg", "mine"
    image = RNG.standard_normal((1, 3, 8, 8)).astype("float32")
    scores = tvm_blislike.compile(model).run({"image": image})["scores"]
    np.testing.assert_allclose(scores, small_reference(image), rtol=1e-4, atol=1e-5)


def test_functions_of_another_opset_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match=r"mine\.Relu .*\n.*another opset"):
        frontend.load(unary("Relu", "mine", (negation(opset=13),)))


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


WIDE = [RNG.integers(-3000, 3000, shape).astype("int16") for shape in ((2, 3), (3, 4))]
# Operator, operands, attributes.
OF_MICROSOFT = {
    "Gelu": ([normal(2, 6)], {}),
    "FastGelu": ([normal(2, 6)], {}),
    "FastGelu with bias": ([normal(2, 6), normal(6)], {}),
    "BiasGelu": ([normal(2, 6), normal(6)], {}),
    "SkipLayerNormalization": (
        [normal(2, 3, 8), normal(2, 3, 8), normal(8), normal(8), normal(8)],
        {"epsilon": 1e-3},
    ),
    "EmbedLayerNormalization": (
        [
            RNG.integers(0, 9, (2, 5)).astype("int32"),
            RNG.integers(0, 2, (2, 5)).astype("int32"),
            *(normal(rows, 8) for rows in (9, 5, 2)),
            normal(8),
            normal(8),
        ],
        {"epsilon": 1e-3},
    ),
    "Attention": ([normal(2, 5, 8), normal(8, 24), normal(24)], {"num_heads": 2}),
    "MatMulInteger16": (WIDE, {}),
    "QuantizeLinear": ([normal(2, 6) * 9000, np.float32(0.4), np.int16(5)], {}),
    "DequantizeLinear": ([WIDE[0], np.float32(0.4), np.int16(5)], {}),
}


@pytest.mark.parametrize("name", OF_MICROSOFT)
def test_what_is_read_of_microsofts_operators(name: str) -> None:
    operands, attributes = OF_MICROSOFT[name]
    names = [f"operand_{index}" for index in range(len(operands))]
    results = ["y", "unread"] if name.startswith("Embed") else ["y"]
    node = helper.make_node(name.split()[0], names, results, domain="com.microsoft", **attributes)
    weights = [numpy_helper.from_array(a, n) for a, n in zip(operands, names, strict=True)][1:]
    element = helper.np_dtype_to_tensor_dtype(operands[0].dtype)
    first = helper.make_tensor_value_info(names[0], element, operands[0].shape)
    y = onnx.ValueInfoProto(name="y")
    model = make_model([node], [first], [y], weights)
    model.opset_import.append(CONTRIB)
    (expected,) = _onnxruntime(model, {names[0]: operands[0]})
    (result,) = tvm_blislike.compile(model).run({names[0]: operands[0]}).values()
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("read_by_a_node", [False, True])
def test_results_that_are_not_computed(read_by_a_node: bool) -> None:
    operator = "SkipSimplifiedLayerNormalization"
    operands, domain = ["x", "x", "w"], "com.microsoft"
    node = helper.make_node(operator, operands, ["y", "second"], "it", domain=domain)
    reader = helper.make_node("Neg", ["second"], ["z"])
    inputs = [float_input("x", [2, 3]), float_input("w", [3])]
    result = float_input("z" if read_by_a_node else "second", [2])
    model = make_model([node, reader], inputs, [result], [])
    model.opset_import.append(CONTRIB)
    with pytest.raises(UnsupportedOperatorError, match=rf"{operator} .*'it'.*'second' is read"):
        frontend.load(model)


def _onnxruntime(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, inputs)


def test_a_model_of_foreign_operators_alone_needs_no_version_of_onnx() -> None:
    node = helper.make_node("Binarizer", ["x"], ["y"], "b0", domain="ai.onnx.ml")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([node], "foreign", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx.ml", 1)])
    with pytest.raises(UnsupportedOperatorError, match=r"ai\.onnx\.ml\.Binarizer \(node 'b0'\)"):
        frontend.load(model)
