"""The sweep over the tasks of a model: propose, build, measure, write down, task by task."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Protocol

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.config import Config
from tvm_blislike.model.validity import core_facts
from tvm_blislike.model.workload import Workload
from tvm_blislike.records.book import RecordBook, fastest
from tvm_blislike.records.record import EMULATED, Record
from tvm_blislike.tuning.kernels import CandidateGroup
from tvm_blislike.tuning.measure import Outcome, Runner
from tvm_blislike.tuning.search import Search, SearchMaker
from tvm_blislike.tuning.tasks import Task

# Candidates that take turns; more would push each other's operands out of L3.
GROUP = 8
# Bundles built at once, per CPU: with few, CPUs wait for the last one of each batch.
GROUPS_PER_CPU = 6
# The same for the first batch of a sweep that has to end in time.
_FIRST_GROUPS = 4
# Measured again, side by side, when a search needed more than one group.
_FINALISTS = 4
# Layers of less than this share of the model's time are worth fewer measurements.
_SMALL_SHARE = 0.01
_FEW = 4


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Parameters
    ----------
    per_task : int
        Measurements of one workload at most, those on record included; 4 where it takes less than
        1 % of the model's time, unless there is no limit at all.
    trials : int, optional
        Measurements of this sweep at most.
    end : float, optional
        No measurement begins after this `time.monotonic()`.
    last : float, optional
        Until then, and after `end`, the best few of workloads whose search was not over are
        measured side by side.
    """

    per_task: int = 8
    trials: int | None = None
    end: float | None = None
    last: float | None = None


class Watcher(Protocol):
    """Is told what the sweep does, between measurements; a context around all of it."""

    def __enter__(self) -> Watcher: ...

    def __exit__(self, *error: object) -> None: ...

    def expect(self, tasks: int) -> None:
        """There are so many tasks."""

    def working(self, what: str) -> None:
        """A step begins."""

    def measured(
        self,
        task: Task,
        outcomes: Sequence[Outcome],
        best: Record | None,
        untuned: Record | None,
    ) -> None:
        """Candidates were measured; `best` would be chosen now, `untuned` is the model's choice."""

    def finished(self, task: Task) -> None:
        """Nothing more will be measured for a task."""


@dataclass
class _Job:
    """A task under measurement."""

    task: Task
    search: Search
    left: int
    groups: int = 0


@dataclass
class Sweep:
    """Measures the tasks of one model.

    Parameters
    ----------
    strategy : Strategy
        Without records: core, threads and constraints.
    make_search : callable
        Makes the search of a workload.
    runner : Runner
        Builds and runs.
    book : RecordBook
        What is known; measurements are added.
    write : callable
        Keeps records.
    watcher : Watcher
        Is told what happens.
    limits : Limits
        When to stop.
    stopped : callable
        Whether the user wants it to end; asked between measurements.
    context : str
        "cold" or "warm", as the runner measures, or "emulated".
    model : str
        Name of the model, for the records.
    batch : int
        Bundles that are built at once, more if the runner can run more at once.
    group : int
        Candidates that take turns in one process.
    """

    strategy: Strategy
    make_search: SearchMaker
    runner: Runner
    book: RecordBook
    write: Callable[[Sequence[Record]], None]
    watcher: Watcher
    limits: Limits = field(default_factory=Limits)
    stopped: Callable[[], bool] = lambda: False
    context: str = "cold"
    model: str = ""
    batch: int = GROUPS_PER_CPU
    group: int = GROUP
    measured: int = 0
    _planned: int = 0
    _group_seconds: float | None = None

    def run(self, tasks: Sequence[Task]) -> None:
        """Measure until every search is done or a limit is reached."""
        jobs = [self._job(task) for task in tasks]
        waiting = self._with_work(jobs)
        while waiting and not self._over():
            size = self._batch_size()
            # As even as can be: one layer left over would occupy one CPU.
            size = ceil(len(waiting) / ceil(len(waiting) / size))
            batch, waiting = waiting[:size], waiting[size:]
            self._measure(batch)
            waiting += self._with_work([job for job, _ in batch])
        if self.limits.last is not None:
            self._compare_until(self.limits.last, jobs)

    def _compare_until(self, last: float, jobs: Sequence[_Job]) -> None:
        """Measure the best of each search side by side where the time ended it."""
        self.limits = replace(self.limits, end=last)
        found = [(job, group) for job in jobs if (group := self._finale(job)) is not None]
        while found and not self._over():
            size = self._batch_size()
            batch, found = found[:size], found[size:]
            self._measure(batch)

    def _batch_size(self) -> int:
        """Return how many groups to build at once, no more than there is time to measure."""
        least, most = self.runner.at_once(), max(self.batch, self.runner.at_once())
        if self.limits.end is None:
            return most
        if self._group_seconds is None:
            return max(least, min(most, _FIRST_GROUPS))
        left = self.limits.end - time.monotonic()
        return max(least, int(min(most, left / max(self._group_seconds, 1e-3))))

    def known(self, task: Task) -> list[Record]:
        """Return the records of a task's kernels by themselves, whatever came of them."""
        s = self.strategy
        every = self.book.of(task.workload, s.core, s.threads)
        return [record for record in every if record.context == self.context]

    def usable(self, task: Task) -> list[Record]:
        """Return the usable records of a task's kernels by themselves."""
        s = self.strategy
        emulated = self.context == EMULATED
        usable = self.book.usable(task.workload, s.core, s.threads, emulated)
        return [record for record in usable if record.context == self.context]

    def best(self, task: Task) -> Record | None:
        """Return the fastest of them, or the model's favourite among those as fast."""
        usable = self.usable(task)
        predicted = partial(self.strategy.seconds, task.workload)
        moving = partial(self.strategy.moving, task.workload)
        return fastest(usable, predicted, moving) if usable else None

    def untuned(self, task: Task) -> Record | None:
        """Return the record of the model's choice."""
        return next((r for r in self.usable(task) if r.config == task.choice.config), None)

    def _job(self, task: Task) -> _Job:
        known = self.known(task)
        search = self.make_search(self.strategy, task.workload)
        search.tell([Outcome(r.config, r.status, r.seconds, r.error, r.reason) for r in known])
        most = self.limits.per_task
        if task.share < _SMALL_SHARE and most < sys.maxsize:
            most = min(most, _FEW)
        return _Job(task, search, most - len(known))

    def _with_work(self, jobs: Sequence[_Job]) -> list[tuple[_Job, CandidateGroup]]:
        found = [(job, self._next(job)) for job in jobs]
        for job, group in found:
            if group is None:
                self.watcher.finished(job.task)
        return [(job, group) for job, group in found if group is not None]

    def _next(self, job: _Job) -> CandidateGroup | None:
        most = min(self.group, job.left, self._left())
        proposals = job.search.propose(most) if most > 0 else []
        if not proposals:
            return self._finale(job)
        job.left -= len(proposals)
        job.groups += 1
        return self._group(job, [proposal.config for proposal in proposals])

    def _left(self) -> int:
        """Return how many measurements may still be planned."""
        return sys.maxsize if self.limits.trials is None else self.limits.trials - self._planned

    def _finale(self, job: _Job) -> CandidateGroup | None:
        """Return the best few of several groups, which were not measured side by side."""
        groups, job.groups = job.groups, 0
        if groups < 2:
            return None
        ordered = sorted(self.usable(job.task), key=lambda record: record.median_seconds)[
            :_FINALISTS
        ]
        job.left = 0
        return self._group(job, [record.config for record in ordered])

    def _group(self, job: _Job, configs: Sequence[Config]) -> CandidateGroup:
        s = self.strategy
        self._planned += len(configs)
        return CandidateGroup(job.task.workload, tuple(configs), s.core, s.threads)

    def _measure(self, batch: Sequence[tuple[_Job, CandidateGroup]]) -> None:
        jobs = {group.workload: job for job, group in batch}
        started = time.monotonic()
        self.watcher.working("building")
        groups = [group for _, group in batch]
        with closing(self.runner.measure(groups, self._wait)) as results:
            for group, outcomes in results:
                # What a stop interrupted did not fail.
                if self.stopped():
                    return
                self._note(jobs[group.workload], outcomes)
                if self._over():
                    return
        self._group_seconds = (time.monotonic() - started) / len(batch)

    def _wait(self, what: str) -> bool:
        """Show what the runner waits for; return whether it should go on (a `Wait`)."""
        self.watcher.working(what)
        return not self._over()

    def _note(self, job: _Job, outcomes: Sequence[Outcome]) -> None:
        workload = job.task.workload
        records = [
            self.record(workload, outcome, EMULATED if outcome.emulated else self.context)
            for outcome in outcomes
        ]
        self.write(records)
        self.book.add(records)
        self.measured += len(outcomes)
        job.search.tell(outcomes)
        self.watcher.measured(job.task, outcomes, self.best(job.task), self.untuned(job.task))

    def record(self, workload: Workload, outcome: Outcome, context: str) -> Record:
        """Return the record of an outcome."""
        s = self.strategy
        return Record(
            workload,
            outcome.config,
            s.core.name,
            core_facts(s.core),
            s.core.target_config(s.threads),
            s.threads,
            outcome.seconds,
            s.seconds(workload, outcome.config),
            outcome.error,
            outcome.status,
            outcome.reason,
            context,
            self.model,
        )

    def _over(self) -> bool:
        end = self.limits.end
        return self.stopped() or (end is not None and time.monotonic() >= end)
