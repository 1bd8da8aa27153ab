"""The target native is measured at its first use, once per machine, and never for another one."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tvm
from typer.testing import CliRunner

from tvm_blislike.api import resolve_core
from tvm_blislike.cli.app import app
from tvm_blislike.hardware import Core, native_description, probed
from tvm_blislike.probe import measure, native

_TWICE = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from tvm_blislike import native_core
print(native_core().to_toml() if native_core() == native_core() else "")
"""


# How many threads a probe does without.
pool = SimpleNamespace(missing=0)
# How disturbed the next probes are, and the clock that they find.
disturbed: list[tuple[float, float]] = []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The probe is wanted, its folder empty, and nothing is known yet."""
    monkeypatch.setenv("TVM_BLISLIKE_PROBE", "1")
    monkeypatch.setattr(probed.platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "cache")
    monkeypatch.setattr(probed, "_held", {})
    monkeypatch.setattr(probed, "_failed", {})
    return tmp_path


@pytest.fixture
def probes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Core]:
    """What was probed; each time 7 GHz are found."""
    asked: list[Core] = []
    monkeypatch.setattr(pool, "missing", 0)

    def made(core: Core, quick: bool) -> SimpleNamespace:
        assert quick
        asked.append(core)
        disturbance, ghz = disturbed.pop(0) if disturbed else (0.0, 7.0)
        found = dataclasses.replace(core, ghz=ghz)
        threads = core.cores - pool.missing
        return SimpleNamespace(to_core=lambda: found, threads=threads, disturbance=disturbance)

    monkeypatch.setattr(measure, "probe", made)
    return asked


def test_first_use_measures_and_later_ones_read(
    probes: list[Core], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tvm_blislike")
    path, described = native_description()
    assert resolve_core("native").ghz == 7.0
    assert probes == [described] and path.exists()
    assert "first use on this machine" in caplog.text and str(path) in caplog.text
    monkeypatch.setattr(probed, "_held", {})  # as in another process
    caplog.clear()
    assert resolve_core("native").ghz == 7.0
    assert len(probes) == 1 and not caplog.text


def later(monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the clock that another process finds after a while."""
    monkeypatch.setattr(probed, "_held", {})
    path, _ = native_description()
    if path.exists():
        os.utime(path, (0, 0))
    return resolve_core("native").ghz


def test_a_disturbed_probe_is_made_again_at_once(probes: list[Core]) -> None:
    disturbed[:] = [(3.0, 4.0), (0.5, 7.0)]
    assert resolve_core("native").ghz == 7.0
    assert len(probes) == 2
    assert not any("busy machine" in note for note in resolve_core("native").notes)


def test_a_busy_machine_is_measured_again_later(
    probes: list[Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed[:] = [(3.0, 4.0), (2.0, 5.0)]
    assert resolve_core("native").ghz == 5.0
    assert "measured on a busy machine (2.0), 1 of 5 times" in resolve_core("native").notes[-1]
    # Not at once, and not in this process.
    monkeypatch.setattr(probed, "_held", {})
    assert resolve_core("native").ghz == 5.0 and len(probes) == 2
    disturbed[:] = [(4.0, 3.0)]
    assert later(monkeypatch) == 5.0 and len(probes) == 3
    disturbed[:] = [(1.5, 6.0)]
    assert later(monkeypatch) == 6.0 and len(probes) == 4
    assert later(monkeypatch) == 7.0 and len(probes) == 5
    assert later(monkeypatch) == 7.0 and len(probes) == 5


def test_a_machine_that_is_always_busy_is_left_alone_in_the_end(
    probes: list[Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    disturbed[:] = [(2.0, 5.0)] * 20
    for _ in range(8):
        assert later(monkeypatch) == 5.0
    assert len(probes) == 6
    disturbed.clear()


def test_only_the_target_native_is_measured(probes: list[Core]) -> None:
    path, described = native_description()
    assert resolve_core("haswell") == Core.named("haswell")
    assert resolve_core(described) == described
    foreign = tvm.target.Target(Core.named("cortex-a72").target_config())
    assert native.core_of(foreign).name == "cortex-a72"
    assert not probes and not path.exists()
    here = tvm.target.Target(described.target_config())
    assert native.core_of(here).ghz == 7.0 and len(probes) == 1


def test_turned_off_nothing_is_measured(
    probes: list[Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_BLISLIKE_PROBE", "0")
    assert resolve_core("native") == native_description()[1]
    assert not probes


def test_without_a_place_for_files_each_process_measures(
    probes: list[Core], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tvm_blislike")
    (folder / "cache").write_text("no folder")
    assert resolve_core("native").ghz == 7.0
    assert resolve_core("native").ghz == 7.0
    assert len(probes) == 1 and "not kept" in caplog.text


def test_what_fewer_threads_found_is_not_kept(
    probes: list[Core], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "missing", 1)
    path, _ = native_description()
    assert resolve_core("native").ghz == resolve_core("native").ghz == 7.0
    assert len(probes) == 1 and not path.exists()


def test_a_probe_that_fails_leaves_the_description(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("first line\nout of luck")

    monkeypatch.setattr(measure, "probe", failing)
    _, described = native_description()
    core = resolve_core("native")
    assert core.notes == (*described.notes, "not measured: out of luck")
    assert dataclasses.replace(core, notes=described.notes) == described
    assert "could not be measured" in caplog.text
    caplog.clear()
    assert resolve_core("native") == core and not caplog.text  # tried once


def test_the_command_tells_and_a_longer_probe_stays(folder: Path) -> None:
    path, _ = native_description()
    first = CliRunner().invoke(app, ["probe", "--quick"])
    assert first.exit_code == 0, first.output
    assert str(path) in first.stderr and path.exists()
    kept = path.read_text()
    assert CliRunner().invoke(app, ["probe", "--quick"]).exit_code == 0
    assert path.read_text() == kept


@pytest.mark.skipif(sys.platform != "linux", reason="where caches are kept is told by a variable")
def test_two_processes_at_first_use_measure_once(tmp_path: Path) -> None:
    surroundings = {**os.environ, "TVM_BLISLIKE_PROBE": "1", "XDG_CACHE_HOME": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", _TWICE]
    both = [subprocess.Popen(command, env=surroundings, **pipes) for _ in range(2)]
    (one, said), (other, also) = (process.communicate(timeout=300) for process in both)
    assert one == other and one.strip()
    assert (said + also).count("first use on this machine") == 1
    assert len(list(tmp_path.rglob("*.toml"))) == 1
