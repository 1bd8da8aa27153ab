"""Who takes part in the finals, and what of their verdict becomes records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tvm_blislike.model.config import Config
from tvm_blislike.model.validity import versions
from tvm_blislike.records.record import Record, now
from tvm_blislike.tuning.competitors import Subject
from tvm_blislike.tuning.measure import Outcome
from tvm_blislike.tuning.sweep import Sweep
from tvm_blislike.tuning.tasks import Task
from tvm_blislike.tuning.whole_model import Contest, Verdict, decide

# Candidates of a layer that meet the model's choice inside the model, and how much slower by
# themselves they may be.
_FINALISTS = 2
_WORTH = 1.02


def judge(
    sweep: Sweep, tasks: Sequence[Task], subject: Subject, end: float | None
) -> Verdict | None:
    """Hold the finals and write down what they found; None when the user stopped them."""
    verdict = decide(_contest(sweep, tasks, subject, end))
    if verdict is not None:
        records = _records(sweep, tasks, verdict)
        sweep.write(records)
        sweep.book.add(records)
    return verdict


def _contest(sweep: Sweep, tasks: Sequence[Task], subject: Subject, end: float | None) -> Contest:
    followed = sweep.strategy.following(sweep.book)
    favourites = {
        task.workload: followed.choose(task.workload).config or task.choice.config for task in tasks
    }
    candidates = {task.workload: _finalists(sweep, task) for task in tasks}
    return Contest(
        subject, candidates, favourites, end=inf if end is None else end, stopped=sweep.stopped
    )


def _records(sweep: Sweep, tasks: Sequence[Task], verdict: Verdict) -> list[Record]:
    """Return what a verdict adds to the records."""
    if verdict.rejected:
        return [record for task in tasks for record in _dropped(sweep, task, verdict.rejected)]
    of = {task.workload: task for task in tasks}
    timed = [
        _in_model(sweep, of[workload], config, tuple(seconds))
        for (workload, config), seconds in verdict.layers.items()
    ]
    reason = "the layouts of its neighbours decide"
    return timed + [r for w in verdict.unsettled for r in _dropped(sweep, of[w], reason)]


def _finalists(sweep: Sweep, task: Task) -> tuple[Config, ...]:
    """Return the model's choice, then what was about as fast or faster, in the same layouts."""
    choice, untuned = task.choice.config, sweep.untuned(task)
    limit = untuned.median_seconds * _WORTH if untuned else inf
    others = [
        record.config
        for record in sorted(sweep.usable(task), key=lambda record: record.median_seconds)
        if record.median_seconds <= limit and record.config != choice
        if (record.config.data_layout, record.config.out_layout)
        == (choice.data_layout, choice.out_layout)
    ]
    return (choice, *others[:_FINALISTS])


def _in_model(sweep: Sweep, task: Task, config: Config, seconds: tuple[float, ...]) -> Record:
    """Return the record of a layer in the model."""
    alone = next((r for r in sweep.usable(task) if r.config == config), None)
    error = alone.error if alone else None
    return sweep.record(task.workload, Outcome(config, "ok", seconds, error), "model")


def _dropped(sweep: Sweep, task: Task, reason: str) -> list[Record]:
    """Return records that put everything but the model's choice out of use for a workload."""
    s = sweep.strategy
    return [
        replace(record, status="dropped", reason=reason, date=now(), versions=versions())
        for record in sweep.book.usable(task.workload, s.core, s.threads)
        if record.config != task.choice.config
    ]
