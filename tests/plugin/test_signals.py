"""Fourier transforms and what belongs to them, against NumPy and ONNX's reference."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from rewrites import computed, one_node, operators, reference, runtime, written

import tvm_blislike
from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.frontend import load

RANDOM = np.random.default_rng(5)


def signal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(dtype)


def transform(
    x: np.ndarray, opset: int, axis: int, length: int | None, **more: int
) -> onnx.ModelProto:
    constants = {} if length is None else {"length": np.array(length)}
    operands = ["x", "length" if length is not None else ""]
    if opset < 20:
        more["axis"] = axis
    else:
        constants["axis"] = np.array(axis)
        operands.append("axis")
    return one_node(helper.make_node("DFT", operands, ["y"], **more), x, constants, opset)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("length", [None, 11, 40])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("parts", [1, 2])
def test_transforms(opset: int, length: int | None, axis: int, parts: int) -> None:
    x = signal(2, 24, 15, parts)
    complex_ = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    for inverse, fft in ((0, np.fft.fft), (1, np.fft.ifft)):
        expected = fft(complex_, length, axis)
        ours = computed(transform(x, opset, axis, length, inverse=inverse), x)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours[..., 0], expected.real, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(ours[..., 1], expected.imag, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [None, 9, 16, 31])
def test_transforms_of_one_side(length: int | None) -> None:
    x = signal(3, 16, 1)
    expected = np.fft.rfft(x[..., 0], length, 1)
    ours = computed(transform(x, 20, 1, length, onesided=1), x)
    np.testing.assert_allclose(ours[..., 0], expected.real, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours[..., 1], expected.imag, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [None, 9, 16, 31])
def test_real_inverse_of_one_side(length: int | None) -> None:
    x = signal(3, 9, 2)
    expected = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length, 1)
    ours = computed(transform(x, 20, 1, length, inverse=1, onesided=1), x)
    assert ours.shape == (*expected.shape, 1)
    np.testing.assert_allclose(ours[..., 0], expected, rtol=1e-4, atol=1e-5)


def test_transforms_of_halves_sum_in_floats() -> None:
    x = signal(1, 400, 1, dtype="float16")
    ours = computed(transform(x, 20, 1, None, onesided=1), x)
    expected = np.fft.rfft(x[..., 0].astype(np.float64), axis=1)
    assert ours.dtype == np.float16
    np.testing.assert_allclose(ours[..., 0], expected.real, rtol=2e-3, atol=1e-2)


@pytest.mark.parametrize("step", [1, 7, 16])
@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize(("parts", "onesided"), [(1, 1), (1, 0), (2, 0)])
def test_frames(step: int, window: bool, parts: int, onesided: int) -> None:
    x, length = signal(2, 67, parts), 16
    constants = {"step": np.array(step), "length": np.array(length)}
    if window:
        constants["window"] = np.hanning(length).astype(np.float32)
    operands = ["x", "step", "window" if window else "", "length"]
    model = one_node(helper.make_node("STFT", operands, ["y"], onesided=onesided), x, constants)
    assert "Conv" in operators(written(model, x))
    np.testing.assert_allclose(computed(model, x), runtime(model, x), rtol=1e-4, atol=1e-4)


def test_windows_and_mel_bands_are_constants() -> None:
    """The front end of a speech model: what goes into it is a constant but the signal."""
    x = signal(1, 400, 1)
    node = helper.make_node
    nodes = [
        node("HannWindow", ["length"], ["window"]),
        node("STFT", ["x", "step", "window"], ["spectrum"]),
        node("MelWeightMatrix", ["bands", "length", "rate", "low", "high"], ["mel"]),
        node("ReduceSumSquare", ["spectrum", "last"], ["power"], keepdims=0),
        node("MatMul", ["power", "mel"], ["y"]),
    ]
    constants = {
        "length": np.array(64),
        "step": np.array(20),
        "bands": np.array(10),
        "rate": np.array(8000),
        "low": np.array(20, np.float32),
        "high": np.array(4000, np.float32),
        "last": np.array([-1]),
    }
    model = one_node(nodes[-1], x, constants)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    np.testing.assert_allclose(computed(model, x), reference(model, x), rtol=1e-4, atol=1e-4)


def test_shapes_that_are_read_of_a_spectrum() -> None:
    """A front end that masks what is beyond a length: ONNX infers twice the bands otherwise."""
    x = signal(1, 400, 1)
    node = helper.make_node
    nodes = [
        node("STFT", ["x", "step", "window"], ["spectrum"]),
        node("ReduceSumSquare", ["spectrum", "last"], ["power"], keepdims=0),
        node("MatMul", ["power", "mel"], ["bands"]),
        node("Shape", ["bands"], ["frames"], start=1, end=2),
        node("Squeeze", ["frames"], ["frame_count"]),
        node("Range", ["zero", "frame_count", "one"], ["numbers"]),
        node("Unsqueeze", ["numbers", "axes"], ["column"]),
        node("Less", ["column", "limit"], ["mask"]),
        node("Where", ["mask", "bands", "nothing"], ["y"]),
    ]
    constants = {
        "step": np.array(20),
        "window": np.hanning(64).astype(np.float32),
        "last": np.array([-1]),
        "mel": RANDOM.random((33, 10)).astype(np.float32),
        "zero": np.array(0),
        "one": np.array(1),
        "axes": np.array([0, 2]),
        "nothing": np.array(0, np.float32),
    }
    model = one_node(nodes[-1], x, {**constants, "limit": np.array(9)})
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    np.testing.assert_allclose(computed(model, x), runtime(model, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bands", "low"), [(8, 0.0), (16, 10.0), (80, 0.0)])
def test_mel_bands(bands: int, low: float) -> None:
    x = np.zeros(1, np.float32)
    values = [bands, 512, 16000, low, 8000.0]
    constants = {
        f"c{i}": np.asarray(v, np.float32 if i > 2 else np.int64) for i, v in enumerate(values)
    }
    node = helper.make_node("MelWeightMatrix", list(constants), ["y"])
    model = one_node(node, x, constants)
    (weights,) = written(model, x).graph.initializer[-1:]
    np.testing.assert_allclose(onnx.numpy_helper.to_array(weights), reference(model, x), atol=1e-6)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("rest", [(), (3,), (2, 5)])
def test_sequences_are_reversed(constant: bool, batch: int, time: int, rest: tuple) -> None:
    shape = (4, 6, *rest)
    x, lengths = signal(*shape), RANDOM.integers(1, shape[time] + 1, shape[batch])
    node = helper.make_node(
        "ReverseSequence", ["x", "lengths"], ["y"], batch_axis=batch, time_axis=time
    )
    model = one_node(node, x, {"lengths": lengths})
    expected = reference(model, x)
    if not constant:
        del model.graph.initializer[:]
        model.graph.input.append(helper.make_tensor_value_info("lengths", 7, lengths.shape))
    given = {"x": x} if constant else {"x": x, "lengths": lengths}
    (ours,) = tvm_blislike.compile(model).run(given).values()
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(
    ("node", "shape", "constants", "reason"),
    [
        (("DFT", {"onesided": 1}), (1, 8, 2), {}, "it is onesided, and its data is complex"),
        (("DFT", {"axis": 2}), (1, 8, 2), {}, "its axis is 2; its data has 3 axes"),
        (("DFT", {}), (1, 8, 3), {}, "its data has 3 parts"),
        (("DFT", {}), (1, 9000, 2), {}, "a matrix of 18000 x 18000"),
        (("STFT", {}), (1, 8, 1), {"s": 0, "": None, "l": 4}, "its frame_step is 0"),
        (("STFT", {}), (1, 8, 1), {"s": 2, "": None, "l": 9}, "its frames have 9 elements"),
        (("STFT", {}), (1, 8, 2), {"s": 2, "": None, "l": 4}, "its signal is complex"),
        (("ReverseSequence", {"time_axis": 2}), (1, 8, 2), {"s": 2}, "they are to be 0 and 1"),
    ],
)
def test_refusals(node: tuple, shape: tuple, constants: dict, reason: str) -> None:
    operator, attributes = node
    values = {k: np.array(v) for k, v in constants.items() if k}
    x = signal(*shape)
    made = helper.make_node(operator, ["x", *constants], ["y"], name="n", **attributes)
    with pytest.raises(UnsupportedOperatorError, match=f"{operator} .node 'n'.*{reason}"):
        load(one_node(made, x, values, 17))
