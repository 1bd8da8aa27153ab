"""Records of a made-up machine that is not quite what the analytical model expects."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from made import CORE, STRATEGY

from tvm_blislike.cost_models.learned import LearnedModel
from tvm_blislike.model.config import Config
from tvm_blislike.model.validity import core_facts
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.records.record import Record
from tvm_blislike.tuning import learn

SAME = (1, 1, 1, 1)
SEEN = (
    Conv2dWorkload(1, 32, 28, 28, 64, 3, 3, padding=SAME),
    Conv2dWorkload(1, 128, 14, 14, 128, 3, 3, padding=SAME),
    Conv2dWorkload(1, 64, 28, 28, 128, 1, 1),
    GemmWorkload(64, 96, 32),
    GemmWorkload(100, 64, 48),
)
DATE = "2026-01-01T00:00:00.000+00:00"
HELD_OUT = Conv2dWorkload(1, 64, 28, 28, 96, 3, 3, padding=SAME)


def bias(config: Config) -> float:
    """Return how many times longer than expected a kernel takes there."""
    slow = 4.0 if "winograd" in config.implementation else 0.9
    return slow * (1.3 if config.nr == 32 else 1.0)


def seconds(workload: Workload, config: Config) -> float:
    """Return the time of a kernel on the made-up machine."""
    return learn.candidate_of(record(workload, config, 1.0), CORE).seconds * bias(config)


def record(workload: Workload, config: Config, time: float, **fields: object) -> Record:
    """Return the record of a measurement of `time` seconds, with some fields replaced."""
    times, target = (time, 1.01 * time, 0.99 * time), CORE.target_config(1)
    predicted = STRATEGY.seconds(workload, config)
    made = Record(workload, config, CORE.name, core_facts(CORE), target, 1, times, predicted, 0.0)
    # The order of records, and with it the trees, depends on their dates.
    return replace(made, **{"date": DATE, **fields})


@cache
def some_configs(workload: Workload, count: int = 60) -> tuple[Config, ...]:
    """Return configurations of a workload, always the same ones, as many of each implementation."""
    offered: dict[str, list[Config]] = {}
    for config, _ in STRATEGY.offers(workload):
        offered.setdefault(config.implementation, []).append(config)
    share, draw = count // len(offered), random.Random(0)
    return tuple(
        c for every in offered.values() for c in draw.sample(every, min(share, len(every)))
    )


@cache
def records(workloads: Sequence[Workload] = SEEN) -> tuple[Record, ...]:
    """Return records of some configurations of workloads."""
    return tuple(record(w, c, seconds(w, c)) for w in workloads for c in some_configs(w))


@cache
def model() -> LearnedModel:
    """Return what is learned from all of them."""
    return learn.train(records(), CORE)
