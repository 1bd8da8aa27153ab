"""The rounds of a measurement: loaded engines take turns, the peaks of products in between."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_blislike.bench.engines import Engine, EngineUnavailableError, Job, load_engine
from tvm_blislike.model.types import Types

_MIN_ROUNDS = 10
_MIN_SECONDS = 5.0
_MAX_SECONDS = 120.0
_TURN_SECONDS = 0.15
_RUNS_PER_TURN = 20
# An engine this many times slower than the fastest gets one turn only.
_SLOW_FACTOR = 10.0

Progress = Callable[[str], None]


@dataclass
class Entrant:
    """An engine under measurement; `usual_ms` is what one run takes, roughly."""

    engine: Engine
    load_s: float
    outputs: dict[str, np.ndarray]
    usual_ms: float
    samples_ms: list[float] = field(default_factory=list)


def load_all(
    names: Sequence[str], job: Job, progress: Progress
) -> tuple[dict[str, Entrant], dict[str, str]]:
    """Load every engine and run it once; return those that work and why others do not."""
    entrants: dict[str, Entrant] = {}
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
        entrants[name] = Entrant(engine, load_s, outputs, _time_ms(engine))
    return entrants, skipped


def run_rounds(
    entrants: dict[str, Entrant],
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
def pinned(cpus: Sequence[int]) -> Iterator[None]:
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
