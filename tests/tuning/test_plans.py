"""The state of the caches that candidates are timed in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tvm_blislike import frontend
from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.strategy import Strategy
from tvm_blislike.tuning.plans import plan_for, weights_of
from tvm_blislike.tuning.tasks import tasks_of

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import zoo

SERVER = Core.named("skylake-avx512")


def test_cold_repeats_empty_the_caches_of_one_core() -> None:
    assert plan_for(SERVER, "warm").cold_bytes == 0
    assert plan_for(SERVER).cold_bytes == 1 << 20
    assert plan_for(Core.named("cortex-a53")).cold_bytes >= 1 << 19
    with pytest.raises(UsageError, match="cold, warm"):
        plan_for(SERVER, "hot")


def test_weights_that_fit_a_shared_cache_stay_there() -> None:
    assert not plan_for(SERVER, weights=1 << 20).evicts
    assert plan_for(SERVER, weights=1 << 30).evicts
    assert not plan_for(SERVER, "warm", 1 << 30).evicts


def test_the_weights_of_a_model_are_those_of_all_its_layers() -> None:
    core = Core.named("skylake-avx512")
    tasks = tasks_of(frontend.load(zoo.build("squeezenet1_1")).module, Strategy(core, 1))
    # 1.24 million parameters, of which 4,000 or so are biases.
    assert 4 * 1.22e6 < weights_of(tasks) < 4 * 1.24e6
