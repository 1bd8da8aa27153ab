"""Measuring through a tracker and two servers on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from tvm_blislike.cli.app import app
from tvm_blislike.errors import TargetError, UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.registry import get_implementation
from tvm_blislike.tuning.kernels import Bundle, Plan
from tvm_blislike.tuning.remote import RemoteRunner
from tvm_blislike.tuning.tune import tune
from tvm_blislike.workload import GemmWorkload

NATIVE = Core.native()
PLAN = Plan(cold_bytes=1 << 20, repeats=3, round_seconds=0.05)


def _ports() -> int:
    """Return the first of a range of ports that nobody uses at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def tracker() -> Iterator[str]:
    """Start a tracker and two servers under the key "board"; return the tracker's address."""
    pytest.importorskip("tornado")
    port = _ports()
    python = [sys.executable, "-m"]
    start = ["tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen([*python, *start, "--port-end", str(port + 1)], **quiet)]
    for _ in range(2):
        own = _ports()
        serve = ["tvm.exec.rpc_server", "--tracker", f"127.0.0.1:{port}", "--key", "board"]
        serve += ["--port", str(own), "--port-end", str(own + 9)]
        started.append(subprocess.Popen([*python, *serve], **quiet))
    _wait_for_boards(port, 2)
    yield f"127.0.0.1:{port}"
    for process in started:
        process.kill()
        process.wait()


def _wait_for_boards(port: int, count: int) -> None:
    from tvm.s_tir import meta_schedule as ms

    config = ms.runner.RPCConfig("127.0.0.1", port, "board")
    end = time.monotonic() + 100
    while time.monotonic() < end:
        with socket.socket() as probe:
            answers = probe.connect_ex(("127.0.0.1", port)) == 0
        if answers and config.count_num_servers() == count:
            return
        time.sleep(0.5)
    raise TimeoutError("no boards")


def test_bundles_are_measured_on_the_boards(tracker: str) -> None:
    gemm = get_implementation("gemm")
    bundles = [
        Bundle(w, tuple(list(gemm.configs(w, NATIVE, 1))[:2]), NATIVE, 1)
        for w in (GemmWorkload(32, 48, 16 * k) for k in range(1, 5))
    ]
    runner = RemoteRunner(NATIVE, 1, PLAN, tracker, "board")
    try:
        found = dict(runner.measure(bundles))
    finally:
        runner.close()
    assert set(found) == set(bundles)
    for bundle, outcomes in found.items():
        assert [o.config for o in outcomes] == list(bundle.configs)
        assert all(o.status == "ok" and o.error < 2e-5 and o.seconds for o in outcomes)


def test_missing_boards_are_an_error(tracker: str) -> None:
    with pytest.raises(TargetError, match="no board 'other'"):
        RemoteRunner(NATIVE, 1, PLAN, tracker, "other", run_seconds=5)
    with pytest.raises(UsageError, match="HOST:PORT"):
        RemoteRunner(NATIVE, 1, PLAN, "nowhere", "board")


def test_tracker_and_key_belong_together() -> None:
    with pytest.raises(UsageError, match="belong together"):
        tune("model.onnx", rpc="localhost:9190")
    result = CliRunner().invoke(app, ["tune", "model.onnx", "--key", "board"])
    assert result.exit_code == 2
