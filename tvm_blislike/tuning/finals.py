"""The finals: the fastest candidates of each layer meet again inside the model.

A layer's time in the model is not that by itself: other weights lie in the caches and in the
pages' address buffers, and its epilogue is fused. So the model is compiled a few times, each time
with the next best candidate of every layer; the layers of all these models are timed in turns, and
each takes its fastest. Then the model made of these runs in turns with the untuned one.

Where there is no time for that, a model of each layer's fastest kernel by itself is the only rival.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.config import Config
from tvm_blislike.constraints import Constraints
from tvm_blislike.hardware import Core
from tvm_blislike.passes.reporting import shown_fields
from tvm_blislike.strategy import Strategy
from tvm_blislike.tuning.book import RecordBook, favourite
from tvm_blislike.workload import Workload

if TYPE_CHECKING:
    from tvm_blislike.compiled import CompiledModel

# Two fp32 models that sum in another order.
_TOLERANCE = 1e-3
_TURN_SECONDS = 0.15
_LEAST_SECONDS = 1.0
_ROUNDS = 6
# Compilations that follow the first one where layers meet: at least one rival and the best of all.
_COMPILATIONS = 2
_RUNS_PER_ROUND = 5
# Interference only adds time: a low quantile of many runs is steadier than their median.
_QUANTILE = 0.25


@dataclass(frozen=True)
class Contest:
    """A model and the candidates of its layers.

    Parameters
    ----------
    model : path or onnx.ModelProto
        The model.
    shapes : mapping
        As for `tvm_blislike.compile`.
    core, threads, constraints
        As for `Strategy`.
    candidates : mapping of Workload to tuple of Config
        For each layer the model's choice, then the others, the most promising first.
    favourites : mapping of Workload to Config
        What a compilation uses that follows the records so far.
    seconds : float
        Time to let the tuned and the untuned model take turns.
    end : float
        The `time.monotonic()` to be done at, if possible.
    """

    model: Any
    shapes: Mapping[str, Sequence[int]] | None
    core: Core
    threads: int
    constraints: Constraints
    candidates: Mapping[Workload, tuple[Config, ...]]
    favourites: Mapping[Workload, Config] = field(default_factory=dict)
    seconds: float = 3.0
    end: float = inf

    def left(self) -> float:
        """Return the seconds until its end."""
        return self.end - time.monotonic()


@dataclass(frozen=True)
class Verdict:
    """What the finals found.

    Parameters
    ----------
    untuned_ms, tuned_ms : float
        Of the models in turns; not those of single layers added up.
    layers : mapping of (Workload, Config) to list of float
        Seconds of one layer in the model, all repeats, for each candidate that took part; none
        where only whole models met.
    rejected : str
        Why the untuned model stays, "" when the tuned one does.
    rel_error : float
        Largest difference of the outputs relative to the largest value.
    unsettled : tuple of Workload
        Those that took no part: the layouts of their neighbours decide how they are computed.
    """

    untuned_ms: float
    tuned_ms: float
    layers: Mapping[tuple[Workload, Config], Sequence[float]] = field(default_factory=dict)
    rejected: str = ""
    rel_error: float = 0.0
    unsettled: tuple[Workload, ...] = ()

    @property
    def gain(self) -> float:
        """How many times faster the tuned model is; 1 when it is not kept."""
        return 1.0 if self.rejected else self.untuned_ms / self.tuned_ms


@dataclass
class _Entrant:
    """One compiled model; `seconds` are those of each layer, of all its runs."""

    compiled: CompiledModel
    configs: Mapping[Workload, Config]
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def decide(contest: Contest) -> Verdict:
    """Hold the finals in this process."""
    started = time.monotonic()
    untuned = _compile(contest, {})
    compiling = time.monotonic() - started
    unsettled = _unsettled(contest, untuned)
    settled = {w: c for w, c in contest.candidates.items() if w not in unsettled}
    contest = replace(contest, candidates=settled)
    untuned.configs = {w: configs[0] for w, configs in settled.items()}
    if contest.left() < _COMPILATIONS * compiling + contest.seconds:
        verdict = _compare(contest, untuned, _favourites(contest))
    else:
        verdict = _hold(contest, [untuned, *_rivals(contest)])
    return replace(verdict, unsettled=unsettled)


def _favourites(contest: Contest) -> dict[Workload, Config]:
    return {w: contest.favourites.get(w, c[0]) for w, c in contest.candidates.items()}


def _hold(contest: Contest, entrants: Sequence[_Entrant]) -> Verdict:
    """Compare the models' layers, then the untuned model with that of the fastest layers."""
    _time_layers(entrants)
    layers = _layers(entrants)
    verdict = _compare(contest, entrants[0], _best(contest, layers), entrants)
    return replace(verdict, layers=layers)


def _compare(
    contest: Contest,
    untuned: _Entrant,
    best: Mapping[Workload, Config],
    compiled: Sequence[_Entrant] = (),
) -> Verdict:
    """Let the untuned model and that of the best configurations take turns."""
    if best == untuned.configs:
        ms = _take_turns([untuned], contest.seconds / 3)[0]
        return Verdict(ms, ms)
    tuned = next((e for e in compiled if e.configs == best), None) or _compile(contest, best)
    seconds = max(_LEAST_SECONDS, min(contest.seconds, contest.left()))
    before, after = _take_turns([untuned, tuned], seconds)
    error = _rel_error(untuned, tuned)
    return Verdict(before, after, {}, _objection(before, after, error), error)


def _objection(before: float, after: float, error: float) -> str:
    if not error <= _TOLERANCE:
        return f"outputs of the tuned model differ by {error:.1e}"
    if after > before:
        return f"the tuned model took {after:.3f} ms, the untuned one {before:.3f} ms"
    return ""


def _unsettled(contest: Contest, untuned: _Entrant) -> tuple[Workload, ...]:
    """Return the workloads for which the layouts of neighbours decide, not the time alone."""
    used: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for layer in untuned.compiled.explain().layers:
        used[layer.workload].append(layer.config)
    return tuple(
        w
        for w, configs in contest.candidates.items()
        if any(config != shown_fields(configs[0]) for config in used[str(w)])
    )


def _rivals(contest: Contest) -> list[_Entrant]:
    """Compile the models with the next best candidates, while time allows."""
    rivals: list[_Entrant] = []
    started = time.monotonic()
    for place in range(1, max(map(len, contest.candidates.values()), default=1)):
        # One more compilation like those before, and the last one.
        each = (time.monotonic() - started) / max(len(rivals), 1)
        if rivals and contest.left() < _COMPILATIONS * each + contest.seconds:
            break
        configs = {w: c[place] if place < len(c) else c[0] for w, c in contest.candidates.items()}
        rivals.append(_compile(contest, configs))
    return rivals


def _compile(contest: Contest, configs: Mapping[Workload, Config]) -> _Entrant:
    """Compile the model with these configurations."""
    from tvm_blislike import api

    compiled = api.compile(
        contest.model,
        contest.core,
        contest.shapes,
        contest.threads,
        # What does not change is left to the strategy, as a compilation with records does.
        {w: c for w, c in configs.items() if c != contest.candidates[w][0]}.get,
        contest.constraints,
        RecordBook(),
    )
    return _Entrant(compiled, configs)


def _time_layers(entrants: Sequence[_Entrant]) -> None:
    """Profile the models in turns."""
    inputs = _inputs(entrants[0])
    for _ in range(_ROUNDS):
        for entrant in entrants:
            _profile(entrant, inputs)


def _profile(entrant: _Entrant, inputs: Mapping[str, np.ndarray]) -> None:
    """Add the runs of one turn: the mean time of the layers that are one workload."""
    kinds = {x.name: x.workload for x in entrant.compiled.explain().layers if x.microkernel}
    for run in entrant.compiled.profile_runs(inputs, _RUNS_PER_ROUND):
        layers: dict[str, list[float]] = defaultdict(list)
        for name, seconds in run.items():
            layers[kinds.get(name, "")] += seconds
        for workload, seconds in layers.items():
            entrant.seconds[workload].append(sum(seconds) / len(seconds))


def _layers(entrants: Sequence[_Entrant]) -> dict[tuple[Workload, Config], list[float]]:
    """Return the seconds of each layer with each candidate."""
    found: dict[tuple[Workload, Config], list[float]] = {}
    for entrant in entrants:
        for workload, config in entrant.configs.items():
            samples = entrant.seconds.get(str(workload))
            if samples:
                found.setdefault((workload, config), samples)
    return found


def _best(
    contest: Contest, layers: Mapping[tuple[Workload, Config], Sequence[float]]
) -> dict[Workload, Config]:
    """Return what a compilation that follows these times would choose."""
    strategy = Strategy(contest.core, contest.threads)
    best = {}
    for workload, configs in contest.candidates.items():
        timed = [config for config in configs if (workload, config) in layers] or [configs[0]]
        times = [layers.get((workload, config), [0.0]) for config in timed]
        predicted = [strategy.seconds(workload, config) for config in timed]
        best[workload] = timed[favourite(times, predicted)]
    return best


def _take_turns(entrants: Sequence[_Entrant], seconds: float) -> list[float]:
    """Return the milliseconds of one run of each model; the first of a turn is not counted."""
    inputs = _inputs(entrants[0])
    samples: list[list[float]] = [[] for _ in entrants]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 5:
        for entrant, found in zip(entrants, samples, strict=True):
            entrant.compiled.run(inputs)
            turn_end = time.perf_counter() + _TURN_SECONDS
            while time.perf_counter() < turn_end:
                started = time.perf_counter()
                entrant.compiled.run(inputs)
                found.append((time.perf_counter() - started) * 1e3)
    return [float(np.quantile(found, _QUANTILE)) for found in samples]


def _inputs(entrant: _Entrant) -> dict[str, np.ndarray]:
    from tvm_blislike.inputs import random_inputs

    return random_inputs(entrant.compiled.inputs)


def _rel_error(one: _Entrant, other: _Entrant) -> float:
    from tvm_blislike.bench.result import max_rel_error

    inputs = _inputs(one)
    return max_rel_error(other.compiled.run(inputs), one.compiled.run(inputs))
