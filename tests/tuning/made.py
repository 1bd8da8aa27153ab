"""Records, tasks and runners without any measuring, for the tests of tuning."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.validity import core_facts
from tvm_blislike.model.workload import GemmWorkload, Workload
from tvm_blislike.records.record import Record
from tvm_blislike.tuning.kernels import CandidateGroup
from tvm_blislike.tuning.measure import Outcome, Wait
from tvm_blislike.tuning.tasks import Task

CORE = Core.named("skylake-avx512")
STRATEGY = Strategy(CORE, 1)
WORKLOADS = (GemmWorkload(64, 96, 32), GemmWorkload(100, 64, 48), GemmWorkload(7, 1000, 64))


def config(workload: Workload = WORKLOADS[0], place: int = 0) -> Config:
    """Return one of the configurations that the model has for a workload."""
    return sorted(STRATEGY.offers(workload), key=lambda offer: offer[1])[place][0]


def record(
    workload: Workload = WORKLOADS[0],
    place: int = 0,
    seconds: Sequence[float] = (2e-3, 1e-3, 3e-3),
    **fields: object,
) -> Record:
    """Return a record of the core, with some fields replaced."""
    c = config(workload, place)
    predicted = STRATEGY.seconds(workload, c)
    target = CORE.target_config(1)
    made = Record(
        workload, c, CORE.name, core_facts(CORE), target, 1, tuple(seconds), predicted, 1e-7
    )
    return replace(made, **fields)


def tasks() -> list[Task]:
    """Return a task for each workload."""
    return [Task(STRATEGY.choose(w), 1, 1 / len(WORKLOADS)) for w in WORKLOADS]


class MadeRunner:
    """Says that each configuration takes as many microseconds as its mr; keeps what it was asked.

    Parameters
    ----------
    pause : float
        Seconds per group.
    bad : mapping of int to str
        Status of configurations with such an mr.
    emulates : bool
        Whether its outcomes are those of an emulator, which it did not know before.
    """

    emulated = False

    def __init__(
        self, pause: float = 0.0, bad: dict[int, str] | None = None, emulates: bool = False
    ) -> None:
        self.pause, self.bad, self.emulates = pause, bad or {}, emulates
        self.asked: list[Config] = []

    def measure(
        self, groups: Sequence[CandidateGroup], wait: Wait
    ) -> Iterator[tuple[CandidateGroup, list[Outcome]]]:
        """Yield made-up outcomes."""
        for group in groups:
            time.sleep(self.pause)
            self.asked += group.configs
            yield group, [self._outcome(c) for c in group.configs]

    def at_once(self) -> int:
        """Return 1."""
        return 1

    def close(self) -> None:
        """Do nothing."""

    def _outcome(self, c: Config) -> Outcome:
        if c.mr in self.bad:
            return Outcome(c, self.bad[c.mr], reason="made up")
        seconds = (c.mr * 1e-6, c.mr * 1.001e-6, c.mr * 0.999e-6)
        return Outcome(c, "ok", seconds, 1e-7, emulated=self.emulates)


class Silent:
    """A watcher that remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def expect(self, tasks: int) -> None:
        self.told.append(f"expect {tasks}")

    def working(self, what: str) -> None:
        self.told.append(what)

    def measured(
        self, task: Task, outcomes: Sequence[Outcome], best: Record | None, untuned: Record | None
    ) -> None:
        self.told.append(f"measured {len(outcomes)}")

    def finished(self, task: Task) -> None:
        self.told.append("finished")
