"""Real measurements in processes of their own: right, wrong, crashing and hanging candidates."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
import pytest
import reference
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

from tvm_blislike import register_implementation
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.hardware import native_core
from tvm_blislike.model.config import Config
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.schedules import get_implementation, unregister_implementation
from tvm_blislike.tuning import kernels, operands
from tvm_blislike.tuning.kernels import CandidateGroup, Timing
from tvm_blislike.tuning.measure import LocalRunner, Outcome

NATIVE = native_core()
GEMM = GemmWorkload(48, 64, 32)
TIMING = Timing(cold_bytes=1 << 20, evicts=True, repeats=4, round_seconds=0.05)
# Workers cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _pack_wrong(workload: Workload, config: Config, b: np.ndarray) -> np.ndarray:
    return get_implementation("gemm").pack(workload, config, b) * np.float32(1.01)


def _pack_nan(workload: Workload, config: Config, b: np.ndarray) -> np.ndarray:
    return get_implementation("gemm").pack(workload, config, b) * np.float32("nan")


def _pack_crash(workload: Workload, config: Config, b: np.ndarray) -> np.ndarray:
    os.abort()


def _pack_hang(workload: Workload, config: Config, b: np.ndarray) -> np.ndarray:
    ctypes.CDLL(None).pause()


def _schedule_fails(*_: object) -> None:
    raise RuntimeError("cannot schedule this")


def _schedule_crashes(*_: object) -> None:
    ctypes.string_at(0)


CULPRITS = {
    "gemm_wrong": {"pack": _pack_wrong},
    "gemm_nan": {"pack": _pack_nan},
    "gemm_crash": {"pack": _pack_crash},
    "gemm_hang": {"pack": _pack_hang},
    "gemm_fails": {"schedule": _schedule_fails},
    "gemm_breaks": {"schedule": _schedule_crashes},
}


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    """A runner whose workers know the culprits."""
    for name, methods in CULPRITS.items():
        register_implementation(replace(get_implementation("gemm"), name=name, **methods))
    made = LocalRunner(NATIVE, 1, TIMING, build_seconds=100, run_seconds=12)
    yield made
    made.close()
    for name in CULPRITS:
        unregister_implementation(name)


def _configs(workload: Workload, name: str, count: int = 1) -> list[Config]:
    offers = list(get_implementation(name).configs(workload, NATIVE, 1))
    return [replace(c, implementation=name) for c in offers[:: len(offers) // count]][:count]


def _measure(runner: LocalRunner, workload: Workload, *configs: Config) -> list[Outcome]:
    ((_, outcomes),) = runner.measure([CandidateGroup(workload, configs, NATIVE, 1)])
    assert [o.config for o in outcomes] == list(configs)
    return outcomes


def test_right_candidates_take_turns(runner: LocalRunner) -> None:
    conv = Conv2dWorkload(1, 16, 9, 11, 32, 3, 3, padding=(1, 1, 1, 1))
    names = ("conv2d_direct", "conv2d_winograd", "conv2d_im2col")
    groups = [
        CandidateGroup(conv, tuple(c for n in names for c in _configs(conv, n)), NATIVE, 1),
        CandidateGroup(GEMM, tuple(_configs(GEMM, "gemm", 3)), NATIVE, 1),
    ]
    for group, outcomes in runner.measure(groups):
        assert [o.config for o in outcomes] == list(group.configs)
        for outcome in outcomes:
            assert outcome.status == "ok" and outcome.error < 2e-5
            assert 4 <= len(outcome.seconds) <= 40
            assert all(1e-8 < s < 1 for s in outcome.seconds)
        # One repeat of each in turn.
        assert len({len(o.seconds) for o in outcomes}) == 1


def test_an_operand_of_run_time_is_packed_in_each_run(runner: LocalRunner) -> None:
    workload = GemmWorkload(32, 48, 64, batch=3, constant_b=False)
    (outcome,) = _measure(runner, workload, *_configs(workload, "gemm"))
    assert outcome.status == "ok" and outcome.error < 2e-5


class _Recorder:
    """A module that notes how its functions would be timed."""

    def __init__(self) -> None:
        self.asked: dict[str, dict[str, Any]] = {}

    def time_evaluator(self, name: str, _device: object, **options: Any) -> None:
        self.asked[name] = options


class _Watched:
    """A library that notes when its functions are called and timed."""

    def __init__(self, library: Any, notes: list[str]) -> None:
        self.library, self.notes = library, notes

    def __getitem__(self, name: str) -> Any:
        self.notes.append(name)
        return self.library[name]

    def time_evaluator(self, name: str, *args: Any, **options: Any) -> Any:
        self.notes.append(f"timer of {name}")
        return self.library.time_evaluator(name, *args, **options)


def test_memory_is_moved_when_all_have_run_and_before_any_is_timed(tmp_path: Path) -> None:
    group = CandidateGroup(GEMM, tuple(_configs(GEMM, "gemm", 2)), NATIVE, 1)
    built = kernels.build(group)
    built.export_library(str(tmp_path / "candidates.so"))
    library, notes = tvm.runtime.load_module(str(tmp_path / "candidates.so")), []
    arguments, watched = kernels.allocate(group, tvm.cpu()), _Watched(library, notes)
    kernels.run(group, Timing(), watched, tvm.cpu(), arguments, lambda: notes.append("moved"))
    timers = ["timer of candidate_0", "timer of candidate_1"]
    assert notes == ["candidate_0", "candidate_1", "moved", *timers]


class _Timed:
    """A module whose functions take no time and that notes their turns."""

    def __init__(self) -> None:
        self.turns: list[int] = []

    def time_evaluator(self, name: str, *_args: Any, **_options: Any) -> Any:
        number = int(name.removeprefix("candidate_"))

        def evaluate(*_operands: Any) -> Any:
            self.turns.append(number)
            return SimpleNamespace(results=[1e-6 * number])

        return evaluate


def test_each_round_has_an_order_of_its_own() -> None:
    group, module = CandidateGroup(GEMM, (), NATIVE, 1), _Timed()
    seconds = kernels._take_turns(group, Timing(repeats=12), module, None, [["a", "b", "c"]] * 6)
    rounds = [module.turns[i : i + 6] for i in range(0, len(module.turns), 6)]
    assert len(rounds) >= 12 and all(sorted(r) == list(range(6)) for r in rounds)
    # None is always behind the same other one.
    assert all(len({r[r.index(n) - 1] for r in rounds}) > 2 for n in range(6))
    assert seconds == [[1e-6 * n] * len(rounds) for n in range(6)]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("evicts", [True, False])
def test_weights_leave_the_caches_before_a_repeat(constant: bool, evicts: bool) -> None:
    workload = GemmWorkload(32, 48, 64, constant_b=constant)
    group, module = CandidateGroup(workload, (), NATIVE, 1), _Recorder()
    timing = Timing(1 << 20, evicts)
    kernels._timers(group, timing, module, None, 3, ["data", "b", "packed", "result"])
    asked = module.asked.pop("candidate_3")
    assert asked["cache_flush_bytes"] == 1 << 20
    # What an operand of run time holds was written just before.
    assert bool(asked["f_preproc"]) == (constant and evicts)
    assert set(module.asked) == (set() if constant else {"pack_3"})
    assert all(not options["f_preproc"] for options in module.asked.values())


def test_the_image_of_a_depthwise_layer_stays_in_the_caches() -> None:
    layer = Conv2dWorkload(1, 32, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1), groups=32)
    module = _Recorder()
    group = CandidateGroup(layer, (), NATIVE, 1)
    kernels._timers(group, Timing(1 << 20), module, None, 0, ["data", "packed", "result"])
    assert module.asked["candidate_0"]["cache_flush_bytes"] == 0


@pytest.mark.parametrize("name", ["gemm_wrong", "gemm_nan"])
def test_wrong_results_are_rejected(runner: LocalRunner, name: str) -> None:
    good, bad = _measure(runner, GEMM, *_configs(GEMM, "gemm"), *_configs(GEMM, name))
    assert good.status == "ok" and good.seconds
    assert bad.status == "wrong" and not bad.seconds
    assert "finite" in bad.reason if name == "gemm_nan" else "1.0e-02" in bad.reason


@pytest.mark.parametrize("name", ["gemm_crash", "gemm_hang", "gemm_fails", "gemm_breaks"])
def test_a_culprit_costs_nobody_else(runner: LocalRunner, name: str) -> None:
    good = _configs(GEMM, "gemm", 2)
    one, bad, two = _measure(runner, GEMM, good[0], *_configs(GEMM, name), good[1])
    assert bad.status == "failed" and not bad.seconds
    assert one.status == two.status == "ok"
    # These two took turns.
    assert len(one.seconds) == len(two.seconds)
    part = "cannot be built" if name in ("gemm_fails", "gemm_breaks") else "cannot be run"
    assert bad.reason.startswith(part)


def test_nothing_is_left_behind(runner: LocalRunner) -> None:
    _measure(runner, GEMM, *_configs(GEMM, "gemm"))
    assert not list(Path(runner._folder).iterdir())


@given(
    n=st.integers(1, 2),
    groups=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
@examples(50)
def test_the_reference_is_that_of_the_other_tests(
    n: int,
    groups: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> None:
    ci, co = (groups * c for c in channels)
    w = Conv2dWorkload(n, ci, *size, co, *kernel, stride, padding, dilation, groups)
    data, weights = operands.operands(w)
    wanted = reference.conv2d(data, weights, None, stride, padding, dilation, groups)
    np.testing.assert_allclose(operands.result(w, data, weights), wanted, atol=1e-12)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NCHW8c"])
def test_layouts_and_back(layout: str) -> None:
    w = Conv2dWorkload(2, 16, 3, 5, 16, 1, 1)
    config = DirectConfig(data_layout=layout, out_layout=layout)
    data, _ = operands.operands(w)
    there = operands.in_layout(w, config.data_layout, data)
    assert there.shape == operands.result_shape(w, config)
    np.testing.assert_array_equal(operands.from_layout(w, config, there), data)


def test_operands_have_the_type_of_the_workload() -> None:
    half = Conv2dWorkload(1, 4, 5, 5, 4, 3, 3, types=Types.of("float16"))
    for workload in (half, GemmWorkload(3, 4, 5, types=Types.of("float16"))):
        assert {array.dtype.name for array in operands.operands(workload)} == {"float16"}
