"""Tuning over RPC against the emulated board: it works; what it measures there means nothing."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from emulated_board import Board
from small_models import two_convolutions
from tvm.rpc.tracker import Tracker
from typer.testing import CliRunner

from tvm_blislike.cli.app import app


def test_tune_measures_on_the_board_and_compile_follows(board: Board, tmp_path: Path) -> None:
    onnx.save(two_convolutions(), tmp_path / "net.onnx")
    # Never the user's own file: an emulator's times must not choose anybody's kernels.
    records = tmp_path / "emulated.jsonl"
    common = [str(tmp_path / "net.onnx"), "--target", "cortex-a72", "--threads", "1"]
    tracker = Tracker("127.0.0.1", port=9190, port_end=9290)
    try:
        with board.rpc_server("--tracker", f"127.0.0.1:{tracker.port}", key="emulated"):
            there = ["--rpc", f"127.0.0.1:{tracker.port}", "--key", "emulated"]
            tuned = CliRunner().invoke(
                app, ["tune", *common, "--trials", "2", "--records", str(records), *there]
            )
    finally:
        tracker.terminate()
    assert tuned.exit_code == 0, tuned.output
    measured = [json.loads(line) for line in records.read_text().splitlines()]
    assert len(measured) == 2
    library = str(tmp_path / "net.so")
    compiled = CliRunner().invoke(
        app, ["compile", *common, "--records", str(records), "-o", library, "--json"]
    )
    assert compiled.exit_code == 0, compiled.output
