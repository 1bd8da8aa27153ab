"""Learned models in the commands: trained from a file of records, followed, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import learned_machine as machine
import onnx
import pytest
from made import CORE, MadeRunner
from small_models import small_network
from typer.testing import CliRunner, Result

import tvm_blislike
from tvm_blislike.cli.app import app
from tvm_blislike.cost_models.learned import load
from tvm_blislike.errors import UsageError
from tvm_blislike.records import files
from tvm_blislike.tuning.tune import tune

TARGET = ("--target", CORE.name)


def _invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def _run(*arguments: object) -> str:
    result = _invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """Return records, the model trained on them, and what the command printed."""
    folder = tmp_path_factory.mktemp("learned")
    records, model = folder / "records.jsonl", folder / "model.json"
    files.append(records, machine.records())
    printed = _run("records", "train", "--records", records, "-o", model, *TARGET, "--json")
    return records, model, json.loads(printed)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    onnx.save(small_network(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_train_says_what_it_learned_from(
    trained: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    records, model, printed = trained
    assert load(model).facts == machine.model().facts
    assert printed["core"] == CORE.name and printed["threads"] == {"1": len(machine.records())}
    assert printed["output"] == str(model)
    text = _run("records", "train", "--records", records, "-o", tmp_path / "again.json", *TARGET)
    assert f"{len(machine.records())} records of {CORE.name}" in text
    assert "conv2d_winograd" in text


def test_commands_choose_by_what_was_learned(
    trained: tuple[Path, Path, dict[str, Any]], network: Path
) -> None:
    def layers(*options: object) -> list[dict[str, Any]]:
        common = (*TARGET, "--threads", 1, "--records", "none", "--json")
        return json.loads(_run("explain", network, *common, *options))["layers"]

    plain, learned = layers(), layers("--learned", trained[1])
    chosen = [layer for layer in learned if "learned" in layer["breakdown"]]
    assert len(chosen) == len([layer for layer in plain if layer["predicted_ms"]]) > 0
    assert all("learned model" in layer["reason"] for layer in chosen)
    for layer in chosen:
        assert sum(layer["breakdown"].values()) == pytest.approx(layer["predicted_ms"])


def test_python_takes_a_file_or_a_model(
    trained: tuple[Path, Path, dict[str, Any]], network: Path
) -> None:
    reports = [
        tvm_blislike.compile(network, CORE, threads=1, learned=learned).explain()
        for learned in (trained[1], machine.model())
    ]
    assert reports[0] == reports[1]
    assert any("learned" in layer.breakdown for layer in reports[0].layers)


def test_a_model_for_other_threads_or_cores_is_refused(
    trained: tuple[Path, Path, dict[str, Any]], network: Path
) -> None:
    for options in ((*TARGET, "--threads", 2), ("--target", "zen4", "--threads", 1)):
        result = _invoke("compile", network, "--learned", trained[1], *options)
        assert result.exit_code == 2
        assert "error: the learned model" in result.stderr and "hint:" in result.stderr


def test_a_library_is_compiled_already(
    trained: tuple[Path, Path, dict[str, Any]], network: Path
) -> None:
    library = network.with_suffix(".so")
    _run("compile", network, "--threads", 1, "-o", library)
    result = _invoke("run", library, "--learned", trained[1])
    assert result.exit_code == 2 and "fixed in a compiled library" in result.stderr


def test_training_needs_records_and_a_place_to_write(tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    files.append(few, machine.records()[:3])
    output = tmp_path / "model.json"
    result = _invoke("records", "train", "--records", few, "-o", output, *TARGET)
    assert result.exit_code == 2 and "3 usable records" in result.stderr
    assert not output.exists()
    result = _invoke("records", "train", "--records", few, "-o", tmp_path / "no" / "m", *TARGET)
    assert result.exit_code == 7
    result = _invoke("records", "train", "--records", tmp_path / "gone", "-o", output, *TARGET)
    assert result.exit_code == 5


@pytest.mark.parametrize("given", [True, False])
def test_tune_follows_a_learned_model_or_learns_from_its_records(
    trained: tuple[Path, Path, dict[str, Any]], network: Path, tmp_path: Path, given: bool
) -> None:
    """Four measurements of each layer: the analytical choice, then what was learned."""
    path, runner = tmp_path / "records.jsonl", MadeRunner()
    if not given:
        files.append(path, machine.records())
    learned = trained[1] if given else None
    before = len(files.read(path)[0]) if path.exists() else 0
    result = tune(
        network, CORE, threads=1, records=path, search="learned", runner=runner, learned=learned
    )
    assert result.measured == len(files.read(path)[0]) - before == len(runner.asked)
    assert all(layer.measured <= 4 for layer in result.layers) and result.layers


def test_tune_refuses_what_does_not_go_together(network: Path, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    common = {"threads": 1, "records": path, "runner": MadeRunner()}
    with pytest.raises(UsageError, match="0 usable records"):
        tune(network, CORE, search="learned", **common)
    with pytest.raises(UsageError, match="belong together"):
        tune(network, CORE, learned=machine.model(), **common)
    assert not path.exists()
