"""Sweeps that are interrupted or killed: what they measured stays, nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import EFFORT
from small import small_model

from tvm_blislike.records import files
from tvm_blislike.tuning.tune import tune


def _start(model: Path, records: Path, search: str) -> subprocess.Popen[str]:
    """Start a sweep whose temporary files are in `tmp` beside its records."""
    temporary = records.with_name("tmp")
    temporary.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tvm_blislike", "tune", str(model), "--threads", "1"]
    command += ["--records", str(records), "--search", search]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )


def _wait_for(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    while not path.exists() or len(files.read(path)[0]) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def test_interrupted_and_killed_sweeps_keep_what_they_measured(tmp_path: Path) -> None:
    model, records = small_model(tmp_path / "small.onnx"), tmp_path / "records.jsonl"
    victim = _start(model, records, "exhaustive")
    _wait_for(records, 1, victim)
    victim.kill()
    victim.wait()
    killed = len(files.read(records)[0])
    assert killed
    stopped = _start(model, records, "exhaustive")
    _wait_for(records, killed + 1, stopped)
    # As a terminal does: to the whole group, workers included.
    os.killpg(stopped.pid, signal.SIGINT)
    stdout, stderr = stopped.communicate(timeout=120)
    assert stopped.returncode == 0, stderr
    assert "interrupted" in stdout
    good, bad = files.read(records)
    assert len(good) > killed and not bad
    assert {r.status for r in good} == {"ok"}
    # Neither its own temporary files are left nor those of the killed one.
    assert not list((tmp_path / "tmp").iterdir())
    for _ in range(EFFORT - 1):
        again = _start(model, records, "exhaustive")
        time.sleep(np.random.default_rng().uniform(1, 20))
        again.kill()
        again.wait()
    assert len(files.read(records)[0]) >= len(good)


def test_an_interrupt_ends_the_finals_too(
    tuned: tuple[Path, Path, dict[str, Any]], tmp_path: Path
) -> None:
    model, records = tuned[0], tmp_path / "records.jsonl"
    records.write_bytes(tuned[1].read_bytes())
    stopped = _start(model, records, "model")
    while "comparing the tuned model" not in stopped.stderr.readline():
        assert stopped.poll() is None
    # As a terminal does: to the whole group, workers that are about to start included.
    os.killpg(stopped.pid, signal.SIGINT)
    stdout, stderr = stopped.communicate(timeout=120)
    assert stopped.returncode == 0, stderr
    assert "interrupted" in stdout and "whole model" not in stdout
    assert "Traceback" not in stderr and "stopping" in stderr
    with pytest.raises(ProcessLookupError):
        os.killpg(stopped.pid, 0)
    assert not list((tmp_path / "tmp").iterdir())
    # A verdict needs all of the finals.
    assert records.read_bytes() == tuned[1].read_bytes()
    again = tune(model, threads=1, records=records)
    assert again.measured == 0 and again.verdict is not None and not again.interrupted
