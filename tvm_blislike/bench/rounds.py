"""The measurement: rounds in which every engine takes its turn on the same CPUs."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.bench.engines import ENGINES, Engine, EngineUnavailableError, Job, load_engine
from tvm_blislike.bench.inside import layer_ms
from tvm_blislike.bench.result import (
    INTEGER_TOLERANCE,
    LEAST_OUTPUT,
    TOLERANCE,
    BenchResult,
    EngineResult,
)
from tvm_blislike.errors import UsageError, suggest
from tvm_blislike.model.agreement import max_rel_error
from tvm_blislike.model.types import FLOAT32, Types
from tvm_blislike.onnx import frontend
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.onnx.operator_sets import is_quantized
from tvm_blislike.runtime.runnable import require_runnable
from tvm_blislike.runtime.threads import cpus_by_use, default_threads, use_threads

if TYPE_CHECKING:
    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.choose.offers import Predictor
    from tvm_blislike.hardware import Core
    from tvm_blislike.records.book import RecordBook

_USUAL = tuple(name for name in ENGINES if name != "untuned")
_MIN_ROUNDS = 10
_MIN_SECONDS = 5.0
_MAX_SECONDS = 120.0
_TURN_SECONDS = 0.15
_RUNS_PER_TURN = 20
# An engine this many times slower than the fastest gets one turn only.
_SLOW_FACTOR = 10.0

Progress = Callable[[str], None]


@dataclass
class _Entrant:
    """An engine under measurement; `usual_ms` is what one run takes, roughly."""

    engine: Engine
    load_s: float
    outputs: dict[str, np.ndarray]
    usual_ms: float
    samples_ms: list[float] = field(default_factory=list)


def bench(
    model: str | os.PathLike[str],
    engines: Sequence[str] = _USUAL,
    threads: int | None = None,
    repeat: int | None = None,
    target: str | os.PathLike[str] | Core = "native",
    shapes: Mapping[str, Sequence[int]] | None = None,
    profile: bool = False,
    constraints: Constraints | None = None,
    progress: Progress = lambda text: None,
    records: str | os.PathLike[str] | RecordBook | None = None,
    learned: str | os.PathLike[str] | Predictor | None = None,
) -> BenchResult:
    """Measure several engines on one model in one interleaved run.

    Use a fresh process for each thread count: an engine's pool, once started, stays.

    Parameters
    ----------
    model : path
        ONNX file.
    engines : sequence of str
        Names out of `ENGINES`. One that is not installed or cannot load the model is skipped.
    threads : int, optional
        Threads of each engine; by default one per usable physical core.
    repeat : int, optional
        Rounds; by default at least 10 and as many as fit in 5 seconds.
    target, shapes
        As for `tvm_blislike.compile`.
    profile : bool
        Add per-layer times of blislike and of the peers that tell them, and its report.
    constraints : Constraints, optional
        Limits of blislike's choice.
    progress : callable
        Called between the measurements with what comes next.
    records : path or RecordBook, optional
        What blislike's choice follows, as for `tvm_blislike.compile`.
    learned : path or Predictor, optional
        What corrects blislike's predictions; the same holds.

    Raises
    ------
    UsageError
        When an engine's name is unknown, none is left, or the model cannot be imported.
    """
    from tvm_blislike.api import resolve_core

    for name in engines:
        if name not in ENGINES:
            raise UsageError(f"unknown engine {name!r}", suggest(name, ENGINES))
    threads = threads or default_threads()
    core = resolve_core(target)
    require_runnable(core.target_config(threads))
    proto, title = frontend.read_model(model)
    inputs = random_inputs(frontend.resolve_inputs(proto, shapes or {}))
    outputs = [value.name for value in proto.graph.output]
    job = Job(str(model), inputs, outputs, threads, core, constraints, records, learned)
    # TVM's pool starts now, for all CPUs, so that later work in this process can use them too.
    use_threads(threads)
    with _pinned(cpus_by_use()[:threads]):
        entrants, skipped = _load_all(engines, job, progress)
        if not entrants:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
            raise UsageError(f"no engine left to measure ({reasons})")
        own = entrants.get("blislike")
        operations = _gop_by_types(own)
        measured = _run_rounds(entrants, job, repeat, progress, {FLOAT32, *operations})
        compiled = own.engine.compiled if own and profile else None
        layers = compiled.profile(inputs) if compiled else []
        inside = layer_ms(compiled, job, entrants, wait_until_idle) if compiled else {}
    peaks, medians = measured[FLOAT32], {t: median(found) for t, found in measured.items()}
    reference = "onnxruntime" if "onnxruntime" in entrants else next(iter(entrants))
    return BenchResult(
        model=title,
        threads=threads,
        peak_gflops=medians[FLOAT32],
        engines={name: _result(e, entrants[reference]) for name, e in entrants.items()},
        reference=reference,
        skipped=skipped,
        core=core.name,
        versions={name: entrant.engine.version for name, entrant in entrants.items()},
        machine=f"{platform.machine()} {platform.system()} {platform.release()}",
        rounds=len(peaks) - 1,
        peak_spread_gflops=(min(peaks), max(peaks)),
        gflop=sum(operations.values()),
        peak_ms=sum(1e3 * gop / medians[types] for types, gop in operations.items()),
        peaks_gops={str(types): gops for types, gops in medians.items() if types != FLOAT32},
        layers=layers,
        layer_ms=inside,
        report=compiled.explain() if compiled else None,
        tolerance=INTEGER_TOLERANCE if is_quantized(proto) else TOLERANCE,
    )


def _load_all(
    names: Sequence[str], job: Job, progress: Progress
) -> tuple[dict[str, _Entrant], dict[str, str]]:
    """Load every engine and run it once; return those that work and why others do not."""
    entrants: dict[str, _Entrant] = {}
    skipped: dict[str, str] = {}
    for name in names:
        progress(f"loading {name}")
        started = time.perf_counter()
        try:
            engine, outputs = load_engine(name, job)
        except EngineUnavailableError as error:
            skipped[name] = str(error)
            continue
        load_s = time.perf_counter() - started
        # The first run also allocates; only the second is typical.
        entrants[name] = _Entrant(engine, load_s, outputs, _time_ms(engine))
    return entrants, skipped


def _run_rounds(
    entrants: dict[str, _Entrant],
    job: Job,
    repeat: int | None,
    progress: Progress,
    products: Collection[Types],
) -> dict[Types, list[float]]:
    """Let the engines take turns; return the peaks of products before, between and after."""
    from tvm_blislike.probe import measure_peak_gops

    peaks: dict[Types, list[float]] = {types: [] for types in products}

    def measure_peaks() -> None:
        wait_until_idle()
        for types, found in peaks.items():
            found.append(measure_peak_gops(job.core, types, job.threads))

    fastest = min(entrant.usual_ms for entrant in entrants.values())
    started = time.perf_counter()
    measure_peaks()
    rounds = 0
    while not _enough(rounds, time.perf_counter() - started, repeat):
        rounds += 1
        progress(f"round {rounds}")
        for entrant in entrants.values():
            if entrant.usual_ms > _SLOW_FACTOR * fastest and entrant.samples_ms:
                continue
            wait_until_idle()
            entrant.samples_ms += _turn(entrant.engine, entrant.usual_ms, fastest)
        measure_peaks()
    return peaks


def _enough(rounds: int, seconds: float, repeat: int | None) -> bool:
    if repeat is not None:
        return rounds >= repeat
    return (rounds >= _MIN_ROUNDS and seconds >= _MIN_SECONDS) or (
        rounds >= 3 and seconds >= _MAX_SECONDS
    )


def _turn(engine: Engine, usual_ms: float, fastest_ms: float) -> list[float]:
    """Return the milliseconds of one turn's runs; the first run, uncounted, wakes the pool."""
    if usual_ms > _SLOW_FACTOR * fastest_ms:
        return [_time_ms(engine)]
    warm_ms = _time_ms(engine)
    runs = int(_TURN_SECONDS * 1e3 / warm_ms) if warm_ms else _RUNS_PER_TURN
    return [_time_ms(engine) for _ in range(max(1, min(_RUNS_PER_TURN, runs)))]


def _time_ms(engine: Engine) -> float:
    started = time.perf_counter()
    engine.run()
    return (time.perf_counter() - started) * 1e3


def wait_until_idle(pause_s: float = 0.02, limit_s: float = 2.0) -> None:
    """Wait until no worker of the engine that ran before spins: it would take the next one's CPU.

    How long a pool spins differs by engine, so the process's own CPU time is watched.
    """
    end = time.perf_counter() + limit_s
    busy = pause_s
    while busy > 0.1 * pause_s and time.perf_counter() < end:
        before = time.process_time()
        time.sleep(pause_s)
        busy = time.process_time() - before


@contextlib.contextmanager
def _pinned(cpus: Sequence[int]) -> Iterator[None]:
    """Keep the calling thread, and the threads it starts, on `cpus`; a no-op without support."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _result(entrant: _Entrant, reference: _Entrant) -> EngineResult:
    error = max_rel_error(entrant.outputs, reference.outputs, LEAST_OUTPUT)
    return EngineResult.of(entrant.samples_ms, error, entrant.load_s)


def _gop_by_types(entrant: _Entrant | None) -> dict[Types, float]:
    """Return the operations of a run, 1e9, by the types of the products."""
    found: dict[Types, float] = {}
    if entrant is None or entrant.engine.compiled is None:
        return found
    for layer in entrant.engine.compiled.explain().layers:
        if layer.types:
            types = Types(*layer.types)
            found[types] = found.get(types, 0.0) + 2e-9 * layer.macs
    return found
