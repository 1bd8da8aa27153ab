"""Products of integers whose zero point comes at run time: exact, and on integer kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from effort import crossed
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_runtime import exact_session
from rewrites import Arrays, several_nodes

import tvm_blislike
from tvm_blislike.hardware import Core
from tvm_blislike.onnx.frontend import load
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.quantized.to_integers import left_wide
from tvm_blislike.runtime.runnable import why_not_runnable
from tvm_blislike.tvm_seams import bindings, dtype_name, functions, op_name

TYPES = ["uint8", "int8"]


def integers(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    """Integers of which every fourth is the smallest or the largest there is."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    ends = np.where(rng.random(shape) < 0.5, limits.min, limits.max).astype(dtype)
    return np.where(rng.random(shape) < 0.25, ends, values)


def results(model: onnx.ModelProto, inputs: Arrays, core: str | None = None) -> list[np.ndarray]:
    compiled = tvm_blislike.compile(model, *([core] if core else []))
    return list(compiled.run(inputs).values())


def factors(model: onnx.ModelProto, core: str) -> list[tuple[str, ...]]:
    """Operators with the types of their two factors that a core's choices are made for."""
    mod = Canonicalize(Core.named(core))(load(model).module)
    values = [b.value for _, func in functions(mod) for b in bindings(func)]
    layers = [v for v in values if op_name(v) in ("relax.matmul", "relax.nn.conv2d")]
    return [(op_name(v), *map(dtype_name, v.args)) for v in layers]


def product(operator: str, inputs: Arrays, constants: Arrays, **attributes: object) -> object:
    node = helper.make_node(operator, ["a", "b", "za", "zb"], ["y"], "it", **attributes)
    return several_nodes([node], inputs, constants)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99),
    data=st.sampled_from(TYPES),
    weights=st.sampled_from(TYPES),
    batch=st.sampled_from([(), (1,), (3,), (2, 3)]),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(1, 40)),
    by_column=st.booleans(),
    zero=st.sampled_from(["least", "zero", "most", "any"]),
)
def test_sums_of_matrices_are_exact(
    seed: int,
    data: str,
    weights: str,
    batch: tuple[int, ...],
    sizes: tuple[int, int, int],
    by_column: bool,
    zero: str,
) -> None:
    m, k, n = sizes
    rng, limits = np.random.default_rng(seed), np.iinfo(data)
    place = {
        "least": limits.min,
        "zero": 0,
        "most": limits.max,
        "any": rng.integers(-100, 100) % 100,
    }
    inputs = {"a": integers(rng, data, *batch, m, k), "za": np.array(place[zero], data)}
    constants = {
        "b": integers(rng, weights, k, n),
        "zb": integers(rng, weights, *([n] if by_column else [])),
    }
    model = product("MatMulInteger", inputs, constants)
    wide = {name: array.astype(np.int64) for name, array in {**inputs, **constants}.items()}
    expected = (wide["a"] - wide["za"]) @ (wide["b"] - wide["zb"])
    (found,) = results(model, inputs)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    for core, type_ in (("zen4", "uint8"), ("cortex-a76", "int8")):
        assert factors(model, core) == [("relax.matmul", type_, "int8")]


def convolution(inputs: Arrays, constants: Arrays, **attributes: object) -> np.ndarray:
    """The exact result of a ConvInteger: sums stay far below what float64 holds."""
    wide = {"x": inputs["a"].astype(np.float64) - inputs["za"]}
    by_output = constants["zb"].astype(np.float64).reshape(-1, 1, 1, 1)
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    of_floats = several_nodes([node], wide, {"w": constants["b"] - by_output})
    return onnx.reference.ReferenceEvaluator(of_floats).run(None, wide)[0]


ATTRIBUTES = [
    {},
    {"pads": [1, 0, 2, 1], "strides": [2, 1]},
    {"pads": [2, 2, 2, 2], "dilations": [2, 1]},
    {"pads": [1, 1, 1, 1], "group": 8},
]


@pytest.mark.parametrize(
    ("data", "weights", "attributes", "zero", "by_output"),
    crossed(TYPES, TYPES, ATTRIBUTES, [0, 117, 255], [False, True]),
)
def test_sums_of_images_are_exact(
    data: str, weights: str, attributes: dict, zero: int, by_output: bool
) -> None:
    rng = np.random.default_rng(5)
    shift = 0 if data == "uint8" else 128
    inputs = {"a": integers(rng, data, 2, 8, 9, 11), "za": np.array(zero - shift, data)}
    groups = attributes.get("group", 1)
    outputs = 8 if groups > 1 else 6
    constants = {
        "b": integers(rng, weights, outputs, 8 // groups, 3, 3),
        "zb": integers(rng, weights, *([outputs] if by_output else [])),
    }
    model = product("ConvInteger", inputs, constants, **attributes)
    (found,) = results(model, inputs)
    np.testing.assert_array_equal(found, convolution(inputs, constants, **attributes))
    assert set(factors(model, "zen4")) == {("relax.nn.conv2d", "uint8", "int8")}


def test_sums_of_images_in_groups_are_exact() -> None:
    rng = np.random.default_rng(7)
    inputs = {"a": integers(rng, "uint8", 2, 8, 9, 11), "za": np.array(30, "uint8")}
    weights = np.clip(integers(rng, "int8", 6, 4, 3, 3), -120, 120)
    constants = {"b": weights, "zb": np.array(3, "int8")}
    model = product("ConvInteger", inputs, constants, group=2)
    (found,) = results(model, inputs)
    np.testing.assert_array_equal(found, convolution(inputs, constants, group=2))
    assert factors(model, "zen4") == [("relax.nn.conv2d", "uint8", "int8")]


def test_weights_of_nine_bits_keep_groups_wide_and_it_is_said() -> None:
    rng = np.random.default_rng(6)
    inputs = {"a": integers(rng, "uint8", 1, 4, 6, 6), "za": np.array(9, "uint8")}
    constants = {"b": integers(rng, "uint8", 6, 2, 3, 3), "zb": np.array(50, "uint8")}
    model = product("ConvInteger", inputs, constants, group=2)
    assert factors(model, "zen4") == [("relax.nn.conv2d", "int32", "int32")]
    mod = Canonicalize(Core.named("zen4"))(load(model).module)
    (reason,) = left_wide(mod["main"])["int32"].values()
    assert "more than 8 bits" in reason and "groups" in reason
    notes = tvm_blislike.compile(model, "zen4", threads=1).explain().notes
    assert [note for note in notes if note.startswith("in int32: conv2d") and reason in note]
    assert not [note for note in notes if note.startswith("in float32:")]
    (found,) = results(model, inputs)
    np.testing.assert_array_equal(found, convolution(inputs, constants, group=2))


def test_products_of_two_operands_of_run_time() -> None:
    rng = np.random.default_rng(7)
    inputs = {
        "a": integers(rng, "uint8", 2, 3, 5, 17),
        "b": integers(rng, "uint8", 2, 3, 17, 6),
        "za": np.array(128, "uint8"),
        "zb": np.array(3, "uint8"),
    }
    wide = {name: array.astype(np.int64) for name, array in inputs.items()}
    expected = (wide["a"] - wide["za"]) @ (wide["b"] - wide["zb"])
    (found,) = results(product("MatMulInteger", inputs, {}), inputs)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
def test_dynamically_quantized_layers(weights: str, by_channel: bool, tmp_path: Path) -> None:
    import onnxruntime.quantization as ort

    rng = np.random.default_rng(8)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["c", "p"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("Add", ["r", "x"], ["y"]),
    ]
    x = rng.standard_normal((2, 7, 33)).astype("float32")
    arrays = {"w": rng.standard_normal((33, 33)) + 0.2, "c": rng.standard_normal(33)}
    constants = {name: array.astype("float32") for name, array in arrays.items()}
    model = several_nodes(nodes, {"x": x}, constants, opset=17)
    del model.graph.output[:-1]
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, x.shape)
    )
    onnx.save(model, tmp_path / "floats.onnx")
    path = tmp_path / "integers.onnx"
    options = {"per_channel": by_channel, "weight_type": getattr(ort.QuantType, weights)}
    ort.quantize_dynamic(tmp_path / "floats.onnx", path, **options)
    quantized = onnx.load(path)
    (expected,) = exact_session(quantized, optimized=True).run(None, {"x": x})
    assert "MatMulInteger" in [node.op_type for node in quantized.graph.node]
    (found,) = results(quantized, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert factors(quantized, "zen4") == [("relax.matmul", "uint8", "int8")]


@pytest.mark.parametrize("shape", [(1,), (300,), (5, 3), (1, 4, 7, 9), (2, 3, 700)])
@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0, None])
def test_steps_of_run_time(shape: tuple[int, ...], shift: float | None) -> None:
    rng = np.random.default_rng(9)
    x = np.zeros(shape, "float32")
    if shift is not None:
        x = (rng.standard_normal(shape) + shift).astype("float32")
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "scale", "zero"])
    model = several_nodes([node], {"x": x})
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255)) or np.float32(1)
    zero = np.uint8(np.clip(np.rint(-low / scale), 0, 255))
    steps = np.clip(np.rint(x / scale) + np.float32(zero), 0, 255).astype(np.uint8)
    for found, expected in zip(results(model, {"x": x}), (steps, scale, zero), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("core, types", [("x86-64-v3", "int16"), ("golden-cove", "int8")])
@pytest.mark.parametrize("data", TYPES)
def test_cores_with_other_products_sum_exactly(core: str, types: str, data: str) -> None:
    if reason := why_not_runnable(Core.named(core).target_config(1)):
        pytest.skip(reason)
    rng = np.random.default_rng(10)
    inputs = {"a": integers(rng, data, 9, 37), "za": np.array(100, data)}
    constants = {"b": integers(rng, "int8", 37, 21), "zb": np.array(0, "int8")}
    model = product("MatMulInteger", inputs, constants)
    expected = (inputs["a"].astype(np.int64) - 100) @ constants["b"].astype(np.int64)
    np.testing.assert_array_equal(results(model, inputs, core)[0], expected)
    assert factors(model, core) == [("relax.matmul", "uint8", types)]
