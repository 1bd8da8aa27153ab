"""The distinct workloads of a model, each with its share of the predicted time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import tvm

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.compiler_lock import compiler_lock
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.workload import Workload
from tvm_blislike.operators import workload_of
from tvm_blislike.pipeline import prepare
from tvm_blislike.tvm_seams import bindings, functions


@dataclass(frozen=True)
class Task:
    """One distinct workload of a model.

    Parameters
    ----------
    choice : Choice
        The model's choice, without records.
    count : int
        Layers of the model that are this workload.
    share : float
        Of the predicted time of all tasks, between 0 and 1.
    """

    choice: Choice
    count: int
    share: float

    @property
    def workload(self) -> Workload:
        """What is computed."""
        return self.choice.workload


@compiler_lock()
def tasks_of(mod: tvm.IRModule, strategy: Strategy) -> list[Task]:
    """Return the workloads that the strategy has a choice for, the most expensive ones first.

    Parameters
    ----------
    mod : IRModule
        As imported.
    strategy : Strategy
        Without records.
    """
    with tvm.target.Target(strategy.core.target_config(strategy.threads)) as target:
        counts = _count(prepare(target, strategy)(mod))
    strategy.estimate_all(counts)
    choices = {workload: strategy.choose(workload) for workload in counts}
    seconds = {w: counts[w] * c.estimate.seconds for w, c in choices.items() if c.estimate}
    total = sum(seconds.values())
    ordered = sorted(seconds, key=lambda workload: -seconds[workload])
    return [Task(choices[w], counts[w], seconds[w] / total) for w in ordered]


def _count(mod: tvm.IRModule) -> Counter[Workload]:
    values = [binding.value for _, func in functions(mod) for binding in bindings(func)]
    calls = [value for value in values if isinstance(value, tvm.relax.Call)]
    found = [workload_of(call) for call in calls]
    return Counter(workload for workload in found if workload is not None)
