"""Measuring through a tracker and servers on loopback: boards that join, leave, die and hang."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import onnx
import pytest
from loopback import KEY, Loopback
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from tvm_blislike import register_implementation
from tvm_blislike.cli.app import app
from tvm_blislike.errors import TargetError, UsageError
from tvm_blislike.hardware import native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import GemmWorkload, Workload
from tvm_blislike.records import files
from tvm_blislike.schedules import get_implementation, unregister_implementation
from tvm_blislike.tuning.kernels import CandidateGroup, Timing
from tvm_blislike.tuning.remote import RemoteRunner
from tvm_blislike.tuning.tune import tune

NATIVE = native_core()
TIMING = Timing(cold_bytes=1 << 20, repeats=3, round_seconds=0.05)
GEMM = GemmWorkload(48, 64, 32)
# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    """A tracker without boards."""
    pytest.importorskip("tornado")
    made = Loopback(tmp_path)
    yield made
    made.end()


def _runner(loopback: Loopback, timing: Timing = TIMING, **options: float) -> RemoteRunner:
    return RemoteRunner(NATIVE, 1, timing, loopback.address, KEY, **options)


def _group(workload: GemmWorkload, count: int, name: str = "gemm") -> CandidateGroup:
    offers = list(get_implementation(name).configs(workload, NATIVE, 1))[:count]
    return CandidateGroup(
        workload, tuple(replace(c, implementation=name) for c in offers), NATIVE, 1
    )


def test_missing_boards_are_an_error(loopback: Loopback) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        RemoteRunner(NATIVE, 1, TIMING, "nowhere", KEY)
    with pytest.raises(TargetError, match=f"no board '{KEY}' at the tracker {loopback.address}"):
        _runner(loopback, start_seconds=0)
    loopback.end()
    with pytest.raises(TargetError, match=f"no tracker answers at {loopback.address}"):
        _runner(loopback, start_seconds=0)


def test_tracker_and_key_belong_together() -> None:
    with pytest.raises(UsageError, match="belong together"):
        tune("model.onnx", rpc="localhost:9190")
    with pytest.raises(UsageError, match="only boards are emulated"):
        tune("model.onnx", emulated=True)
    result = CliRunner().invoke(app, ["tune", "model.onnx", "--key", "board"])
    assert result.exit_code == 2


def _compute_abort(workload: Workload, config: Config, data: object, packed: object) -> object:
    from tvm import te, tirx

    out = get_implementation("gemm").compute(workload, config, data, packed)
    return te.compute(out.shape, lambda *i: out(*i) + tirx.call_extern("float32", "abort"))


def test_a_candidate_that_crashes_costs_no_board(loopback: Loopback) -> None:
    culprit = replace(get_implementation("gemm"), name="gemm_abort", compute=_compute_abort)
    register_implementation(culprit)
    (server,) = loopback.add(1)
    loopback.wait_for(1)
    good, bad = _group(GEMM, 2), _group(GEMM, 1, "gemm_abort")
    group = replace(good, configs=(good.configs[0], *bad.configs, good.configs[1]))
    runner = _runner(loopback, run_seconds=30, patience_seconds=60)
    try:
        ((_, outcomes),) = runner.measure([group])
    finally:
        runner.close()
        unregister_implementation("gemm_abort")
    assert [o.status for o in outcomes] == ["ok", "failed", "ok"]
    assert "3 boards were lost" in outcomes[1].reason
    # A look at the board; three times the group and the culprit, once each of the others, and
    # those side by side.
    assert server.sessions() == 10


def test_without_boards_it_waits_and_then_ends(loopback: Loopback) -> None:
    (server,) = loopback.add(1)
    loopback.wait_for(1)
    runner = _runner(loopback, patience_seconds=15)
    told: list[str] = []
    try:
        assert len(list(runner.measure([_group(GEMM, 2)]))) == 1
        server.end()
        loopback.wait_for(0)
        with pytest.raises(TargetError, match=r"for 15 s(.|\n)*goes on from there"):
            list(runner.measure([_group(GEMM, 2)], lambda what: told.append(what) or True))
        assert f"waiting for a board '{KEY}'" in told[0]
        # Whoever does not want to wait need not.
        assert not list(runner.measure([_group(GEMM, 2)], lambda _: False))
    finally:
        runner.close()


def _model(path: Path, layers: int) -> Path:
    """Write matrix products of different sizes, one after the other."""
    rng = np.random.default_rng(0)
    widths = [32 + 16 * k for k in range(layers + 1)]
    sizes = list(itertools.pairwise(widths))
    tensors = [
        numpy_helper.from_array(rng.standard_normal(size).astype("float32"), f"w{k}")
        for k, size in enumerate(sizes)
    ]
    nodes = [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(layers)]
    values = [
        helper.make_tensor_value_info(f"x{k}", onnx.TensorProto.FLOAT, [24, widths[k]])
        for k in (0, layers)
    ]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:], tensors)
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


def test_a_sweep_survives_its_boards(loopback: Loopback, tmp_path: Path) -> None:
    model, records = _model(tmp_path / "chain.onnx", 5), tmp_path / "records.jsonl"
    boards = loopback.add(3)
    loopback.wait_for(3)
    # No board has the time to end its first group.
    runner = _runner(loopback, replace(TIMING, repeats=10**6), run_seconds=20)
    at_once: list[int] = []

    def mistreat() -> None:
        while not all(board.busy() for board in boards):
            time.sleep(0.02)
        at_once.append(runner.at_once())
        runner.timing = TIMING
        killed, hung, leaving = boards
        killed.signal(signal.SIGKILL)
        hung.signal(signal.SIGSTOP)
        leaving.signal(signal.SIGTERM)
        # The hung one is still registered.
        loopback.wait_for(1)
        boards.extend(loopback.add(1))
        loopback.wait_for(2)
        at_once.append(runner.at_once())

    accident = threading.Thread(target=mistreat, daemon=True)
    accident.start()
    try:
        result = tune(model, threads=1, trials=10, records=records, runner=runner)
    finally:
        runner.close()
    accident.join(60)
    assert at_once == [3, 2] and not accident.is_alive()
    good, bad = files.read(records)
    assert not bad and not result.rejected
    # Two different candidates of each layer, each measured once.
    assert len({r.workload for r in good}) == 5
    assert len({(r.workload, r.config) for r in good}) == len(good) == result.measured == 10
    assert {(r.status, r.context) for r in good} == {("ok", "cold")}
    # The one that came last was all that was left.
    assert boards[3].sessions() > 0
