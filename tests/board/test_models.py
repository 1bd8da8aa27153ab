"""From an ONNX file to the emulated board: whole models in bundles, run by blis_run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import zoo
from emulated_board import Board
from onnx import numpy_helper

import tvm_blislike

MODELS = {"resnet18": 32, "mobilenet_v2": 96, "squeezenet1_1": 64}
THREADS = 2


@dataclass(frozen=True)
class Shipped:
    """A model in a bundle, with an input and what ONNX Runtime computes."""

    folder: Path
    weight_bytes: int
    image: Path
    expected: np.ndarray
    compiled: tvm_blislike.CompiledModel

    def run(self, board: Board, *arguments: object) -> str:
        program = self.folder / "blis_run"
        board = replace(board, cpu="cortex-a72")
        return board.run(program, self.folder, *map(str, arguments)).stdout


@pytest.fixture(scope="module", params=MODELS)
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    folder = tmp_path_factory.mktemp(request.param)
    model = zoo.build(request.param, image=MODELS[request.param])
    image = np.random.default_rng(3).standard_normal(
        (1, 3, MODELS[request.param], MODELS[request.param]), dtype=np.float32
    )
    np.save(folder / "image.npy", image)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    compiled = tvm_blislike.compile(model, target="cortex-a72", threads=THREADS)
    compiled.bundle(folder / "bundle")
    return Shipped(
        folder / "bundle",
        _weight_bytes(model),
        folder / "image.npy",
        session.run(None, {"input": image})[0],
        compiled,
    )


def _weight_bytes(model: onnx.ModelProto) -> int:
    return sum(numpy_helper.to_array(weight).nbytes for weight in model.graph.initializer)


def test_agrees_with_onnxruntime(shipped: Shipped, board: Board, tmp_path: Path) -> None:
    shipped.run(board, "--input", f"input={shipped.image}", "--output", tmp_path / "out")
    found = np.load(tmp_path / "out" / "logits.npy")
    assert found.dtype == np.float32
    scale = np.abs(shipped.expected).max()
    np.testing.assert_allclose(found, shipped.expected, rtol=0, atol=2e-5 * scale)


def test_prints_the_time_of_every_layer(shipped: Shipped, board: Board) -> None:
    result = json.loads(shipped.run(board, "--layers", "--json"))
    planned = [layer.name for layer in shipped.compiled.explain().layers]
    counted = {layer["name"]: layer["calls"] for layer in result["layers"]}
    assert counted == {name: planned.count(name) for name in planned}
    assert all(layer["ms"] > 0 for layer in result["layers"])
    assert 0 < result["min_ms"] <= result["median_ms"]
    assert result["threads"] == THREADS
    text = shipped.run(board, "--layers", "--threads", "1")
    assert all(name in text for name in counted)
    assert "compiled for cortex-a72" in text


def test_the_manifest_describes_the_bundle(shipped: Shipped) -> None:
    manifest = json.loads((shipped.folder / "manifest.json").read_text())
    assert manifest["outputs"] == [{"name": "logits", "shape": [1, 1000], "dtype": "float32"}]
    assert (manifest["core"], manifest["threads"]) == ("cortex-a72", THREADS)
    assert manifest["needs"]["architecture"] == "aarch64"
    assert {"tvm-blislike", "apache-tvm", "apache-tvm-ffi"} <= set(manifest["versions"])
    listed = {entry["path"]: entry["bytes"] for entry in manifest["files"]}
    found = {
        path.relative_to(shipped.folder).as_posix(): path.stat().st_size
        for path in shipped.folder.rglob("*")
        if path.is_file()
    }
    assert listed == {path: size for path, size in found.items() if path != "manifest.json"}
    assert {"model.so", "blis_run", "src/CMakeLists.txt", "lib/libtvm_runtime.so"} <= set(listed)


def test_is_small(shipped: Shipped) -> None:
    """Winograd's transformed weights count as weights: 16 values for 9, 36 for 9 and so on."""
    library = (shipped.folder / "model.so").stat().st_size
    total = sum(path.stat().st_size for path in shipped.folder.rglob("*") if path.is_file())
    used = {layer.implementation for layer in shipped.compiled.explain().layers}
    if used.isdisjoint({"conv2d_winograd", "conv2d_winograd_1d"}):
        assert library - shipped.weight_bytes <= 1.5e6
        assert total - shipped.weight_bytes <= 6e6
    assert total - library <= 5.6e6


def test_images_of_any_size(board: Board, tmp_path: Path) -> None:
    """One bundle; kernels of this core leave out what lies beyond an image, too."""
    model = zoo.build("mobilenet_v2", image=96)
    for size, name in zip(model.graph.input[0].type.tensor_type.shape.dim[2:], "hw", strict=True):
        size.dim_param = name
    del model.graph.value_info[:]
    sizes = {"h": (range(32, 161, 32),), "w": (range(32, 161, 32),)}
    compiled = tvm_blislike.compile(model, shapes=sizes, target="cortex-a72", threads=THREADS)
    folder = compiled.bundle(tmp_path / "bundle").folder
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for height, width in ((32, 64), (160, 96)):
        image = np.random.default_rng(height).standard_normal((1, 3, height, width), np.float32)
        np.save(tmp_path / "image.npy", image)
        words = ["--input", f"input={tmp_path / 'image.npy'}", "--output", str(tmp_path / "out")]
        replace(board, cpu="cortex-a72").run(folder / "blis_run", folder, *words)
        expected = session.run(None, {"input": image})[0]
        found = np.load(tmp_path / "out" / "logits.npy")
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
