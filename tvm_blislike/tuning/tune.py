"""`tvm_blislike.tune`: few measurements for each layer of a model, kept as records."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tvm_blislike import frontend
from tvm_blislike.api import resolve_core, resolve_predictor
from tvm_blislike.config import Config
from tvm_blislike.constraints import Constraints
from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.offers import Predictor
from tvm_blislike.runnable import require_runnable
from tvm_blislike.strategy import Strategy
from tvm_blislike.threads import available_cpus, default_threads
from tvm_blislike.tuning import files, learn
from tvm_blislike.tuning.book import RecordBook, fastest
from tvm_blislike.tuning.entrants import Subject
from tvm_blislike.tuning.finals import Contest, Verdict, decide
from tvm_blislike.tuning.interrupt import Interrupt
from tvm_blislike.tuning.kernels import Plan
from tvm_blislike.tuning.measure import LocalRunner, Outcome, Runner
from tvm_blislike.tuning.plans import plan_for
from tvm_blislike.tuning.progress import Progress
from tvm_blislike.tuning.record import EMULATED, Record, now
from tvm_blislike.tuning.remote import RemoteRunner
from tvm_blislike.tuning.searches import IN_WHOLE_SPACE, LEARNED, search_named
from tvm_blislike.tuning.sweep import BUNDLES_PER_CPU, Limits, Sweep
from tvm_blislike.tuning.tasks import Task, tasks_of
from tvm_blislike.validity import versions

if TYPE_CHECKING:
    import onnx

PER_TASK = 8
# The model's choice and three favourites of the learned model.
_LEARNED_PER_TASK = 4
# Of the searches in the whole space, unless there is a limit for all layers.
PER_TASK_IN_SPACE = 64
_LEAST_PER_TASK = 2
# Candidates of a layer that meet the model's choice inside the model, and how much slower by
# themselves they may be.
_FINALISTS = 2
_WORTH = 1.02
# Share of a budget, and seconds at most, for the finals.
_FINALS_SHARE = 0.5
_FINALS_SECONDS = 60.0


@dataclass(frozen=True)
class TunedLayer:
    """What tuning found for one distinct workload.

    Parameters
    ----------
    workload : str
        As `explain` prints it.
    count : int
        Layers of the model that are this workload.
    implementation : str
        Of the configuration that will be used.
    block : str
        Its mr x nr.
    measured_ms, untuned_ms : float or None
        Of the configuration that will be used, and of the model's choice.
    predicted_ms : float
        Of the configuration that will be used.
    measured : int
        Configurations on record.
    context : str
        Where they were measured: "model" when inside the model, else by themselves; "emulated"
        times mean nothing.
    """

    workload: str
    count: int
    implementation: str
    block: str
    measured_ms: float | None
    untuned_ms: float | None
    predicted_ms: float
    measured: int
    context: str = ""


@dataclass(frozen=True)
class TuneResult:
    """What a sweep did.

    Parameters
    ----------
    records : Path
        The file of records.
    layers : tuple of TunedLayer
        The most expensive first.
    verdict : Verdict or None
        The comparison end to end; None when the sweep was interrupted.
    measured : int
        Configurations measured in this sweep.
    rejected : tuple of str
        Those that were wrong, crashed or hung, with the reason.
    seconds : float
        Wall time.
    interrupted : bool
        Whether the user ended it.
    emulated : bool
        Whether processors were emulated: the times mean nothing, and compilations ignore them.
    """

    records: Path
    layers: tuple[TunedLayer, ...]
    verdict: Verdict | None
    measured: int
    rejected: tuple[str, ...]
    seconds: float
    interrupted: bool = False
    emulated: bool = False


def tune(
    model: str | os.PathLike[str] | onnx.ModelProto,
    target: str | os.PathLike[str] | Core = "native",
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int | None = None,
    budget: float | None = None,
    trials: int | None = None,
    records: str | os.PathLike[str] | None = None,
    search: str = "model",
    constraints: Constraints | None = None,
    cache: str = "cold",
    progress: Progress | None = None,
    rpc: str | None = None,
    key: str | None = None,
    runner: Runner | None = None,
    learned: str | os.PathLike[str] | Predictor | None = None,
    emulated: bool = False,
    seed: int = 0,
) -> TuneResult:
    """Measure a few configurations of each layer of a model and keep them as records.

    What is on record already is not measured again, so an interrupted sweep can be resumed.

    Parameters
    ----------
    model, target, shapes, threads
        As for `tvm_blislike.compile`.
    budget : float, optional
        Seconds at most, including the comparison at the end.
    trials : int, optional
        Measurements at most. Without `trials` and `budget`, 8 per distinct workload, 4 with
        "learned", 64 with "random", "genetic" and "narrowing"; with "exhaustive" there is no limit.
    records : path, optional
        File of records; by default the user's own.
    search : str
        "model" follows the analytical model, "exhaustive" measures every algorithm and mr x nr,
        "learned" follows `learned`; "random", "genetic" and "narrowing" search in all that the
        implementations can do.
    constraints : Constraints, optional
        Limits of what is measured.
    cache : str
        "cold": before each repeat the private caches are emptied and weights leave the shared
        ones, as the other layers of a model do it; "warm": nothing is emptied.
    progress : Progress, optional
        A live display.
    rpc, key : str, optional
        "HOST:PORT" of a tracker of TVM's RPC, and what the boards to measure on are registered
        under. The model is then not compared end to end.
    runner : Runner, optional
        Where to measure instead; the same holds.
    learned : path or Predictor, optional
        What `records train` wrote; by default the learned search trains on `records`.
    emulated : bool
        Says that the boards are emulated, where that cannot be recognized: their times are kept
        under a label and not followed.
    seed : int
        Of the searches that draw random numbers.

    Returns
    -------
    TuneResult
        The layers, and the tuned model against the untuned one.

    Raises
    ------
    ModelError, UnsupportedOperatorError, InputError
        See `tvm_blislike.frontend.load`.
    TargetError
        When `target` is unknown, or is not this machine's and there is no `runner`.
    OutputError
        When records cannot be written; those written before stay.
    ToolchainError
        When there is no C compiler to link candidates with.
    UsageError
        When `search` or `cache` is unknown, one of `rpc` and `key` is missing, or there are too
        few records to learn from.
    """
    started = time.monotonic()
    core = resolve_core(target)
    if (rpc is None) != (key is None):
        raise UsageError("rpc and key belong together")
    if emulated and rpc is None:
        raise UsageError("only boards are emulated: name them by rpc and key")
    here = runner is None and rpc is None
    plan = plan_for(core, cache, here)
    threads = threads or (default_threads() if here else core.cores)
    if here:
        require_runnable(core.target_config(threads))
    path = Path(records) if records is not None else files.default_path()
    predictor = _predictor(search, learned, path, core, threads)
    make_search = search_named(search, predictor, seed)
    strategy = Strategy(core, threads, None, constraints or Constraints())
    tasks = tasks_of(frontend.load(model, shapes).module, strategy)
    book = RecordBook.open(path) if path.exists() else RecordBook()
    used = runner or _runner(core, threads, plan, rpc, key, emulated)
    sweep = Sweep(
        strategy,
        make_search,
        used,
        book,
        partial(files.append, path),
        progress or Progress(Console(quiet=True)),
        _limits(started, budget, trials, search, here),
        context=EMULATED if used.emulated else cache,
        model=_name(model),
        batch=BUNDLES_PER_CPU * len(available_cpus()),
    )
    if trials is not None:
        # Rather a few candidates of every layer than all of the first layers.
        fair = max(_LEAST_PER_TASK, ceil(trials / max(len(tasks), 1)))
        sweep.limits = replace(sweep.limits, per_task=min(sweep.limits.per_task, fair))
    try:
        subject = Subject(model, shapes, strategy) if here else None
        end = None if budget is None else started + budget
        verdict, interrupted = _sweep(sweep, tasks, subject, end)
    finally:
        if runner is None:
            used.close()
    layers = tuple(_layer(sweep, task) for task in tasks)
    seconds = time.monotonic() - started
    rejected = tuple(_rejected(sweep, tasks))
    return TuneResult(
        path, layers, verdict, sweep.measured, rejected, seconds, interrupted, used.emulated
    )


def _runner(
    core: Core, threads: int, plan: Plan, rpc: str | None, key: str | None, emulated: bool
) -> Runner:
    if rpc is None or key is None:
        return LocalRunner(core, threads, plan)
    return RemoteRunner(core, threads, plan, rpc, key, emulated=emulated)


def _predictor(
    search: str,
    learned: str | os.PathLike[str] | Predictor | None,
    records: Path,
    core: Core,
    threads: int,
) -> Predictor | None:
    """Return the predictor that was named, or for the learned search one of the records."""
    if learned is not None or search != LEARNED:
        return resolve_predictor(learned, core, threads)
    model = learn.train(files.read(records)[0] if records.exists() else [], core)
    model.facts.require(core, threads)
    return model


def _limits(
    started: float, budget: float | None, trials: int | None, search: str, here: bool
) -> Limits:
    per_task = {"model": PER_TASK, LEARNED: _LEARNED_PER_TASK}.get(search, sys.maxsize)
    if search in IN_WHOLE_SPACE and budget is None and trials is None:
        per_task = PER_TASK_IN_SPACE
    if budget is None:
        return Limits(per_task, trials)
    reserve = min(_FINALS_SHARE * budget, _FINALS_SECONDS)
    # What was measured at different times meets again: inside the model, or else by itself.
    last = None if here else started + budget
    return Limits(per_task, trials, started + budget - reserve, last)


def _sweep(
    sweep: Sweep, tasks: Sequence[Task], subject: Subject | None, end: float | None
) -> tuple[Verdict | None, bool]:
    """Run a sweep and judge what it found; return the verdict and whether the user ended it."""
    watcher = sweep.watcher
    watcher.expect(len(tasks))
    with watcher, Interrupt(lambda: watcher.working("stopping")) as interrupt:
        sweep.stopped = interrupt.asked
        sweep.run(tasks)
        if subject is None or interrupt.asked():
            return None, interrupt.asked()
        watcher.working("comparing the tuned model with the untuned one")
        verdict = _judge(sweep, tasks, subject, end)
        return verdict, verdict is None


def _judge(
    sweep: Sweep, tasks: Sequence[Task], subject: Subject, end: float | None
) -> Verdict | None:
    """Hold the finals and write down what they found; None when the user stopped them."""
    s = sweep.strategy
    followed = s.following(sweep.book)
    contest = Contest(
        subject,
        {task.workload: _finalists(sweep, task) for task in tasks},
        {
            task.workload: followed.choose(task.workload).config or task.choice.config
            for task in tasks
        },
        end=inf if end is None else end,
        stopped=sweep.stopped,
    )
    verdict = decide(contest)
    if verdict is None:
        return None
    of = {task.workload: task for task in tasks}
    records = [
        _in_model(sweep, of[workload], config, tuple(seconds))
        for (workload, config), seconds in verdict.layers.items()
    ]
    for workload in verdict.unsettled:
        records += _dropped(sweep, of[workload], "the layouts of its neighbours decide")
    if verdict.rejected:
        records = [r for task in tasks for r in _dropped(sweep, task, verdict.rejected)]
    sweep.write(records)
    sweep.book.add(records)
    return verdict


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


def _layer(sweep: Sweep, task: Task) -> TunedLayer:
    s = sweep.strategy
    usable = sweep.book.usable(task.workload, s.core, s.threads)
    if not usable and sweep.context == EMULATED:
        usable = [r for r in sweep.usable(task) if r.config == task.choice.config]
    of = task.workload
    best = fastest(usable, partial(s.seconds, of), partial(s.moving, of)) if usable else None
    config = best.config if best else task.choice.config
    untuned = [r for r in usable if best and r.context == best.context]
    untuned = [r for r in untuned if r.config == task.choice.config]
    return TunedLayer(
        str(task.workload),
        task.count,
        config.implementation,
        f"{config.mr}x{config.nr}",
        best.median_seconds * 1e3 if best else None,
        untuned[0].median_seconds * 1e3 if untuned else None,
        s.seconds(task.workload, config) * 1e3,
        len(_timed(sweep, task)),
        best.context if best else "",
    )


def _timed(sweep: Sweep, task: Task) -> list[Record]:
    """Return the records of a task's kernels by themselves, also of those that were dropped."""
    return [r for r in sweep.known(task) if r.seconds and r.status in ("ok", "dropped")]


def _rejected(sweep: Sweep, tasks: Sequence[Task]) -> Iterator[str]:
    s = sweep.strategy
    for task in tasks:
        for record in sweep.book.of(task.workload, s.core, s.threads):
            if record.status in ("wrong", "failed"):
                c = record.config
                kernel = f"{c.implementation} {c.mr}x{c.nr}"
                yield f"{task.workload}: {kernel} {record.status}: {record.reason}"


def _name(model: object) -> str:
    return Path(model).stem if isinstance(model, str | os.PathLike) else "onnx.ModelProto"
