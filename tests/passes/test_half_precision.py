"""Models of 16-bit floats on cores without their arithmetic, and what a user sees of the bits."""

from __future__ import annotations

import re
from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tvm_blislike
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.runtime.compiled import CompiledModel

HALF, BRAIN = TensorProto.FLOAT16, TensorProto.BFLOAT16
NUMPY = {HALF: np.dtype(np.float16), BRAIN: np.dtype(ml_dtypes.bfloat16)}
NATIVE = native_core()
# This machine, without arithmetic of 16 bits should it have it.
PLAIN = replace(NATIVE, features=tuple(name for name in NATIVE.features if name != "fp16"))
# Relative error of a result that is rounded once, and of one from operators that round, each.
ONCE = {HALF: 2**-11, BRAIN: 2**-8}


def software_conversions(compiled: CompiledModel) -> list[str]:
    """Return the calls of functions that convert half precision in software."""
    return re.findall(
        r"(?:call\w*|jmp|bl?)\s+\S*(?:hfsf2|sfhf2|sfbf2|h2f|f2h)\S*", compiled.assembly()
    )


def constant(name: str, dtype: int, values: object) -> onnx.TensorProto:
    array = np.asarray(values, NUMPY[dtype])
    return helper.make_tensor(name, dtype, array.shape, array.tobytes(), raw=True)


def graph(
    dtype: int,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[int]],
    outputs: dict[str, int],
    constants: list[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Return a model with inputs of a type and outputs of any, whose shapes follow."""
    ins = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()]
    outs = [helper.make_tensor_value_info(name, of, None) for name, of in outputs.items()]
    made = helper.make_graph(nodes, "m", ins, outs, list(constants))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def small_network(dtype: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return layers, a split, a cast of the model's own and two outputs, and the weights."""
    rng = np.random.default_rng(0)
    values = {
        "w": rng.standard_normal((32, 8, 3, 3)) / 8,
        "v": rng.standard_normal((16 * 36, 300)) / 20,
        "b": rng.standard_normal(32),
        "g": rng.random(32) + 0.5,
        "t": rng.standard_normal(32),
        "me": rng.standard_normal(32),
        "va": rng.random(32) + 0.5,
        "lo": 0.0,
        "hi": 3.0,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "g", "t", "me", "va"], ["n"]),
        helper.make_node("Clip", ["n", "lo", "hi"], ["r"]),
        helper.make_node("Split", ["r"], ["s", "u"], axis=1, num_outputs=2),
        helper.make_node("Sigmoid", ["s"], ["q"]),
        helper.make_node("Mul", ["q", "u"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
        helper.make_node("Softmax", ["y"], ["z"]),
    ]
    constants = [constant(name, dtype, array) for name, array in values.items()]
    model = graph(dtype, nodes, {"x": [1, 8, 8, 8]}, {"y": dtype, "z": dtype}, constants)
    arrays = {name: np.asarray(a, NUMPY[dtype]).astype(np.float32) for name, a in values.items()}
    return model, arrays


def in_floats(model: onnx.ModelProto, arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return the same model with the same numbers in fp32."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.initializer[:], wide.graph.value_info[:]
    wide.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    for value in (*wide.graph.input, *wide.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return wide


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_a_network_is_as_exact_as_its_weights_and_outputs(dtype: int) -> None:
    model, arrays = small_network(dtype)
    x = np.random.default_rng(1).standard_normal((1, 8, 8, 8)).astype(NUMPY[dtype])
    session = onnxruntime.InferenceSession(in_floats(model, arrays).SerializeToString())
    expected = session.run(["y", "z"], {"x": x.astype(np.float32)})
    compiled = tvm_blislike.compile(model, PLAIN, threads=1, records="none")
    found = compiled.run({"x": x})
    for name, wanted in zip("yz", expected, strict=True):
        assert found[name].dtype == NUMPY[dtype]
        # Nothing is rounded in between.
        errors = np.abs(found[name].astype(np.float64) - wanted)
        assert (errors <= ONCE[dtype] * np.abs(wanted) + 2e-5 * np.abs(wanted).max()).all()
    layers = [layer for layer in compiled.explain().layers if layer.types]
    assert {(layer.types[0], *layer.types[2:]) for layer in layers} == {("float32",) * 3}
    # The matrix is read in the bits that it has.
    assert layers[-1].types[1] in ("float16", "bfloat16")
    assert layers[-1].weights_error == 0
    assert software_conversions(compiled) == []


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_casts_of_the_models_own_round(dtype: int) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["w", "w"], ["m"]),
        helper.make_node("Cast", ["m"], ["h"], to=dtype),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
    ]
    model = graph(dtype, nodes, {"x": [64]}, {"y": TensorProto.FLOAT})
    x = np.random.default_rng(2).standard_normal(64).astype(NUMPY[dtype])
    found = tvm_blislike.compile(model, PLAIN, threads=1).run({"x": x})["y"]
    wide = x.astype(np.float32)
    rounded = (wide * wide).astype(NUMPY[dtype]).astype(np.float32)
    np.testing.assert_array_equal(found, rounded)


OPERATORS = {
    "TopK": helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1),
    "CumSum": helper.make_node("CumSum", ["x", "one"], ["y"]),
    "ReduceMean": helper.make_node("ReduceMean", ["x", "axes"], ["y"]),
    "LayerNormalization": helper.make_node("LayerNormalization", ["x", "s", "s"], ["y"]),
    "Where": helper.make_node("Where", ["c", "x", "s"], ["y"]),
    "Pad": helper.make_node("Pad", ["x", "pads"], ["y"], mode="reflect"),
    "Gather": helper.make_node("Gather", ["x", "axes"], ["y"], axis=1),
    "Concat": helper.make_node("Concat", ["x", "x"], ["y"], axis=0),
    "Greater": helper.make_node("Greater", ["x", "s"], ["y"]),
    "Cast": helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT32),
    "Transpose": helper.make_node("Transpose", ["x"], ["y"]),
    "Max": helper.make_node("Max", ["x", "s", "x"], ["y"]),
    "Erf": helper.make_node("Erf", ["x"], ["y"]),
    "LogSoftmax": helper.make_node("LogSoftmax", ["x"], ["y"]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_with_and_without_a_form_in_fp32(name: str) -> None:
    rng = np.random.default_rng(3)
    constants = [
        constant("s", HALF, rng.standard_normal(12)),
        onnx.numpy_helper.from_array(np.array([5]), "k"),
        onnx.numpy_helper.from_array(np.array(1), "one"),
        onnx.numpy_helper.from_array(np.array([1]), "axes"),
        onnx.numpy_helper.from_array(np.array([0, 1, 0, 2]), "pads"),
        onnx.numpy_helper.from_array(rng.random((8, 12)) < 0.5, "c"),
    ]
    node = OPERATORS[name]
    read = {*node.input}
    types = {"Greater": TensorProto.BOOL, "Cast": TensorProto.INT32}
    outputs = {
        out: TensorProto.INT64 if out == "i" else types.get(name, HALF) for out in node.output
    }
    made = graph(HALF, [node], {"x": [8, 12]}, outputs, [c for c in constants if c.name in read])
    x = rng.standard_normal((8, 12)).astype(np.float16)
    compiled = tvm_blislike.compile(made, PLAIN, threads=1, records="none")
    found = compiled.run({"x": x})
    expected = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    for out, wanted in zip(node.output, expected, strict=True):
        assert found[out].dtype == wanted.dtype
        np.testing.assert_allclose(found[out], wanted, rtol=4e-3, atol=4e-3)
    assert software_conversions(compiled) == []


@pytest.mark.parametrize("largest", [0, 1])
def test_bfloat16_is_sorted(largest: int) -> None:
    node = helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=0, largest=largest)
    count = onnx.numpy_helper.from_array(np.array([5]), "k")
    made = graph(BRAIN, [node], {"x": [40, 3]}, {"y": BRAIN, "i": TensorProto.INT64}, [count])
    x = np.random.default_rng(4).permutation(120).reshape(40, 3).astype(NUMPY[BRAIN])
    found = tvm_blislike.compile(made, threads=1, records="none").run({"x": x})
    order = np.argsort(-x.astype(int) if largest else x.astype(int), axis=0)[:5]
    np.testing.assert_array_equal(found["i"], order)
    np.testing.assert_array_equal(found["y"], np.take_along_axis(x, order, 0))


@pytest.mark.parametrize("name", ["cortex-a72", "zen4", "haswell"])
def test_other_cores_compute_layers_in_fp32(name: str) -> None:
    compiled = tvm_blislike.compile(small_network(HALF)[0], Core.named(name), threads=1)
    layers = [layer for layer in compiled.explain().layers if layer.types]
    assert layers and {layer.types[2] for layer in layers} == {"float32"}
    assert not [note for note in compiled.explain().notes if "default rule for" in note]
    assert software_conversions(compiled) == []


def test_cores_with_the_arithmetic_keep_it() -> None:
    compiled = tvm_blislike.compile(small_network(HALF)[0], Core.named("cortex-a76"), threads=1)
    layers = [layer for layer in compiled.explain().layers if layer.types]
    assert layers and {layer.types[2] for layer in layers} == {"float16"}
