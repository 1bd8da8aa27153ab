"""A user who has never tuned: what the commands about records say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_models import small_network
from typer.testing import CliRunner, Result

import tvm_blislike
from tvm_blislike.cli.app import app


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("command", ["show", "best", "prune"])
def test_there_is_nothing_to_show_yet(command: str, tmp_path: Path) -> None:
    result = _run("records", command)
    assert result.exit_code == 0, result.output
    assert "no records yet" in result.stderr
    assert "tvm-blislike tune MODEL.onnx" in result.stderr


def test_no_records_as_json() -> None:
    assert json.loads(_run("records", "show", "--json").stdout) == []


@pytest.mark.parametrize("command", ["records train", "records export", "report"])
def test_what_needs_records_says_how_to_get_them(
    command: str, network_file: Path, tmp_path: Path
) -> None:
    arguments = {"report": [network_file, "-o"], "records train": ["-o"]}.get(command, [])
    before = sorted(tmp_path.iterdir())
    result = _run(*command.split(), *arguments, tmp_path / "new")
    assert result.exit_code == 5, result.output
    assert "does not exist" in result.stderr
    assert "tvm-blislike tune MODEL.onnx" in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    for command in ("show", "best", "prune"):
        result = _run("records", command, "--records", tmp_path / "none.jsonl")
        assert result.exit_code == 5
        assert "does not exist" in result.stderr


def test_a_file_of_bad_lines_is_still_pruned(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("no record\n")
    result = _run("records", "prune", "--records", path)
    assert "0 records stay, 1 lines went" in result.stderr
    assert path.read_text() == ""


def test_none_stands_for_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network_file: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    report = tvm_blislike.compile(small_network(), threads=1, records="none").explain()
    assert all(layer.measured_ms is None for layer in report.layers)
    assert _run("explain", network_file, "--records", "none", "--threads", 1).exit_code == 0
