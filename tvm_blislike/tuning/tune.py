"""`tvm_blislike.tune`: few measurements for each layer of a model, kept as records."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tvm_blislike.api import resolve_core, resolve_predictor
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.offers import Predictor
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.onnx import frontend
from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook
from tvm_blislike.records.record import EMULATED
from tvm_blislike.records.store import opened
from tvm_blislike.runtime.runnable import require_runnable
from tvm_blislike.runtime.threads import default_threads
from tvm_blislike.tuning import learn
from tvm_blislike.tuning.budget import limits_for
from tvm_blislike.tuning.competitors import Subject
from tvm_blislike.tuning.interrupt import Interrupt
from tvm_blislike.tuning.measure import LocalRunner, Runner
from tvm_blislike.tuning.progress import Progress
from tvm_blislike.tuning.remote import RemoteRunner
from tvm_blislike.tuning.result import TuneResult, rejections, tuned_layer
from tvm_blislike.tuning.searches import LEARNED, search_named
from tvm_blislike.tuning.shard import Shard
from tvm_blislike.tuning.sweep import GROUPS_PER_CPU, Sweep
from tvm_blislike.tuning.tasks import Task, tasks_of
from tvm_blislike.tuning.timing import timing_for
from tvm_blislike.tuning.verdicts import judge
from tvm_blislike.tuning.whole_model import Verdict

if TYPE_CHECKING:
    import onnx


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
    shard: str | None = None,
    executor: Executor | None = None,
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
        File of records; by default the user's own. A folder or a URL is a store that machines
        share: what is in it is not measured again, what is measured is sent to it.
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
    shard : str, optional
        "I/N": measure the layers of part I, from 0, of N; `trials` counts for all parts. The same
        model, target and N divide the same way everywhere. The model is not compared end to end: a
        last sweep without `shard` over the merged records does that.
    executor : Executor, optional
        Builds the candidates, such as a ProcessPoolExecutor or Dask's `Client.get_executor()`; by
        default processes of this machine do. Its workers need this package and can import
        algorithms of your own; they need no C compiler.

    Returns
    -------
    TuneResult
        The layers, and the tuned model against the untuned one.

    Raises
    ------
    ModelError, UnsupportedOperatorError, InputError
        See `tvm_blislike.onnx.frontend.load`.
    TargetError
        When `target` is unknown, or is not this machine's and there is no `runner`.
    OutputError
        When records cannot be written; those written before stay.
    ToolchainError
        When there is no C compiler to link candidates with.
    UsageError
        When `search` or `cache` is unknown, one of `rpc` and `key` is missing, there is no such
        `shard`, or there are too few records to learn from.
    """
    started = time.monotonic()
    part = Shard.parse(shard) if shard is not None else Shard(0, 1)
    core = resolve_core(target)
    if (rpc is None) != (key is None):
        raise UsageError("rpc and key belong together")
    if emulated and rpc is None:
        raise UsageError("only boards are emulated: name them by rpc and key")
    here = runner is None and rpc is None
    timing = timing_for(core, cache, here)
    threads = threads or (default_threads() if here else core.cores)
    if here:
        require_runnable(core.target_config(threads))
    kept = opened(records)
    kept.get(core, threads)
    path = kept.path
    predictor = _predictor(search, learned, path, core, threads)
    make_search = search_named(search, predictor, seed)
    strategy = Strategy(core, threads, None, constraints or Constraints())
    # Its processes start while the model is read.
    used = runner or (LocalRunner(core, threads, timing, executor=executor) if here else None)
    try:
        loaded = frontend.load(model, shapes)
        shapes = {spec.name: spec.shape for spec in loaded.inputs}
        every = tasks_of(loaded.module, strategy)
        tasks, compares = part.of(every), here and shard is None
        limits = limits_for(search, len(every), trials, budget, started, finals=compares)
        if used is None:
            used = RemoteRunner(
                core, threads, timing, rpc or "", key or "", emulated=emulated, executor=executor
            )
        sweep = Sweep(
            strategy,
            make_search,
            used,
            RecordBook.open(path) if path.exists() else RecordBook(),
            kept.put,
            progress or Progress(Console(quiet=True)),
            replace(limits, trials=part.part(trials)),
            context=EMULATED if used.emulated else cache,
            model=_name(model),
            batch=GROUPS_PER_CPU * len(usable_cpus()),
        )
        subject = Subject(model, shapes, strategy) if compares else None
        end = None if budget is None else started + budget
        verdict, interrupted = _sweep(sweep, tasks, subject, end)
    finally:
        if runner is None and used is not None:
            used.close()
        kept.send()
    return TuneResult(
        path,
        tuple(tuned_layer(sweep, task) for task in tasks),
        verdict,
        sweep.measured,
        tuple(rejections(sweep, tasks)),
        time.monotonic() - started,
        interrupted,
        used.emulated,
        shard or "",
    )


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
        verdict = judge(sweep, tasks, subject, end)
        return verdict, verdict is None


def _name(model: object) -> str:
    return Path(model).stem if isinstance(model, str | os.PathLike) else "onnx.ModelProto"
