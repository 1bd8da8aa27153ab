"""The probe over RPC on the emulated board: the road works; times mean nothing there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from emulated_board import Board
from typer.testing import CliRunner

from tvm_blislike.cli.app import app
from tvm_blislike.hardware import Core
from tvm_blislike.probe import measure, plan, steps


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A board of two cores whose memory is read in short pieces: the emulator is slow."""
    monkeypatch.setattr(steps, "_LEAST_MEMORY_BYTES", 4 << 20)
    monkeypatch.setattr(measure, "BOARD_MEMORY_BYTES", 16 << 20)
    path = tmp_path / "board.toml"
    path.write_text(dataclasses.replace(Core.named("cortex-a72"), cores=2).to_toml())
    return path


def test_a_board_is_probed_over_rpc(tracker: str, described: Path, tmp_path: Path) -> None:
    file = tmp_path / "probed.toml"
    command = ["probe", "--quick", "--rpc", tracker, "--key", "board", "--json", "-o", str(file)]
    result = CliRunner().invoke(app, [*command, "--target", str(described)])
    assert result.exit_code == 0, result.output
    data, core = json.loads(result.stdout), Core.from_toml(file)
    assert core.name == "probed-cortex-a72" and core.mcpu == "cortex-a72"
    assert data["threads"] == core.cores == 2
    assert set(data["bandwidth_gb_per_s"]) == {"L1", "L2", "memory"}
    assert set(data["bandwidth_gb_per_s_all"]) == {"L2", "memory"}
    assert core.fork_join_us == data["core"]["fork_join_us"] > 0
    assert core.caches[0].all_bytes_per_cycle is None
    assert "measured on a board" in "".join(core.notes)


def test_a_board_that_cannot_run_the_code_is_named(tracker: str) -> None:
    command = ["probe", "--quick", "--rpc", tracker, "--key", "board", "--target", "haswell"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 6, result.output
    assert "the board cannot load code for haswell" in result.stderr


def test_a_board_probes_itself(
    board: Board, described: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "FULL", (1e-3, 1.0))
    folder, file = tmp_path / "ship", tmp_path / "probed.toml"
    command = ["probe", "--bundle", str(folder), "--target", str(described)]
    for _ in range(2):  # an older one is replaced
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0 and "blis_run --probe" in result.stderr, result.output
    board.run(folder / "blis_run", "--probe", "--output", file)
    core = Core.from_toml(file)
    assert core.name == "probed-cortex-a72" and core.cores == 2
    assert core.caches[1].all_bytes_per_cycle >= core.caches[1].bytes_per_cycle
    assert core.memory_gb_per_s >= core.memory_core_gb_per_s
    assert "measured by blis_run --probe on the board" in core.notes
    assert "ghz = " in board.run(folder / "blis_run", "--probe", folder).stdout

    (folder / "probe.json").unlink()
    failed = board.run(folder / "blis_run", "--probe", check=False)
    assert failed.returncode == 3 and "probe.json" in failed.stderr
    (folder / "probe.json").write_text('{"format": 2}')
    failed = board.run(folder / "blis_run", "--probe", check=False)
    assert failed.returncode == 3 and "format" in failed.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rpc", "127.0.0.1:1"], "--rpc and --key belong together"),
        (["--key", "board"], "--rpc and --key belong together"),
        (["--bundle", "x", "--quick"], "--bundle goes with --target only"),
        (["--rpc", "127.0.0.1:1", "--key", "board"], "name the board's core with --target"),
    ],
)
def test_what_is_missing_is_told(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["probe", *options])
    assert result.exit_code == 2 and message in result.stderr
