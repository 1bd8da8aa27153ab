"""Operators of ONNX Runtime's own against its kernels, on random data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_runtime import exact_session
from rewrites import Arrays, several_nodes

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError

RANDOM = np.random.default_rng(3)
MICROSOFT = "com.microsoft"


def data(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model_of(
    operator: str,
    operands: list[str],
    results: int,
    inputs: Arrays,
    constants: Arrays,
    version: int = 17,
    **attributes: object,
) -> onnx.ModelProto:
    names = [f"y{index}" for index in range(results)]
    node = helper.make_node(operator, operands, names, "n", domain=MICROSOFT, **attributes)
    model = several_nodes([node], inputs, constants, version)
    model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return model


def assert_like_runtime(model: onnx.ModelProto, inputs: Arrays, atol: float = 2e-5) -> None:
    ours = tvm_blislike.compile(model).run(inputs)
    expected = exact_session(model, optimized=True).run(None, inputs)
    for name, theirs in zip(ours, expected, strict=True):
        assert ours[name].dtype == theirs.dtype
        assert ours[name].shape == theirs.shape
        np.testing.assert_allclose(ours[name], theirs, rtol=1e-4, atol=atol)


@pytest.mark.parametrize(
    ("activation", "numbers"),
    [
        ("Relu", []),
        ("Sigmoid", []),
        ("Tanh", []),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 1.0]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
@pytest.mark.parametrize("residual", [False, True])
def test_fused_convolutions(activation: str, numbers: list[float], residual: bool) -> None:
    inputs = {"x": data(1, 4, 9, 8)}
    constants = {"w": data(6, 4, 3, 3), "b": data(6)}
    operands = ["x", "w", "b"]
    if residual:
        inputs["z"] = data(1, 6, 9, 8)
        operands.append("z")
    attributes = {"activation": activation, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if numbers:
        attributes["activation_params"] = numbers
    model = model_of("FusedConv", operands, 1, inputs, constants, **attributes)
    assert_like_runtime(model, inputs)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Tanh"])
def test_fused_products_with_an_activation(activation: str) -> None:
    inputs, constants = {"x": data(7, 5)}, {"w": data(6, 7), "c": data(6)}
    more = {"activation_alpha": 0.1} if activation == "LeakyRelu" else {}
    attributes = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0, **more}
    model = model_of(
        "FusedGemm", ["x", "w", "c"], 1, inputs, constants, activation=activation, **attributes
    )
    assert_like_runtime(model, inputs)


@pytest.mark.parametrize("turned", [(), ("transA",), ("transB",), ("transA", "transB")])
@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize("constant", [False, True])
def test_products_of_transposed_factors(turned: tuple, batch: tuple, constant: bool) -> None:
    left = (7, 4) if "transA" in turned else (4, 7)
    right = (5, 7) if "transB" in turned else (7, 5)
    inputs, other = {"a": data(*batch, *left)}, {"b": data(*batch, *right)}
    constants = other if constant else {}
    inputs = inputs if constant else {**inputs, **other}
    attributes = dict.fromkeys(turned, 1)
    model = model_of("FusedMatMul", ["a", "b"], 1, inputs, constants, alpha=0.3, **attributes)
    assert_like_runtime(model, inputs)


def test_products_whose_batch_stands_behind() -> None:
    inputs = {"a": data(4, 3, 7), "b": data(7, 3, 5)}
    model = model_of("FusedMatMul", ["a", "b"], 1, inputs, {}, transBatchA=1, transBatchB=1)
    assert_like_runtime(model, inputs)


@pytest.mark.parametrize("operator", ["Gelu", "FastGelu", "QuickGelu", "BiasGelu"])
def test_gelu(operator: str) -> None:
    inputs, constants = {"x": data(3, 40) * 3}, {"b": data(40)}
    operands = ["x", "b"] if operator in ("BiasGelu", "FastGelu") else ["x"]
    constants = constants if len(operands) > 1 else {}
    assert_like_runtime(model_of(operator, operands, 1, inputs, constants), inputs)


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("results", [1, 4])
def test_sums_are_normalized(simplified: bool, bias: bool, beta: bool, results: int) -> None:
    inputs = {"x": data(2, 5, 24), "s": data(2, 5, 24)}
    constants = {"g": data(24), "beta": data(24), "b": data(24)}
    parts = ["x", "s", "g", *([] if simplified else ["beta" if beta else ""]), "b" if bias else ""]
    while not parts[-1]:
        parts.pop()
    constants = {name: constants[name] for name in parts[2:] if name}
    operator = f"Skip{'Simplified' if simplified else ''}LayerNormalization"
    model = model_of(operator, parts, results, inputs, constants, epsilon=1e-5)
    if results > 1:  # ONNX Runtime has kernels for the norm and the sum alone
        model.graph.node[0].output[1:3] = ["", ""]
        del model.graph.output[1:3]
    assert_like_runtime(model, inputs)


def test_simplified_layer_normalization() -> None:
    inputs, constants = {"x": data(2, 5, 24)}, {"g": data(24)}
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "g"], ["y"], axis=-1)
    model = several_nodes([node, helper.make_node("Relu", ["y"], ["z"])], inputs, constants)
    assert_like_runtime(model, inputs)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("places", [False, True])
def test_embeddings_are_normalized(segments: bool, mask: bool, places: bool) -> None:
    inputs = {"ids": RANDOM.integers(0, 30, (2, 6)).astype(np.int32)}
    constants = {"w": data(30, 16), "p": data(10, 16), "g": data(16), "b": data(16)}
    operands = ["ids", "", "w", "p", "", "g", "b", "", ""]
    if segments:
        inputs["segments"] = RANDOM.integers(0, 2, (2, 6)).astype(np.int32)
        constants["s"] = data(2, 16)
        operands[1], operands[4] = "segments", "s"
    if mask:
        inputs["mask"] = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)
        operands[7] = "mask"
    if places:
        inputs["places"] = RANDOM.integers(0, 10, (2, 6)).astype(np.int32)
        operands[8] = "places"
    while not operands[-1]:
        operands.pop()
    model = model_of("EmbedLayerNormalization", operands, 3, inputs, constants)
    assert_like_runtime(model, inputs)


@pytest.mark.parametrize("mask", ["", "keys", "lengths", "queries"])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("more", ["", "bias", "past", "sizes", "scale"])
def test_attention(mask: str, causal: int, more: str) -> None:
    past = 3 if more == "past" else 0
    batch, steps, heads, keys = 2, 5, 4, 5 + past
    sizes = [32, 32, 16] if more == "sizes" else [32, 32, 32]
    inputs, operands = {"x": data(batch, steps, 24)}, ["x", "w", "b", "", "", ""]
    constants = {"w": data(24, sum(sizes)) / 4, "b": data(sum(sizes))}
    attributes: dict[str, object] = {"num_heads": heads, "unidirectional": causal}
    masks = {
        "keys": np.array([[1] * keys, [1] * (keys - 2) + [0] * 2], np.int32),
        "lengths": np.array([keys, keys - 2], np.int32),
        "queries": np.tril(np.ones((batch, steps, keys), np.int32), 1 + past),
    }
    if mask:
        inputs["m"], operands[3] = masks[mask], "m"
    if more == "bias":
        inputs["a"], operands[5] = data(1, heads, steps, keys), "a"
    if more == "past":
        inputs["p"], operands[4] = data(2, batch, heads, past, 8), "p"
    if more == "sizes":
        attributes["qkv_hidden_sizes"] = sizes
    if more == "scale":
        attributes["scale"] = 0.2
    results = 2 if past else 1
    model = model_of("Attention", operands, results, inputs, constants, **attributes)
    assert_like_runtime(model, inputs, 1e-4)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("form", ["self", "cross", "bias", "past", "causal", "split"])
def test_multi_head_attention(mask: bool, form: str) -> None:
    batch, steps, heads, size = 2, 6, 4, 8
    others = 9 if form in ("cross", "split") else steps
    hidden = heads * size
    inputs = {
        "q": data(batch, steps, hidden),
        "k": data(batch, others, hidden),
        "v": data(batch, others, hidden),
    }
    constants: Arrays = {}
    operands, results = ["q", "k", "v", *[""] * 5], 1
    attributes: dict[str, object] = {"num_heads": heads}
    if form == "bias":
        constants["b"], operands[3] = data(3 * hidden), "b"
        inputs["a"], operands[5] = data(batch, heads, steps, others), "a"
    if form == "past":
        inputs["pk"], inputs["pv"] = data(batch, heads, 3, size), data(batch, heads, 3, size)
        operands[6:], results = ["pk", "pv"], 3
        others += 3
    if form == "causal":
        attributes["unidirectional"] = 1
    if form == "split":
        inputs["k"] = data(batch, heads, others, size)
        inputs["v"] = data(batch, heads, others, size)
    if mask:
        inputs["m"], operands[4] = np.ones((batch, others), np.int32), "m"
        inputs["m"][1, -2:] = 0
    while not operands[-1]:
        operands.pop()
    model = model_of("MultiHeadAttention", operands, results, inputs, constants, **attributes)
    assert_like_runtime(model, inputs, 1e-4)


def test_packed_queries_keys_and_values() -> None:
    """ONNX Runtime takes them on GPUs only."""
    packed = data(2, 6, 4, 3, 8)
    model = model_of("MultiHeadAttention", ["q"], 1, {"q": packed}, {}, num_heads=4)
    (ours,) = tvm_blislike.compile(model).run({"q": packed}).values()
    parts = {name: packed[:, :, :, i].reshape(2, 6, 32) for i, name in enumerate("qkv")}
    apart = model_of("MultiHeadAttention", [*"qkv"], 1, parts, {}, num_heads=4)
    (theirs,) = tvm_blislike.compile(apart).run(parts).values()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("form", ["rows", "heads", "offset", "part"])
def test_rotary_embedding(interleaved: int, form: str) -> None:
    batch, steps, heads, size = 2, 5, 3, 8
    inputs = {"x": data(batch, steps, heads * size)}
    if form == "heads":
        inputs["x"] = data(batch, heads, steps, size)
    half = 2 if form == "part" else 4
    inputs["p"] = RANDOM.integers(0, 12, (batch, steps))
    if form == "offset":
        inputs["p"] = np.array([4])
    attributes = {"interleaved": interleaved}
    if form == "part":
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 4}
    constants = {"c": data(12, half), "s": data(12, half)}
    operands = ["x", "p", "c", "s"]
    model = model_of("RotaryEmbedding", operands, 1, inputs, constants, **attributes)
    assert_like_runtime(model, inputs)


@pytest.mark.parametrize("silu", [0, 1])
@pytest.mark.parametrize("version", [17, 21])
def test_group_norm_with_channels_behind(silu: int, version: int) -> None:
    x, gamma, beta = data(2, 5, 4, 12), data(12), data(12)
    attributes = {"groups": 3, "activation": silu, "channels_last": 1, "epsilon": 1e-5}
    constants = {"g": gamma, "b": beta}
    model = model_of("GroupNorm", ["x", "g", "b"], 1, {"x": x}, constants, version, **attributes)
    parts = x.reshape(2, 20, 3, 4)
    mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    expected = ((parts - mean) / np.sqrt(variance + 1e-5)).reshape(x.shape) * gamma + beta
    expected = expected / (1 + np.exp(-expected)) if silu else expected
    (ours,) = tvm_blislike.compile(model).run({"x": x}).values()
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_quantized_softmax() -> None:
    inputs = {"x": RANDOM.integers(0, 255, (2, 3, 17)).astype(np.uint8)}
    constants = {
        "s": np.array(0.05, np.float32),
        "z": np.array(120, np.uint8),
        "t": np.array(1 / 256, np.float32),
        "u": np.array(0, np.uint8),
    }
    attributes = {"axis": -1, "opset": 13}
    model = model_of("QLinearSoftmax", ["x", *constants], 1, inputs, constants, **attributes)
    assert_like_runtime(model, inputs, 1)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_row", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_lstm_of_quantized_weights(direction: str, per_row: bool, dtype: str) -> None:
    """ONNX Runtime rounds data and states as well: to one in 255 of what they span."""
    directions, hidden, size = 2 if direction == "bidirectional" else 1, 8, 6
    lowest = -128 if dtype == "int8" else 0
    steps = (directions, 4 * hidden) if per_row else (directions,)
    constants = {"b": data(directions, 8 * hidden) / 8}
    for name, rows in (("w", size), ("r", hidden)):
        shape = (directions, rows, 4 * hidden)
        constants[name] = RANDOM.integers(lowest, lowest + 256, shape).astype(dtype)
        constants[f"{name}s"] = ((RANDOM.random(steps) + 0.5) / 400).astype(np.float32)
        middle = 0 if dtype == "int8" else 128  # ONNX Runtime packs no other zeros of rows
        constants[f"{name}z"] = np.full(steps, middle, dtype)
    inputs = {"x": data(5, 3, size)}
    operands = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    attributes = {"hidden_size": hidden, "direction": direction}
    model = model_of("DynamicQuantizeLSTM", operands, 3, inputs, constants, **attributes)
    assert_like_runtime(model, inputs, 3e-2)


@pytest.mark.parametrize(
    ("operator", "operands", "attributes", "reason"),
    [
        ("FusedConv", ["x4", "w4"], {"activation": "Cube"}, "its activation 'Cube'"),
        ("Attention", ["x", "w"], {"num_heads": 2, "do_rotary": 1}, "its do_rotary is set"),
        ("Attention", ["x", "w"], {"num_heads": 5}, "no queries, keys and values of 5 heads"),
        ("MultiHeadAttention", ["x"], {"num_heads": 2}, "it has no keys"),
        ("QLinearSoftmax", ["u", "s", "", "s", "z"], {"axis": 0, "opset": 12}, "its axis 0"),
    ],
)
def test_refusals(operator: str, operands: list[str], attributes: dict, reason: str) -> None:
    inputs = {"x": data(1, 3, 8), "x4": data(1, 2, 5, 5), "u": np.zeros((2, 4), np.uint8)}
    constants = {
        "w": data(8, 24),
        "w4": data(2, 2, 3, 3),
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.uint8),
    }
    model = model_of(operator, operands, 1, inputs, constants, **attributes)
    with pytest.raises(UnsupportedOperatorError, match=rf"{operator} \(node 'n'\): .*{reason}"):
        tvm_blislike.compile(model)
