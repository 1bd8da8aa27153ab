"""The command report: what it writes, and what it says when something is missing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import onnx
import pytest
from made_findings import write_records
from small_models import small_network
from typer.testing import CliRunner, Result

from tvm_blislike.bench import turns
from tvm_blislike.cli.app import app
from tvm_blislike.hardware import native_core
from tvm_blislike.pictures import model_times
from tvm_blislike.probe import ProbeResult

FILES = ["layers.png", "microkernels.png", "prediction.png", "progress.png", "report.html"]
FILES += ["report.json", "roofline.png"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(small_network(), path)
    return path


@pytest.fixture
def records(tmp_path: Path, model: Path) -> Path:
    path = tmp_path / "records.jsonl"
    write_records(model, path)
    return path


def _report(model: Path, records: Path | str, folder: Path | str, *more: str | int) -> Result:
    arguments = ["report", model, "--records", records, "-o", folder, "--threads", 1, *more]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_records_alone(model: Path, records: Path, tmp_path: Path) -> None:
    result = _report(model, records, tmp_path / "a" / "b", "--no-measure")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == FILES
    assert str(tmp_path / "a" / "b" / "report.html") in result.stdout.replace("\n", "")
    data = json.loads((tmp_path / "a" / "b" / "report.json").read_text())
    assert (data["model"], data["records"], data["engines"]) == ("net.onnx", "records.jsonl", {})
    assert [len(layer["attempts"]) for layer in data["layers"]] == [1, 1]
    assert data["layers"][0]["attempts"][0]["ms"] == 0.02
    assert not data["roofs"]["is_measured"]


def test_json_is_that_of_the_file(model: Path, records: Path, tmp_path: Path) -> None:
    result = _report(model, records, tmp_path / "out", "--no-measure", "--json")
    assert json.loads(result.stdout) == json.loads((tmp_path / "out/report.json").read_text())


def _probed(speeds: dict[str, float]) -> ProbeResult:
    """A machine of 1 GHz, with 15 GB/s of memory for two threads."""
    core = native_core()
    rates = dict.fromkeys(("fma", "chain", "read", "write", "fma_elements", "fma_vectors"), 1e9)
    rates |= dict.fromkeys(("walk near", "walk memory", "walks memory"), 1e7)
    rates |= {f"stream {level}": 1e9 * speed for level, speed in speeds.items()}
    rates["stream memory all"] = 15e9
    return ProbeResult(core, 2, rates)


def test_everything_measured(
    model: Path, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_MIN_ROUNDS", 1)
    monkeypatch.setattr(turns, "_MIN_SECONDS", 0.0)
    speeds = {"L1": 300.0, "memory": 10.0}
    monkeypatch.setattr(model_times, "probe", lambda core: _probed(speeds))
    result = _report(model, records, tmp_path / "out", "--engines", "onnxruntime,blislike")
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "out/report.json").read_text())
    assert set(data["engines"]) == {"blislike", "untuned", "onnxruntime"}
    assert data["roofs"]["is_measured"]
    assert data["roofs"]["bandwidth_gb_per_s"] == speeds
    assert data["roofs"]["peak_gflops"] > 2.0
    assert data["versions"]["onnxruntime"]
    for layer in data["layers"]:
        assert set(layer["engine_ms"]) == {"blislike", "onnxruntime"}


def test_roofs_of_several_threads() -> None:
    speeds = {"L1": 300.0, "memory": 10.0}
    probed = _probed(speeds)
    assert model_times.measured_roofs(probed, 1, 7.0).bandwidth_gb_per_s == speeds
    roofs = model_times.measured_roofs(probed, 2, 9.0)
    assert (roofs.peak_gflops, roofs.bandwidth_gb_per_s) == (9.0, {"L1": 600.0, "memory": 15.0})


def test_records_of_other_threads_are_named(model: Path, records: Path, tmp_path: Path) -> None:
    result = _report(model, records, tmp_path / "out", "--no-measure", "--threads", 2)
    assert result.exit_code == 5
    message = " ".join(result.stderr.split())
    assert f"has no record of net.onnx for {native_core().name}, 2 threads" in message
    assert f"{native_core().name}, 1 thread (2)" in message


def test_a_missing_file_of_records_is_named(model: Path, tmp_path: Path) -> None:
    result = _report(model, tmp_path / "none.jsonl", tmp_path / "out", "--no-measure")
    assert result.exit_code == 5
    assert "none.jsonl" in result.stderr


def test_a_folder_that_cannot_be_written_is_named(
    model: Path, records: Path, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    result = _report(model, records, in_the_way, "--no-measure")
    assert result.exit_code == 7
    assert str(in_the_way) in result.stderr.replace("\n", "")
    assert in_the_way.read_text() == ""


def test_an_unknown_engine_is_named(model: Path, records: Path, tmp_path: Path) -> None:
    result = _report(model, records, tmp_path / "out", "--engines", "onxruntime")
    assert result.exit_code == 2
    assert "onnxruntime" in result.stderr
    assert not (tmp_path / "out").exists()


def test_other_processors_are_not_measured(model: Path, records: Path, tmp_path: Path) -> None:
    foreign = "haswell" if native_core().isa.name == "neon" else "cortex-a72"
    result = _report(model, records, tmp_path / "out", "--target", foreign)
    assert result.exit_code == 6
    assert "--no-measure" in result.stderr


def test_missing_packages_are_named(
    model: Path, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jinja2" else find(name)
    )
    result = _report(model, records, tmp_path / "out", "--no-measure")
    assert result.exit_code == 2
    assert "needs jinja2" in result.stderr
    assert "pip install 'tvm-blislike[report]'" in result.stderr
