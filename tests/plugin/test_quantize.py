"""The command quantize: what it writes, what it says of errors, and what it refuses."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_runtime import exact_session
from small_models import float_input, make_model, small_network
from typer.testing import CliRunner, Result

from tvm_blislike.bench import bench
from tvm_blislike.bench.result import INTEGER_TOLERANCE, TOLERANCE, EngineResult, disagreeing
from tvm_blislike.cli.app import app
from tvm_blislike.onnx.operator_sets import is_quantized
from tvm_blislike.quantize import quantizer
from tvm_blislike.quantize.accuracy import LayerError

RNG = np.random.default_rng(5)
IMAGES = RNG.standard_normal((8, 3, 8, 8)).astype("float32")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["quantize", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "images.npz"
    np.savez(path, image=IMAGES)
    return path


def quantized(model: Path, data: Path, *more: object) -> tuple[dict, onnx.ModelProto]:
    output = model.with_name("out.onnx")
    result = invoke(model, "--data", data, "-o", output, "--json", *more)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), onnx.load(output)


def results(model: onnx.ModelProto, image: np.ndarray) -> np.ndarray:
    return exact_session(model).run(None, {"image": image[None]})[0]


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def weights_of(model: onnx.ModelProto, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and scales of a layer."""
    makers = {node.output[0]: node for node in model.graph.node}
    node = next(node for node in model.graph.node if node.name == name)
    weights, scales, *_ = makers[node.input[1]].input
    return arrays(model)[weights], arrays(model)[scales]


def test_it_writes_eight_bits_and_tells_the_error(network_file: Path, data: Path) -> None:
    found, model = quantized(network_file, data)
    weights, scales = weights_of(model, "conv0")
    assert weights.dtype == np.int8 and scales.shape == (8,)
    zeros = {a.dtype for name, a in arrays(model).items() if name.startswith("image_zero")}
    assert zeros == {np.dtype("uint8")}
    assert {"conv0", "gemm0"} <= {layer["name"] for layer in found["layers"]}
    # The last two samples are held out; the error is theirs.
    assert (found["calibrated"], found["measured"], found["held_out"]) == (6, 2, True)
    expected = np.concatenate([results(onnx.load(network_file), image) for image in IMAGES[-2:]])
    own = np.concatenate([results(model, image) for image in IMAGES[-2:]])
    error = np.sqrt(((own - expected) ** 2).sum() / (expected**2).sum())
    assert 0 < error < 0.1
    assert found["outputs"]["scores"] == pytest.approx(error, rel=1e-4)


def test_errors_of_layers_are_those_of_their_results(network_file: Path, data: Path) -> None:
    found, model = quantized(network_file, data)
    (layer,) = (layer for layer in found["layers"] if layer["name"] == "conv0")
    # The quantizer has taken ReLU into the convolution: its steps are those of the result.
    original = onnx.load(network_file)
    original.graph.output.insert(0, onnx.ValueInfoProto(name="r"))
    model.graph.output.insert(0, onnx.ValueInfoProto(name="r_DequantizeLinear_Output"))
    pairs = [(results(model, image), results(original, image)) for image in IMAGES[-2:]]
    error = sum(((a - b) ** 2).sum() for a, b in pairs) / sum((b**2).sum() for _, b in pairs)
    assert layer["error"] == pytest.approx(np.sqrt(error), rel=1e-4)
    assert layer["has_weights"]


def test_layers_to_keep_stay_in_single_precision(network_file: Path, data: Path) -> None:
    found, model = quantized(network_file, data, "--keep", "conv*")
    assert found["kept"] == ["conv0"]
    assert "conv0" not in {layer["name"] for layer in found["layers"]}
    (node,) = (node for node in model.graph.node if node.name == "conv0")
    assert arrays(model)[node.input[1]].dtype == np.float32


def test_what_may_be_chosen(network_file: Path, data: Path) -> None:
    _, model = quantized(network_file, data, "--per-tensor", "--activations", "s8")
    assert weights_of(model, "conv0")[1].shape == ()
    zeros = {a.dtype for name, a in arrays(model).items() if name.startswith("image_zero")}
    assert zeros == {np.dtype("int8")}


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_the_quantizer_is_told_the_method(
    network_file: Path, data: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entropy takes as many bins as there are steps, so that it seldom shows in the ranges."""
    from onnxruntime import quantization

    told, original = [], quantization.quantize_static

    def spy(*arguments: object, **named: object) -> None:
        told.append(named["calibrate_method"].name.lower())
        original(*arguments, **named)

    monkeypatch.setattr(quantization, "quantize_static", spy)
    quantized(network_file, data, "--method", method)
    assert told == [method]


def test_an_outlier_widens_the_range_of_extremes(network_file: Path, data: Path) -> None:
    images = IMAGES.copy()
    images[5, 0, 0, 0] = 100
    np.savez(data, image=images)

    def scale(model: onnx.ModelProto) -> float:
        return float(arrays(model)["image_scale"])

    by_extremes = scale(quantized(network_file, data)[1])
    assert scale(quantized(network_file, data, "--method", "percentile")[1]) < by_extremes


def test_layers_that_add_most_are_named_first() -> None:
    layers = [
        LayerError("early", "Conv", 0.03, 0.0, True),
        LayerError("late", "Conv", 0.05, 0.049, True),
        LayerError("pool", "MaxPool", 0.05, 0.0, False),
    ]
    found = quantizer.Quantized(layers, {}, [], 1, 1, False)
    assert found.to_keep() == ["early", "late"]


def test_random_samples_come_with_a_warning(network_file: Path) -> None:
    output = network_file.with_name("net.int8.onnx")
    result = invoke(network_file, "--random-data", 2, "-o", output)
    assert result.exit_code == 0 and output.exists()
    assert "unknown" in result.stderr and "--data" in result.stderr
    assert "conv0" in result.stdout and "output scores" in result.stdout
    assert "calibrated on 2 samples, errors of 2 (the same)" in " ".join(result.stdout.split())


def test_folders_and_open_batches(tmp_path: Path) -> None:
    onnx.save(small_network(batch="N"), tmp_path / "net.onnx")
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "a.npy", IMAGES[:1])
    np.save(folder / "b.npy", IMAGES[1:4])
    np.savez(folder / "c.npz", image=IMAGES[4:, None])
    (folder / "notes.txt").write_text("other files do not count")
    found, model = quantized(tmp_path / "net.onnx", folder)
    assert (found["calibrated"], found["measured"]) == (6, 2)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"image": IMAGES[:, :, :7]}, "image has shape 8x3x7x8; the model takes 1x3x8x8"),
        ({"image": IMAGES.astype("float64")}, "data type float64; the model takes float32"),
        ({"picture": IMAGES}, "no input named 'picture'"),
        ({}, "no array for the input image"),
        ({"image": IMAGES[:0]}, "has no samples"),
    ],
)
def test_data_that_do_not_fit_are_refused(
    network_file: Path, data: Path, content: dict, message: str
) -> None:
    np.savez(data, **content)
    result = invoke(network_file, "--data", data, "-o", network_file.with_name("out.onnx"))
    assert result.exit_code == 5 and message in result.stderr
    assert sorted(path.name for path in network_file.parent.iterdir()) == ["images.npz", "net.onnx"]


def test_folders_without_samples_are_refused(network_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place, message in (("empty", "has no samples"), ("none", "no such file")):
        result = invoke(network_file, "--data", tmp_path / place, "-o", tmp_path / "out.onnx")
        assert result.exit_code == 5 and message in result.stderr


def test_a_file_that_is_no_array_is_refused(network_file: Path, tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_text("no array")
    result = invoke(network_file, "--data", tmp_path / "a.npy", "-o", tmp_path / "out.onnx")
    assert result.exit_code == 5 and "is no .npy or .npz file" in result.stderr


def test_an_array_for_several_inputs_is_refused(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Add", ["a", "b"], ["c"])]
    inputs = [float_input("a", [2]), float_input("b", [2])]
    onnx.save(make_model(nodes, inputs, [float_input("c", [2])], []), tmp_path / "add.onnx")
    np.save(tmp_path / "a.npy", np.zeros(2, "float32"))
    model, output = tmp_path / "add.onnx", tmp_path / "out.onnx"
    result = invoke(model, "--data", tmp_path / "a.npy", "-o", output)
    assert result.exit_code == 5 and "has the inputs a, b" in result.stderr
    np.savez(tmp_path / "few.npz", a=np.zeros((3, 2), "float32"), b=np.zeros((4, 2), "float32"))
    result = invoke(model, "--data", tmp_path / "few.npz", "-o", output)
    assert result.exit_code == 5 and "3 of a, 4 of b" in result.stderr


def test_sizes_that_are_open_are_asked_for(tmp_path: Path) -> None:
    onnx.save(small_network(size="S"), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", image=IMAGES)
    arguments = (tmp_path / "net.onnx", "--data", tmp_path / "data.npz")
    refused = invoke(*arguments, "-o", tmp_path / "out.onnx")
    assert refused.exit_code == 5 and "--shape image=" in refused.stderr
    found = invoke(*arguments, "-o", tmp_path / "out.onnx", "--shape", "image=1x3x8x8")
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--keep", "conv1"], "did you mean conv0?"),
        (["--keep", "*"], "there is nothing to quantize"),
        (["--random-data", "3"], "either --data or --random-data"),
    ],
)
def test_wrong_usage(network_file: Path, data: Path, more: list[str], message: str) -> None:
    output = network_file.with_name("out.onnx")
    result = invoke(network_file, "--data", data, "-o", output, *more)
    assert result.exit_code == 2 and message in result.stderr
    assert not output.exists()


def test_the_model_itself_stays(network_file: Path, data: Path) -> None:
    result = invoke(network_file, "--data", data, "-o", network_file)
    assert result.exit_code == 2 and "is the model itself" in result.stderr


def test_quantized_models_and_old_ones_are_refused(network_file: Path, data: Path) -> None:
    quantized(network_file, data)
    result = invoke(network_file.with_name("out.onnx"), "--data", data, "-o", "again.onnx")
    assert result.exit_code == 2 and "quantized already" in result.stderr
    model = onnx.load(network_file)
    model.opset_import[0].version = 11
    onnx.save(model, network_file)
    result = invoke(network_file, "--data", data, "-o", network_file.with_name("old.onnx"))
    assert result.exit_code == 2 and "--per-tensor" in result.stderr


def test_copies_of_a_bias_are_not_called_as_results(tmp_path: Path, data: Path) -> None:
    """Three layers share a bias, of which the quantizer makes numbered copies: one for each."""
    weights = RNG.standard_normal((3, 3, 3, 3)).astype("float32")
    constants = [numpy_helper.from_array(weights * 2**i, f"w{i}") for i in range(3)]
    constants.append(numpy_helper.from_array(np.ones(3, "float32"), "val_1"))
    names = ["image", "val_10", "val_11", "y"]
    nodes = [
        onnx.helper.make_node("Conv", [names[i], f"w{i}", "val_1"], [names[i + 1]], pads=[1] * 4)
        for i in range(3)
    ]
    image, result = float_input("image", [1, 3, 8, 8]), float_input("y", [1, 3, 8, 8])
    path = tmp_path / "shared.onnx"
    onnx.save(make_model(nodes, [image], [result], constants), path)
    _, model = quantized(path, data)
    expected = results(onnx.load(path), IMAGES[0])
    np.testing.assert_allclose(
        results(model, IMAGES[0]), expected, atol=0.05 * np.abs(expected).max()
    )


def test_bench_compares_steps_within_a_bound_of_their_own(network_file: Path, data: Path) -> None:
    quantized(network_file, data)
    floats, integers = network_file, network_file.with_name("out.onnx")
    assert [is_quantized(onnx.load(path)) for path in (floats, integers)] == [False, True]
    results = [bench(path, ["blislike", "onnxruntime"], 1, 1) for path in (floats, integers)]
    assert [result.tolerance for result in results] == [TOLERANCE, INTEGER_TOLERANCE]
    between = (TOLERANCE + INTEGER_TOLERANCE) / 2
    wrong = {"blislike": EngineResult.of([1.0], between, 0.0)}
    found = [disagreeing(dataclasses.replace(result, engines=wrong)) for result in results]
    assert found == [{"blislike": between}, {}]


def broken(*_: object, **__: object) -> None:
    raise ValueError("no idea")


def unquantizable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.quantization.quantize_static", broken)


def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        (unquantizable, 3, "ONNX Runtime cannot quantize the model: no idea"),
        (missing, 2, "pip install 'tvm-blislike[quantize]'"),
    ],
)
def test_what_was_there_stays_when_it_fails(
    network_file: Path,
    data: Path,
    fault: Callable[[pytest.MonkeyPatch], None],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = network_file.with_name("out.onnx")
    output.write_text("before")
    fault(monkeypatch)
    result = invoke(network_file, "--data", data, "-o", output)
    assert result.exit_code == code and message in result.stderr
    assert output.read_text() == "before"
