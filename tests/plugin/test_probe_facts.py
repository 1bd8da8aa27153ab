"""What the probe makes of rates: facts of machines that are made up, here and on a board."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_blislike.hardware import Core
from tvm_blislike.probe import ProbeResult, plan
from tvm_blislike.probe.compute_kernels import USES
from tvm_blislike.probe.disturbance import Watch, spread, spread_notes
from tvm_blislike.probe.result import result_of
from tvm_blislike.probe.rounds import LEAST_ROUNDS, best, rates
from tvm_blislike.probe.steps import Step, steps_of


class MadeBench:
    """A machine whose every run takes what a made core says."""

    def __init__(self, per_second: dict[str, float]) -> None:
        self.per_second, self.runs = per_second, Counter[str]()

    def seconds(self, step: Step, repeats: int) -> float:
        self.runs[step.kernel] += 1
        return step.work * repeats / self.per_second[step.kernel]


def test_facts_of_a_made_core() -> None:
    """3 GHz, 1.5 FMAs, 2.1 loads, 0.9 stores a cycle; elements cost 0.1, vectors 0.25 cycles."""
    hertz, core = 3e9, Core.named("haswell")
    per_second = {"chain": hertz, "fma": 1.5 * hertz, "read": 2.1 * hertz, "write": 0.9 * hertz}
    per_second |= {"fma_elements": hertz / (USES / 1.5 + 0.1), "fork": 4e5}
    per_second |= {"fma_vectors": hertz / (USES / 1.5 + 0.25), "stream": 6e10}
    per_second |= {"walk": 1e7, "walks": 1.2e8, "passed": 1e10, "kept": 1.5e10}
    steps = steps_of(core, 2, 64 << 20)
    done: list[float] = []
    found = rates(MadeBench(per_second), steps, 1e-3, 1e-9, done.append)
    assert all(len(values) == LEAST_ROUNDS for values in found.values())
    assert done == [1.0] * LEAST_ROUNDS
    found["walk near"] = np.array([1e8])
    core = result_of(core, 2, found, ("made",)).to_core()
    assert (core.ghz, core.fma_per_cycle) == (3.0, 1.5)
    assert (core.loads_per_cycle, core.stores_per_cycle) == (2.0, 1.0)
    assert (core.element_load_cycles, core.vector_load_cycles) == (0.1, 0.25)
    assert (core.fork_join_us, core.lines_in_flight) == (2.5, 11)  # 90 ns over 8.3 ns
    assert [cache.bytes_per_cycle for cache in core.caches] == [20.0] * 3
    assert [cache.all_bytes_per_cycle for cache in core.caches] == [None, None, 20.0]
    assert (core.memory_core_gb_per_s, core.memory_gb_per_s) == (60.0, 60.0)
    assert core.passed_bytes_per_cycle == 6.67  # 1/10 - 1/15 + 1/60 ns a byte
    assert core.bf16_per_cycle is None
    assert "made" in core.notes


@pytest.mark.parametrize(
    "half, kept",
    [(3e10, 1.0), (4e10, 1.0), (1.5e10, 0.5), (1.01e10, 0.0), (0.9e10, 0.0)],
)
def test_what_a_guest_keeps_of_half_a_cache(half: float, kept: float) -> None:
    """30 GB/s from L3, 10 from memory: of bytes half of which come from each, 15."""
    core = dataclasses.replace(Core.named("zen3"), is_virtual=True)
    steps = steps_of(core, 1, 64 << 20)
    per_second = dict.fromkeys((step.kernel for step in steps.values()), 1e9)
    found = rates(MadeBench(per_second), steps, 1e-3, 1e-9, lambda share: None)
    found |= {"walk near": np.array([1e10]), "half L3": np.array([half])}
    found |= {"stream L3": np.array([3e10]), "stream memory": np.array([1e10])}
    caches = result_of(core, 1, found, ()).to_core().caches
    assert [cache.kept_of_half for cache in caches] == [1.0, 1.0, kept]


class InterruptedBench(MadeBench):
    """One whose calls take time of their own, and whose first one is interrupted."""

    def seconds(self, step: Step, repeats: int) -> float:
        interrupted = 0 if self.runs[step.kernel] else 0.3
        return super().seconds(step, repeats) + 1e-6 + interrupted


def test_an_interrupted_run_is_not_taken_for_a_long_one() -> None:
    step, per_second = Step("fma", 20), 3e9
    found = rates(
        InterruptedBench({"fma": per_second}), {"fma": step}, 1e-3, 1e-9, lambda share: None
    )
    assert found["fma"] == pytest.approx(per_second, rel=0.01)


class WaitingBench(MadeBench):
    """One each of whose runs waits for a CPU."""

    def seconds(self, step: Step, repeats: int) -> float:
        return super().seconds(step, repeats) + 3e-3


def test_waiting_for_a_cpu_is_not_taken_for_work() -> None:
    found = best(WaitingBench({"fma": 3e9}), Step("fma", 20), 1e-3, 5)
    assert 2e9 < found <= 3e9


@pytest.mark.parametrize(("starts", "fact"), [(0.49, 0.5), (0.98, 1.0), (0.1, 0.25)])
def test_products_of_bfloat16_of_a_made_core(starts: float, fact: float) -> None:
    hertz, core = 2e9, Core.named("emeraldrapids")
    steps = steps_of(core, 1, 64 << 20)
    per_second = dict.fromkeys((step.kernel for step in steps.values()), 1e9)
    per_second |= {"chain": hertz, "fma": 2 * hertz, "bf16": starts * hertz}
    found = rates(MadeBench(per_second), steps, 1e-3, 1e-9, lambda share: None)
    found["walk near"] = np.array([1e10])
    assert result_of(core, 1, found, ()).to_core().bf16_per_cycle == fact


def test_what_a_board_evaluates_is_what_is_evaluated_here(tmp_path: Path) -> None:
    """The plan of a board: its expressions, read back, give the core that `to_core` gives."""

    def value(plain: Any) -> float:
        if not isinstance(plain, list):
            return plain
        if plain[0] == "rate":
            return result.rates[plain[1]]
        a, b = (value(operand) for operand in plain[1:])
        by_name = {"+": a + b, "-": a - b, "*": a * b, "max": max(a, b)}
        by_name["nearest"] = round(a * b) / b if plain[0] == "nearest" else 0.0
        return a / b if plain[0] == "/" else by_name[plain[0]]

    core = Core.named("zen4")
    board = json.loads(json.dumps(plan.plan_of(core)))
    numbers = np.random.default_rng(7).uniform(1e9, 4e9, len(board["steps"]))
    names = [step["name"] for step in board["steps"]]
    rates = dict(zip(names, numbers, strict=True)) | {"fork all": 4e5, "walk memory": 1e7}
    result = ProbeResult(core, core.cores, rates)
    text = board["toml"]
    for fact in board["facts"]:
        text = text.replace(f"@{fact['name']}@", f"{value(fact['value']):.10g}")
    assert "@" not in text
    (tmp_path / "core.toml").write_text(text)
    filled, here = Core.from_toml(tmp_path / "core.toml"), result.to_core()
    assert dataclasses.replace(filled, notes=()) == dataclasses.replace(here, notes=())
    assert {*filled.notes} ^ {*here.notes} == {filled.notes[-1], here.notes[-1]}


def test_disturbances_are_told() -> None:
    even, uneven = np.full(9, 2.0), np.linspace(1.0, 2.0, 9)
    assert spread(even) == 0 and spread(uneven) == pytest.approx(0.5 / 1.5)
    notes = spread_notes({"fma": spread(even), "stream L3": spread(uneven)})
    assert len(notes) == 1 and "stream L3 33%" in notes[0] and "fma" not in notes[0]
    assert isinstance(Watch().notes(), list)
