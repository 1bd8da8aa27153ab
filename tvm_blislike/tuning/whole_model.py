"""The finals: the fastest candidates of each layer meet again inside the model.

A layer's time in the model is not that by itself: other weights lie in the caches and in the
pages' address buffers, and its epilogue is fused. So the model is compiled a few times, each time
with the next best candidate of every layer; the layers of all these models are timed in turns, and
each takes its fastest. Then the model made of these runs in turns with the untuned one.

Where there is no time for that, a model of each layer's fastest kernel by itself is the only rival.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan

import numpy as np

from tvm_blislike.model.agreement import max_rel_error
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload
from tvm_blislike.passes.reporting import shown_fields
from tvm_blislike.records.book import favourite
from tvm_blislike.tuning.competitors import Entrant, Made, Subject
from tvm_blislike.tuning.measure import GivenUpError
from tvm_blislike.tuning.scratch import Scratch

# Two fp32 models that sum in another order.
_TOLERANCE = 1e-3
_TURN_SECONDS = 0.15
_LEAST_SECONDS = 1.0
_ROUNDS = 6
_RUNS_PER_ROUND = 5
# Compilations after the first one, one after the other, where layers meet: the rivals, two at a
# time, and the best of all.
_COMPILATIONS = 2
# Interference only adds time: a low quantile of many runs is steadier than their median.
_QUANTILE = 0.25


@dataclass(frozen=True)
class Contest:
    """A model and the candidates of its layers.

    Parameters
    ----------
    subject : Subject
        The model.
    candidates : mapping of Workload to tuple of Config
        For each layer the model's choice, then the others, the most promising first.
    favourites : mapping of Workload to Config
        What a compilation uses that follows the records so far.
    seconds : float
        Time to let the tuned and the untuned model take turns.
    end : float
        The `time.monotonic()` to be done at, if possible.
    stopped : callable
        Whether the user wants to stop.
    """

    subject: Subject
    candidates: Mapping[Workload, tuple[Config, ...]]
    favourites: Mapping[Workload, Config] = field(default_factory=dict)
    seconds: float = 3.0
    end: float = inf
    stopped: Callable[[], bool] = lambda: False

    def left(self) -> float:
        """Return the seconds until its end."""
        return self.end - time.monotonic()

    def untuned(self) -> dict[Workload, Config]:
        """Return the model's choices."""
        return {workload: configs[0] for workload, configs in self.candidates.items()}


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


# Starts a model of these configurations in a process of its own.
Enter = Callable[[Mapping[Workload, Config]], Entrant]


def decide(contest: Contest) -> Verdict | None:
    """Hold the finals; a model whose process dies or hangs makes the untuned one stay.

    Returns
    -------
    Verdict or None
        None when the user stopped it: what it measures counts only as a whole.
    """
    scratch, untuned = Scratch(), contest.untuned()
    with contextlib.ExitStack() as stack:
        stack.callback(scratch.close)

        def enter(configs: Mapping[Workload, Config]) -> Entrant:
            # What does not change is left to the strategy, as a compilation with records does.
            changes = {w: c for w, c in configs.items() if c != untuned[w]}
            entrant = Entrant(contest.subject, configs, changes, scratch.path, contest.stopped)
            return stack.enter_context(entrant)

        try:
            return _decide(contest, enter)
        except GivenUpError:
            return None
        except (ChildProcessError, TimeoutError) as error:
            return Verdict(nan, nan, {}, f"the tuned model cannot be run: {type(error).__name__}")


def _decide(contest: Contest, enter: Enter) -> Verdict:
    untuned = enter(contest.untuned())
    # Nobody knows yet what compiling takes: where time is short, this is the only rival.
    hurried = [] if contest.end == inf else _others([contest.favourites], untuned, enter)
    made = untuned.made()
    if contest.left() < _COMPILATIONS * made.seconds + contest.seconds:
        return _compare(contest, untuned, hurried[0] if hurried else untuned)
    unsettled = _unsettled(contest, made)
    settled = {w: c for w, c in contest.candidates.items() if w not in unsettled}
    contest = replace(contest, candidates=settled)
    untuned.configs = contest.untuned()
    verdict = _hold(contest, untuned, enter)
    return replace(verdict, unsettled=unsettled)


def _others(
    models: Sequence[Mapping[Workload, Config]], untuned: Entrant, enter: Enter
) -> list[Entrant]:
    """Enter those of the models that differ from the untuned one."""
    return [enter(configs) for configs in models if configs != untuned.configs]


def _hold(contest: Contest, untuned: Entrant, enter: Enter) -> Verdict:
    """Compare the models' layers, then the untuned model with that of the fastest layers."""
    entrants = [untuned, *_others(_rivals(contest), untuned, enter)]
    layers = _layers(entrants, _time_layers(entrants))
    best = _best(contest, layers)
    known = next((entrant for entrant in entrants if entrant.configs == best), None)
    return replace(_compare(contest, untuned, known or enter(best)), layers=layers)


def _compare(contest: Contest, untuned: Entrant, tuned: Entrant) -> Verdict:
    """Let the untuned and the tuned model take turns."""
    tuned.made()
    if tuned is untuned:
        ms = _take_turns([untuned], contest.seconds / 3)[0]
        return Verdict(ms, ms)
    seconds = max(_LEAST_SECONDS, min(contest.seconds, contest.left()))
    before, after = _take_turns([untuned, tuned], seconds)
    error = max_rel_error(tuned.outputs(), untuned.outputs())
    return Verdict(before, after, {}, _objection(before, after, error), error)


def _objection(before: float, after: float, error: float) -> str:
    if not error <= _TOLERANCE:
        return f"outputs of the tuned model differ by {error:.1e}"
    if after > before:
        return f"the tuned model took {after:.3f} ms, the untuned one {before:.3f} ms"
    return ""


def _unsettled(contest: Contest, untuned: Made) -> tuple[Workload, ...]:
    """Return the workloads for which the layouts of neighbours decide, not the time alone."""
    return tuple(
        w
        for w, configs in contest.candidates.items()
        if any(config != shown_fields(configs[0]) for config in untuned.used.get(str(w), ()))
    )


def _rivals(contest: Contest) -> list[dict[Workload, Config]]:
    """Return the models with the next best candidates."""
    places = range(1, max(map(len, contest.candidates.values()), default=1))
    every = contest.candidates.items()
    return [{w: c[place] if place < len(c) else c[0] for w, c in every} for place in places]


def _time_layers(entrants: Sequence[Entrant]) -> list[dict[str, list[float]]]:
    """Profile the models in turns; return the seconds of their layers by workload."""
    found: list[dict[str, list[float]]] = [defaultdict(list) for _ in entrants]
    for entrant in entrants:
        entrant.made()
    for _ in range(_ROUNDS):
        for entrant, seconds in zip(entrants, found, strict=True):
            for run in entrant.profile(_RUNS_PER_ROUND):
                for workload, mean in run.items():
                    seconds[workload].append(mean)
    return found


def _layers(
    entrants: Sequence[Entrant], timed: Sequence[Mapping[str, list[float]]]
) -> dict[tuple[Workload, Config], list[float]]:
    """Return the seconds of each layer with each candidate."""
    found: dict[tuple[Workload, Config], list[float]] = {}
    for entrant, seconds in zip(entrants, timed, strict=True):
        for workload, config in entrant.configs.items():
            samples = seconds.get(str(workload))
            if samples:
                found.setdefault((workload, config), samples)
    return found


def _best(
    contest: Contest, layers: Mapping[tuple[Workload, Config], Sequence[float]]
) -> dict[Workload, Config]:
    """Return what a compilation that follows these times would choose."""
    strategy = contest.subject.strategy
    best = {}
    for workload, configs in contest.candidates.items():
        timed = [config for config in configs if (workload, config) in layers] or [configs[0]]
        times = [layers.get((workload, config), [0.0]) for config in timed]
        predicted = [strategy.seconds(workload, config) for config in timed]
        best[workload] = timed[favourite(times, predicted)]
    return best


def _take_turns(entrants: Sequence[Entrant], seconds: float) -> list[float]:
    """Return the milliseconds of one run of each model."""
    samples: list[list[float]] = [[] for _ in entrants]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 5:
        for entrant, found in zip(entrants, samples, strict=True):
            found += entrant.run_for(_TURN_SECONDS)
    return [float(np.quantile(found, _QUANTILE)) for found in samples]
