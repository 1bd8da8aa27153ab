"""The command line: each command's result, its JSON, and what it writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import small_network, small_reference
from typer.testing import CliRunner, Result

from tvm_blislike.cli.app import app
from tvm_blislike.cli.options import parse_shapes


def _invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result


def _json(*arguments: object) -> dict:
    return json.loads(_invoke(*arguments, "--json").stdout)


def test_compile_writes_a_library_that_run_takes(network_file: Path, image: np.ndarray) -> None:
    folder = network_file.parent
    np.save(folder / "image.npy", image)
    library = folder / "out.so"
    result = _json("compile", network_file, "-o", library, "--threads", 1)
    assert result["threads"] == 1
    assert result["inputs"] == [{"name": "image", "shape": [1, 3, 8, 8], "dtype": "float32"}]
    assert result["bytes"] == library.stat().st_size

    source = f"image={folder / 'image.npy'}"
    ran = _json("run", library, "--input", source, "--output", folder / "results")
    assert ran["threads"] == 1
    assert ran["outputs"]["scores"]["shape"] == [1, 5]
    scores = np.load(folder / "results" / "scores.npy")
    assert np.allclose(scores, small_reference(image), rtol=1e-5, atol=1e-5)


def test_compile_without_output_names_the_library_after_the_model(
    network_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(network_file.parent)
    assert "net.so" in _invoke("compile", network_file, "--threads", 1).stdout
    assert sorted(os.listdir()) == ["net.onnx", "net.so"]


def test_run_takes_a_model_random_inputs_and_shapes(tmp_path: Path) -> None:
    onnx.save(small_network(batch="N"), tmp_path / "net.onnx")
    arguments = ("run", tmp_path / "net.onnx", "--shape", "image=2x3x8x8", "--repeat", 3)
    summary = _json(*arguments, "--threads", 1)
    assert summary["random_input"]
    assert summary["outputs"]["scores"]["shape"] == [2, 5]
    assert 0 < summary["min_ms"] <= summary["median_ms"]
    assert "median of 3 runs" in _invoke(*arguments).stdout


def test_threads_of_a_library_can_be_overridden(network_file: Path) -> None:
    library = network_file.with_suffix(".so")
    _invoke("compile", network_file, "-o", library, "--threads", 2)
    assert _json("run", library)["threads"] == 2
    result = _invoke("run", library, "--threads", 1, "--json")
    assert json.loads(result.stdout)["threads"] == 1
    assert "warning: compiled for 2 threads, not 1" in result.stderr


def test_explain_lists_every_layer(network_file: Path) -> None:
    report = _json("explain", network_file, "--threads", 1)
    assert report["threads"] == 1
    assert all(layer["implementation"] for layer in report["layers"])
    text = _invoke("explain", network_file, "--threads", 1, "--all").stdout
    for layer in report["layers"]:
        assert layer["name"] in text
        assert layer["reason"] in text


def test_explain_derives_the_blocks_of_a_layer(network_file: Path) -> None:
    (layer,) = _json("explain", network_file, "--threads", 1, "--layer", "gemm*")["layers"]
    assert layer["derivation"][0].startswith(f"kc = {layer['config']['kc']}, by the model ")
    text = _invoke("explain", network_file, "--threads", 1, "--layer", "gemm*").stdout
    flat = " ".join(text.split())
    assert layer["workload"] in flat and "conv 1x" not in flat
    assert all(line in flat for line in layer["derivation"])
    arguments = ["explain", str(network_file), "--layer", "lstm*"]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2
    assert "no layer matches 'lstm*'" in " ".join(refused.output.split())


def test_targets_lists_the_cores_with_caches() -> None:
    names = [core["name"] for core in _json("targets")]
    assert {"haswell", "cortex-a72", "neoverse-n1"} <= set(names)
    text = _invoke("targets").stdout
    assert all(name in text for name in names)


def test_json_stays_clean_while_progress_goes_to_stderr(network_file: Path) -> None:
    command = [sys.executable, "-m", "tvm_blislike", "explain", str(network_file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["layers"]


def test_help_documents_every_exit_code() -> None:
    for arguments in (["--help"], ["compile", "--help"], ["bench", "--help"]):
        text = " ".join(_invoke(*arguments).stdout.split())
        for code in range(10):
            assert f" {code} " in text[text.index("Exit codes") :]


def test_reference_documents_the_same_exit_codes() -> None:
    from tvm_blislike.errors import all_errors

    page = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()
    for error in all_errors():
        assert f"| {error.exit_code} | {error.summary} |" in page


@pytest.mark.parametrize(
    ("option", "name", "shape"),
    [
        ("x=1x3x224x224", "x", (1, 3, 224, 224)),
        ("a=b=2,3", "a=b", (2, 3)),
        ("n=7", "n", (7,)),
    ],
)
def test_shape_options(option: str, name: str, shape: tuple[int, ...]) -> None:
    assert parse_shapes([option]) == {name: shape}
