"""How much a sweep measures: of each layer, in all, and until when."""

from __future__ import annotations

import sys
from math import ceil

from tvm_blislike.tuning.searches import IN_WHOLE_SPACE, LEARNED
from tvm_blislike.tuning.sweep import Limits

PER_TASK = 8
# The model's choice and three favourites of the learned model.
_LEARNED_PER_TASK = 4
# Of the searches in the whole space, unless there is a limit for all layers.
PER_TASK_IN_SPACE = 64
_LEAST_PER_TASK = 2
# Share of a budget, and seconds at most, for the finals.
_FINALS_SHARE = 0.5
_FINALS_SECONDS = 60.0


def limits_for(
    search: str,
    tasks: int,
    trials: int | None,
    budget: float | None,
    started: float,
    finals: bool,
) -> Limits:
    """Return the limits of a sweep.

    Parameters
    ----------
    search : str
        Name of the search.
    tasks : int
        Distinct workloads of the model.
    trials : int or None
        Measurements at most.
    budget : float or None
        Seconds at most.
    started : float
        The `time.monotonic()` from which they count.
    finals : bool
        Whether models are compared at the end: they get a share of the seconds.
    """
    per_task = _per_task(search, tasks, trials, budget)
    if budget is None:
        return Limits(per_task, trials)
    reserve = min(_FINALS_SHARE * budget, _FINALS_SECONDS)
    # What was measured at different times meets again: inside the model, or else by itself.
    last = None if finals else started + budget
    return Limits(per_task, trials, started + budget - reserve, last)


def _per_task(search: str, tasks: int, trials: int | None, budget: float | None) -> int:
    most = {"model": PER_TASK, LEARNED: _LEARNED_PER_TASK}.get(search, sys.maxsize)
    if search in IN_WHOLE_SPACE and budget is None and trials is None:
        most = PER_TASK_IN_SPACE
    if trials is None:
        return most
    # Rather a few candidates of every layer than all of the first layers.
    return min(most, max(_LEAST_PER_TASK, ceil(trials / max(tasks, 1))))
