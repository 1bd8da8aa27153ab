"""From a model and a file of records to the findings, without measuring anything."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.issue import macs_per_lane
from tvm_blislike.cost_models.moving import bytes_per_cycle
from tvm_blislike.cost_models.roofline import clock_hz
from tvm_blislike.errors import InputError
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import FLOAT32, Types
from tvm_blislike.model.validity import core_facts, versions
from tvm_blislike.model.workload import Workload
from tvm_blislike.onnx import frontend
from tvm_blislike.pictures.findings import Attempt, Findings, Layer, Roofs, TuningStep
from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook, fastest, warn_of
from tvm_blislike.records.record import EMULATED, Record, is_compatible, now
from tvm_blislike.tuning.tasks import Task, tasks_of

# A longer time without a measurement is a pause between two sweeps.
_PAUSE_SECONDS = 120.0


@dataclasses.dataclass(frozen=True)
class Collected:
    """Findings with what measuring them further needs.

    Parameters
    ----------
    findings : Findings
        Of the records.
    tasks : tuple of Task
        In the order of `findings.layers`.
    book : RecordBook
        The records.
    """

    findings: Findings
    tasks: tuple[Task, ...]
    book: RecordBook


def collect(
    model: str,
    core: Core,
    threads: int,
    shapes: Mapping[str, Sequence[int]] | None,
    path: str | os.PathLike[str],
) -> Collected:
    """Return what the records of a file say about a model.

    Raises
    ------
    ModelError, UnsupportedOperatorError, InputError
        See `tvm_blislike.onnx.frontend.load`.
    InputError
        When the file is missing, or has no record of a layer of this model for this core and
        number of threads; the message says which there are.
    """
    records, bad = files.read(path)
    warn_of(bad)
    strategy = Strategy(core, threads)
    tasks = tuple(tasks_of(frontend.load(model, shapes).module, strategy))
    found = findings(Path(model).name, strategy, tasks, records, str(path))
    return Collected(found, tasks, RecordBook(records))


def findings(
    model: str, strategy: Strategy, tasks: Sequence[Task], records: Sequence[Record], path: str
) -> Findings:
    """Return the findings of some records for the layers of a model.

    Raises
    ------
    InputError
        As for `collect`.
    """
    core, threads = strategy.core, strategy.threads
    ours = relevant(records, core, threads, {task.workload for task in tasks})
    if not ours:
        raise InputError(
            f"{path} has no record of {model} for {core.name}, {_threads(threads)}",
            _what_there_is(records, {task.workload for task in tasks}),
        )
    book = RecordBook(ours)
    taken, pauses = steps(ours, tasks)
    return Findings(
        model=model,
        core=core.name,
        threads=threads,
        machine=f"{platform.machine()} {platform.system()} {platform.release()}",
        versions=versions(),
        date=now(),
        records=Path(path).name,
        roofs=described_roofs(core, threads, [task.workload.types for task in tasks]),
        layers=tuple(_layer(n, task, strategy, book) for n, task in enumerate(tasks, 1)),
        steps=taken,
        pauses=pauses,
        notes=tuple(core.notes),
    )


def relevant(
    records: Sequence[Record], core: Core, threads: int, workloads: set[Workload]
) -> list[Record]:
    """Return the records that compilations of these workloads follow or followed, by date."""
    facts = core_facts(core)
    fitting = (
        r
        for r in records
        if (r.facts, r.threads) == (facts, threads) and r.workload in workloads
        if is_compatible(r) and r.context != EMULATED
    )
    return sorted(fitting, key=lambda record: record.date)


def steps(records: Sequence[Record], tasks: Sequence[Task]) -> tuple[tuple[TuningStep, ...], int]:
    """Return how the sum of the layers' best times fell, and the number of pauses.

    Parameters
    ----------
    records : sequence of Record
        By date. Only kernels by themselves count: their times inside a model are others. A layer
        begins with the time of the configuration that the cost model alone chooses (with its
        first record where that one was not measured).
    tasks : sequence of Task
        Give the number of layers of each workload.
    """
    alone = [r for r in records if r.status == "ok" and r.seconds and r.context != "model"]
    choices = {task.workload: task.choice.config for task in tasks}
    counts = {task.workload: task.count for task in tasks}
    best: dict[Workload, float] = {}
    for record in alone:
        if record.config == choices[record.workload] or record.workload not in best:
            best[record.workload] = record.median_seconds
    taken, elapsed, pauses = [], 0.0, 0
    for before, record in zip([None, *alone], alone, strict=False):
        gap = _seconds_between(before, record) if before else 0.0
        pauses += gap > _PAUSE_SECONDS
        elapsed += gap if gap <= _PAUSE_SECONDS else 0.0
        if not taken:
            taken.append(TuningStep(0.0, _total_ms(best, counts)))
        best[record.workload] = min(best[record.workload], record.median_seconds)
        taken.append(TuningStep(elapsed, _total_ms(best, counts)))
    return tuple(taken), pauses


def described_roofs(core: Core, threads: int, products: Collection[Types] = ()) -> Roofs:
    """Return what the core's description and the cost model say about its limits.

    Parameters
    ----------
    core, threads
        Of the compilation.
    products : collection of Types
        Of the layers.
    """
    used, hertz = min(threads, core.cores), clock_hz(core)
    levels = {f"L{cache.level}": cache.level for cache in core.caches} | {"memory": 0}
    starts = 2e-9 * core.fma_per_cycle * hertz * used
    return Roofs(
        starts * core.lanes(),
        {n: 1e-9 * bytes_per_cycle(core, at, used) * hertz * used for n, at in levels.items()},
        False,
        {
            str(types): starts * core.lanes(types.acc) * macs_per_lane(core, types)
            for types in products
            if types != FLOAT32
        },
    )


def _layer(number: int, task: Task, strategy: Strategy, book: RecordBook) -> Layer:
    workload = task.workload
    usable = book.usable(workload, strategy.core, strategy.threads)
    choice = task.choice.config
    predicted = partial(strategy.seconds, workload)
    return Layer(
        number=number,
        workload=str(workload),
        count=task.count,
        share=task.share,
        gflop=2e-9 * workload.macs,
        megabytes=1e-6 * sum(workload.bytes_moved),
        attempts=tuple(_attempt(record, choice) for record in usable),
        followed=_attempt(fastest(usable, predicted), choice) if usable else None,
        types="" if workload.types == FLOAT32 else str(workload.types),
    )


def _attempt(record: Record, choice: object) -> Attempt:
    config = record.config
    return Attempt(
        config.implementation,
        f"{config.mr}x{config.nr}",
        record.context,
        1e3 * record.median_seconds,
        1e3 * record.predicted_seconds,
        config == choice,
    )


def _what_there_is(records: Sequence[Record], workloads: set[Workload]) -> str:
    """Return which cores, thread counts and models the records are of."""
    if not records:
        return "the file has no records: `tvm-blislike tune` writes them"
    if not any(map(is_compatible, records)):
        return "its records are of other versions of this package or of TVM: tune again"
    fitting = [r for r in records if r.workload in workloads and is_compatible(r)]
    if fitting and all(r.context == EMULATED for r in fitting):
        return "its records are of emulated boards, whose times mean nothing: tune on a real one"
    if not fitting:
        models = ", ".join(sorted({record.model or "unnamed" for record in records}))
        return f"its records are of other models ({models}): tune this one"
    # Cores of one name may differ in their facts.
    counts = Counter((r.core, r.facts, r.threads) for r in fitting)
    listed = ", ".join(f"{core}, {_threads(n)} ({c})" for (core, _, n), c in counts.items())
    return f"of this model's layers it has records for: {listed}; see --target and --threads"


def _total_ms(best: Mapping[Workload, float], counts: Mapping[Workload, int]) -> float:
    return 1e3 * sum(counts[workload] * seconds for workload, seconds in best.items())


def _seconds_between(before: Record, after: Record) -> float:
    dates = (datetime.fromisoformat(record.date) for record in (before, after))
    first, second = dates
    return (second - first).total_seconds()


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
