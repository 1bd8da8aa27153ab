"""The benchmark: its JSON, skipped engines, agreement of outputs, and waiting for idle pools."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from quantized_layers import Layers
from typer.testing import CliRunner

from tvm_blislike.bench import ENGINES, bench, engines, turns
from tvm_blislike.bench.engines import Engine, EngineUnavailableError
from tvm_blislike.bench.result import EngineResult, disagreeing
from tvm_blislike.cli.app import app
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import native_core
from tvm_blislike.model.agreement import max_rel_error


def test_json_has_the_documented_keys_and_engines_agree(network_file: Path) -> None:
    out = network_file.with_suffix(".json")
    arguments = ["bench", network_file, "--engines", "blislike,onnxruntime", "--json", out]
    arguments += ["--threads", 1, "--repeat", 2, "--profile"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    data = json.loads(out.read_text())
    assert (data["model"], data["threads"], data["rounds"]) == ("net.onnx", 1, 2)
    assert data["peak_gflops"] > 0
    assert list(data["engines"]) == ["blislike", "onnxruntime"]
    for name, engine in data["engines"].items():
        assert 0 < engine["min_ms"] <= engine["median_ms"]
        assert engine["max_rel_error"] <= 1e-5
        assert engine["load_s"] > 0
        assert name in result.stdout
    assert data["layers"]
    assert data["layers"][0]["name"] in result.stdout


def test_engines_run_on_what_is_given(
    network_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def engine(job: engines.Job) -> Engine:
        seen.append(job.inputs["image"])
        return Engine(lambda: {"scores": np.ones((1, 5), "float32")}, "0")

    monkeypatch.setitem(ENGINES, "onnxruntime", engine)
    image = np.random.default_rng(1).standard_normal((1, 3, 8, 8), np.float32)
    np.save(tmp_path / "image.npy", image)
    arguments = ["bench", str(network_file), "--engines", "onnxruntime", "--repeat", "1"]
    result = CliRunner().invoke(app, [*arguments, "--input", f"image={tmp_path / 'image.npy'}"])
    assert result.exit_code == 0, result.stderr
    np.testing.assert_array_equal(seen, [image])


def test_layers_of_bytes_are_judged_by_the_peak_of_bytes(tmp_path: Path) -> None:
    layers = Layers(1, 1, 16, 12, 12)
    kernel = layers.weights((16, 16, 3, 3), "int8", 0, 0)
    value = layers.put("Conv", layers.steps("x"), kernel)
    onnx.save(layers.model(layers.quantized(value, 0.05, 9, "uint8")[0]), tmp_path / "q.onnx")
    result = bench(tmp_path / "q.onnx", ["blislike", "onnxruntime"], threads=1, repeat=1)
    ((types, gops),) = result.peaks_gops.items()
    assert types == str(quantized_types(native_core()))
    assert result.peak_ms == pytest.approx(1e3 * result.gflop / gops)
    assert result.gflop == pytest.approx(2e-9 * 16 * 16 * 9 * 10 * 10)
    assert not disagreeing(result)


def test_json_to_stdout_is_only_json(network_file: Path) -> None:
    arguments = ["bench", str(network_file), "--engines", "onnxruntime", "--json", "-"]
    result = CliRunner().invoke(app, [*arguments, "--threads", "1", "--repeat", "1"])
    assert json.loads(result.stdout)["reference"] == "onnxruntime"


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tvm"])
def test_every_peer_computes_the_same(network_file: Path, name: str) -> None:
    pytest.importorskip(name)
    result = bench(network_file, ["blislike", name], threads=1, repeat=1)
    assert set(result.engines) == {"blislike", name}
    assert all(engine.max_rel_error <= 1e-5 for engine in result.engines.values())


def test_missing_engine_is_named_and_skipped(
    network_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(package: str) -> None:
        raise EngineUnavailableError(f"not installed (pip install {package})")

    monkeypatch.setattr(engines, "_installed", missing)
    result = bench(network_file, ["openvino", "blislike"], threads=1, repeat=1)
    assert result.skipped == {"openvino": "not installed (pip install openvino)"}
    assert list(result.engines) == ["blislike"]
    with pytest.raises(UsageError, match=r"no engine left.*pip install openvino"):
        bench(network_file, ["openvino"], threads=1, repeat=1)


def test_engine_that_cannot_load_the_model_is_skipped_with_its_reason(
    network_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job: engines.Job) -> Engine:
        raise RuntimeError("IR version too new\nstack")

    monkeypatch.setitem(ENGINES, "onnxruntime", refuse)
    result = bench(network_file, ["blislike", "onnxruntime"], threads=1, repeat=1)
    assert result.skipped == {"onnxruntime": "cannot take the model: IR version too new"}


def test_failures_of_the_library_itself_are_not_skipped(
    network_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a fault in a pass")

    monkeypatch.setattr("tvm_blislike.compile", refuse, raising=False)
    with pytest.raises(RuntimeError, match="a fault in a pass"):
        bench(network_file, ["blislike", "onnxruntime"], threads=1, repeat=1)


@pytest.mark.parametrize("wrong", [3.0, float("nan")])
def test_disagreement_is_printed_and_has_its_exit_code(
    network_file: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    def broken(job: engines.Job) -> Engine:
        return Engine(lambda: {"scores": np.full((1, 5), wrong, "float32")}, "0")

    monkeypatch.setitem(ENGINES, "openvino", broken)
    arguments = ["bench", str(network_file), "--engines", "onnxruntime,openvino"]
    result = CliRunner().invoke(app, [*arguments, "--threads", "1", "--repeat", "1"])
    assert result.exit_code == 9
    assert "onnxruntime" in result.stdout
    assert "openvino" in result.stderr


def test_slow_engine_gets_one_turn(network_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine_of(pause_s: float) -> Engine:
        def run() -> dict[str, np.ndarray]:
            time.sleep(pause_s)
            return {"scores": np.ones((1, 5), "float32")}

        return Engine(run, "0")

    monkeypatch.setitem(ENGINES, "openvino", lambda job: engine_of(0.001))
    monkeypatch.setitem(ENGINES, "tvm", lambda job: engine_of(0.1))
    result = bench(network_file, ["openvino", "tvm"], threads=1, repeat=3)
    assert result.engines["tvm"].runs == 1
    assert result.engines["openvino"].runs >= 3
    assert result.engines["tvm"].median_ms >= 100


def test_affinity_is_restored(network_file: Path) -> None:
    from tvm_blislike.hardware.cpus import usable_cpus

    before = usable_cpus()
    bench(network_file, ["blislike", "onnxruntime"], threads=1, repeat=1)
    assert usable_cpus() == before


def test_one_thread_leaves_all_threads_to_later_work(network_file: Path) -> None:
    from tvm_blislike.hardware.cpus import usable_cpus
    from tvm_blislike.runtime.threads import use_threads

    bench(network_file, ["blislike"], threads=1, repeat=1)
    assert use_threads(len(usable_cpus())) == len(usable_cpus())


def test_summary_of_samples() -> None:
    result = EngineResult.of([4.0, 1.0, 2.0, 3.0, 5.0], 1e-7, 0.5)
    assert (result.median_ms, result.min_ms, result.runs) == (3.0, 1.0, 5)
    assert result.spread_ms == pytest.approx((1.4, 4.6))
    assert EngineResult.of([1.0], float("nan"), 0.5).max_rel_error is None


def test_relative_error_refers_to_the_largest_value_of_each_output() -> None:
    reference = {"a": np.array([100.0, 0.0]), "b": np.array([0.0]), "c": np.zeros((0, 2))}
    values = {"a": np.array([100.0, 1.0]), "b": np.array([0.0]), "c": np.zeros((0, 2))}
    assert max_rel_error(values, reference) == pytest.approx(0.01)
    assert np.isnan(max_rel_error({**values, "b": np.array([1.0, 2.0])}, reference))
    assert np.isnan(max_rel_error({**values, "a": np.array([np.nan, 0])}, reference))


def test_small_outputs_count_as_larger_ones() -> None:
    score, other = {"score": np.array([1e-5])}, {"score": np.array([1.1e-5])}
    assert max_rel_error(other, score) == pytest.approx(0.1)
    assert max_rel_error(other, score, least=0.01) == pytest.approx(1e-4)
    assert max_rel_error({"score": np.array([1.1])}, {"score": np.array([1.0])}, 0.01) > 0.09
    assert np.isnan(max_rel_error({"score": np.array([np.nan])}, score, 0.01))


def test_waits_while_a_thread_is_busy() -> None:
    end = time.perf_counter() + 0.3

    def spin() -> None:
        while time.perf_counter() < end:
            pass

    worker = threading.Thread(target=spin)
    worker.start()
    turns.wait_until_idle()
    assert time.perf_counter() >= end
    worker.join()


def test_rounds_stop_at_the_count_or_after_enough_time() -> None:
    assert not turns._enough(1, 1e9, repeat=2)
    assert turns._enough(2, 0.0, repeat=2)
    assert not turns._enough(9, 60.0, repeat=None)
    assert turns._enough(10, 5.0, repeat=None)
    assert turns._enough(3, 121.0, repeat=None)
