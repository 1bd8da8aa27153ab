"""Candidates built by executors of threads, processes and Dask; who is to blame for failures."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from small import small_model

from tvm_blislike import register_implementation
from tvm_blislike.errors import ToolchainError
from tvm_blislike.hardware import native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.records import files
from tvm_blislike.schedules import get_implementation, unregister_implementation
from tvm_blislike.tuning import building
from tvm_blislike.tuning.kernels import CandidateGroup, Timing
from tvm_blislike.tuning.measure import LocalRunner, Outcome
from tvm_blislike.tuning.tune import tune

NATIVE = native_core()
GEMM = GemmWorkload(48, 64, 32)
TIMING = Timing(repeats=2, round_seconds=0.05)
# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _processes() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


@pytest.fixture(params=["threads", "processes", "dask"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """Each kind of executor."""
    if request.param == "dask":
        distributed = pytest.importorskip("distributed", reason="it is part of the extra `test`")
        options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
            yield client.get_executor()
    else:
        with ThreadPoolExecutor(2) if request.param == "threads" else _processes() as found:
            yield found


def _configs(name: str = "gemm", count: int = 2) -> tuple[Config, ...]:
    offers = list(get_implementation("gemm").configs(GEMM, NATIVE, 1))
    return tuple(replace(c, implementation=name) for c in offers[:: len(offers) // count])[:count]


def _measured(executor: Executor, *configs: Config, seconds: float = 100) -> list[Outcome]:
    runner = LocalRunner(NATIVE, 1, TIMING, build_seconds=seconds, executor=executor)
    try:
        ((_, outcomes),) = runner.measure([CandidateGroup(GEMM, configs, NATIVE, 1)])
    finally:
        runner.close()
    return outcomes


def test_candidates_are_built_by_an_executor(executor: Executor) -> None:
    for outcome in _measured(executor, *_configs()):
        assert outcome.status == "ok" and outcome.error < 2e-5 and len(outcome.seconds) >= 2


def test_a_sweep_by_an_executor(tmp_path: Path) -> None:
    model, path = small_model(tmp_path / "small.onnx"), tmp_path / "records.jsonl"
    with ThreadPoolExecutor(2) as pool:
        done = tune(model, threads=1, records=path, trials=4, shard="0/1", executor=_Counting(pool))
    assert done.measured == 4 and not done.rejected and _Counting.taken == 2
    assert all(r.status == "ok" for r in files.read(path)[0])


class _Counting(Executor):
    """Passes work on, and counts it."""

    taken = 0

    def __init__(self, other: Executor) -> None:
        self._other = other

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        _Counting.taken += 1
        return self._other.submit(*args, **kwargs)


def _schedule_fails(*_: object) -> None:
    raise RuntimeError("cannot schedule this")


def test_a_candidate_that_cannot_be_built_costs_nobody_else() -> None:
    culprit = replace(get_implementation("gemm"), name="gemm_fails", schedule=_schedule_fails)
    register_implementation(culprit)
    try:
        with ThreadPoolExecutor(1) as pool:
            bad, good = _measured(pool, *_configs("gemm_fails", 1), *_configs(count=1))
    finally:
        unregister_implementation("gemm_fails")
    assert bad.status == "failed" and "cannot schedule this" in bad.reason
    assert good.status == "ok"


def _leave(*_: object) -> None:
    os._exit(3)


def _of_another_version(*_: object) -> None:
    raise ImportError("a worker has another version")


def _takes_long(*_: object) -> None:
    time.sleep(4)


@pytest.mark.parametrize(
    "work, processes, said",
    [
        (_leave, True, "workers cannot build"),
        (_of_another_version, False, "another version"),
        (_takes_long, False, "built anything in 1 s"),
    ],
)
def test_workers_that_cannot_build_end_the_sweep(
    work: Any, processes: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No candidate is to blame: it would be on record as failed, and never be measured again."""
    monkeypatch.setattr(building, "_objects_of", work)
    with _processes() if processes else ThreadPoolExecutor(1) as pool:
        with pytest.raises(ToolchainError, match=said) as caught:
            _measured(pool, *_configs(), seconds=30 if processes else 1)
    assert "what was measured is kept" in caught.value.hint


def test_an_executor_that_was_shut_down_is_named() -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(ToolchainError, match="takes no more work"):
        _measured(pool, *_configs())


def test_a_worker_with_other_versions_refuses() -> None:
    group = CandidateGroup(GEMM, _configs(count=1), NATIVE, 1)
    with pytest.raises(ImportError, match=r"this process .*'9\.9'"):
        building._objects_of(group, (), {"tvm-blislike": "9.9", "apache-tvm": "0"})


class _Noting(Executor):
    """Notes what it is given; nothing of it is ever built."""

    def __init__(self) -> None:
        self.taken: list[CandidateGroup] = []

    def submit(self, _function: Any, group: CandidateGroup, *_args: Any) -> Future[Any]:
        self.taken.append(group)
        found: Future[Any] = Future()
        found.set_exception(RuntimeError(str(group.workload)))
        return found


def test_what_takes_longest_is_built_first_and_results_keep_their_places() -> None:
    window = Conv2dWorkload(1, 8, 10, 10, 8, 3, 3)
    few, many = (CandidateGroup(GEMM, _configs(count=n), NATIVE, 1) for n in (1, 2))
    long = CandidateGroup(window, _configs(count=2), NATIVE, 1)
    executor = _Noting()
    results = building.ExecutorBuilder(executor, "", [], [], 1.0).build([few, long, many])
    assert executor.taken == [long, many, few]
    for group, (library, error) in zip((few, long, many), results, strict=True):
        assert not library and error == f"RuntimeError: {group.workload}"


def test_one_hanging_build_fails_alone() -> None:
    """The others have been built meanwhile."""
    answered: Future[list[building.Object]] = Future()
    answered.set_result([])
    builder = building.ExecutorBuilder(ThreadPoolExecutor(1), "", [], [], 0.05)
    hanging: Future[list[building.Object]] = Future()
    assert [*builder._ended({answered, hanging})] == [answered, hanging]
    assert hanging.cancelled()
    assert builder._result(hanging) == ("", "no answer for 0 s")
