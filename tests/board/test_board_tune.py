"""Tuning over RPC on the emulated board: it works, and nothing follows the times of an emulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from half_models import in_half
from small_models import two_convolutions
from typer.testing import CliRunner

from tvm_blislike.cli.app import app
from tvm_blislike.records import files
from tvm_blislike.tuning import database


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("tuned")
    onnx.save(two_convolutions(), folder / "net.onnx")
    records = ["--records", str(folder / "records.jsonl")]
    return [str(folder / "net.onnx"), "--target", "cortex-a72", "--threads", "1", *records]


@pytest.fixture(scope="module")
def tuned(tracker: str, common: list[str]) -> Any:
    return _json("tune", *common, "--trials", "2", "--rpc", tracker, "--key", "board")


def _json(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_times_are_labelled(tuned: Any, common: list[str], tmp_path: Path) -> None:
    assert tuned["emulated"] and tuned["measured"] == 2
    assert "emulated" in {layer["context"] for layer in tuned["layers"]}
    records, bad = files.read(common[-1])
    assert not bad and [r.context for r in records] == ["emulated"] * 2
    assert {r.status for r in records} == {"ok"}
    assert [r["context"] for r in _json("records", "show", *common[-2:])] == ["emulated"] * 2
    # Nobody could tell them from others there.
    assert database.export(records, tmp_path) == 0


def test_nothing_follows_them(tuned: Any, common: list[str], tmp_path: Path) -> None:
    assert _json("records", "best", *common[-2:]) == []
    explained = _json("explain", *common)
    assert all(layer["measured_ms"] is None for layer in explained["layers"])
    _json("compile", *common, "-o", str(tmp_path / "net.so"))


def test_a_sweep_goes_on_from_them(tuned: Any, tracker: str, common: list[str]) -> None:
    again = _json("tune", *common, "--trials", "2", "--rpc", tracker, "--key", "board")
    known = {(r.workload, r.config) for r in files.read(common[-1])[0]}
    assert len(known) == 2 + again["measured"]


def test_half_precision_is_measured_there(tracker: str, tmp_path: Path) -> None:
    onnx.save(in_half(two_convolutions()), tmp_path / "half.onnx")
    arguments = [str(tmp_path / "half.onnx"), "--target", "cortex-a76", "--threads", "1"]
    arguments += ["--records", str(tmp_path / "records.jsonl"), "--trials", "3"]
    tuned = _json("tune", *arguments, "--rpc", tracker, "--key", "board")
    assert tuned["emulated"] and tuned["measured"] == 3
    records, bad = files.read(arguments[-3])
    assert not bad and [r.context for r in records] == ["emulated"] * 3
    assert {(r.status, r.workload.types.out) for r in records} == {("ok", "float16")}


def test_a_board_for_another_target_is_refused(tracker: str, common: list[str]) -> None:
    foreign = [common[0], "--target", "haswell", *common[3:]]
    result = CliRunner().invoke(app, ["tune", *foreign, "--rpc", tracker, "--key", "board"])
    assert result.exit_code == 6
    assert "cannot load libraries for x86_64" in result.output
