"""The tuned model against the untuned one, end to end: what is slower is not kept.

A layer's time in the model is not that by itself: other operands lie in the caches, its epilogue
is fused, and another layout may need a transform. So each layer that the records changed is timed
in the model, its record is dropped where it does not help, and then the whole models take turns.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tvm_blislike.constraints import Constraints
from tvm_blislike.hardware import Core
from tvm_blislike.tuning.book import RecordBook
from tvm_blislike.tuning.record import Record

if TYPE_CHECKING:
    from tvm_blislike.compiled import CompiledModel

# Two fp32 models that sum in another order.
_TOLERANCE = 1e-3
# A layer must gain this much in the model: less is noise, and then the model's choice stays.
_LEAST_GAIN = 0.005
_TURN_SECONDS = 0.15


@dataclass(frozen=True)
class Trial:
    """Two compilations to compare.

    Parameters
    ----------
    model : path or onnx.ModelProto
        The model.
    shapes : mapping
        As for `tvm_blislike.compile`.
    core, threads, constraints
        As for `Strategy`.
    records : tuple of Record
        What the tuned one follows.
    seconds : float
        Time to let the two take turns.
    """

    model: Any
    shapes: Mapping[str, Sequence[int]] | None
    core: Core
    threads: int
    constraints: Constraints
    records: tuple[Record, ...]
    seconds: float = 3.0


@dataclass(frozen=True)
class Verdict:
    """What the comparison found.

    Parameters
    ----------
    untuned_ms, tuned_ms : float
        Medians of the interleaved runs; `tuned_ms` is that of what is kept.
    dropped : mapping of str to str
        Workloads, as `explain` prints them, for which the model's choice stays, and why.
    changed : tuple of str
        Workloads that the records changed and that are kept.
    rel_error : float
        Largest difference of the outputs relative to the largest value.
    """

    untuned_ms: float
    tuned_ms: float
    dropped: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    rel_error: float = 0.0

    @property
    def gain(self) -> float:
        """How many times faster the tuned model is."""
        return self.untuned_ms / self.tuned_ms


@dataclass
class _Side:
    """One of the two models; `layers` are milliseconds by workload, "" for all other kernels."""

    compiled: CompiledModel
    configs: dict[str, dict[str, Any]]
    layers: dict[str, float] = field(default_factory=dict)


def compare(trial: Trial) -> Verdict:
    """Compile both models, drop what does not help, and return what is left; runs them here."""
    untuned = _compile(trial, ())
    tuned = _compile(trial, trial.records)
    if not _changed(untuned, tuned):
        ms = median(_take_turns([untuned], trial.seconds / 3)[0])
        return Verdict(ms, ms)
    dropped = _dropped(untuned, tuned)
    if dropped:
        kept = tuple(r for r in trial.records if str(r.workload) not in dropped)
        tuned = _compile(trial, kept)
    return _end_to_end(trial, untuned, tuned, dropped)


def _end_to_end(trial: Trial, untuned: _Side, tuned: _Side, dropped: dict[str, str]) -> Verdict:
    changed = _changed(untuned, tuned)
    error = _rel_error(untuned, tuned)
    before, after = (median(ms) for ms in _take_turns([untuned, tuned], trial.seconds))
    reason = ""
    if not error <= _TOLERANCE:
        reason = f"outputs of the tuned model differ by {error:.1e}"
    elif after > before:
        reason = f"the tuned model took {after:.3f} ms, the untuned one {before:.3f} ms"
    if reason:
        dropped = dropped | dict.fromkeys(changed, reason)
        changed, after = (), before
    return Verdict(before, after, dropped, changed, error)


def _compile(trial: Trial, records: Sequence[Record]) -> _Side:
    from tvm_blislike import api

    compiled = api.compile(
        trial.model,
        trial.core,
        trial.shapes,
        trial.threads,
        constraints=trial.constraints,
        records=RecordBook(records),
    )
    layers = [layer for layer in compiled.explain().layers if layer.microkernel]
    return _Side(compiled, {layer.workload: layer.config for layer in layers})


def _changed(one: _Side, other: _Side) -> tuple[str, ...]:
    return tuple(w for w, config in one.configs.items() if other.configs.get(w) != config)


def _dropped(untuned: _Side, tuned: _Side) -> dict[str, str]:
    """Return the changed workloads that are not faster in the model, with the reason."""
    _time_layers([untuned, tuned])
    dropped = {}
    for workload in _changed(untuned, tuned):
        before, after = (side.layers[workload] for side in (untuned, tuned))
        if after > before * (1 - _LEAST_GAIN):
            dropped[workload] = f"in the model {after:.4f} ms, before {before:.4f} ms"
    others = tuned.layers[""] - untuned.layers[""]
    moved = [w for w in _changed(untuned, tuned) if w not in dropped and _moves(w, untuned, tuned)]
    gain = sum(untuned.layers[w] - tuned.layers[w] for w in moved)
    if moved and others > gain:
        reason = f"layouts: {others:.4f} ms of transforms for {gain:.4f} ms"
        dropped |= dict.fromkeys(moved, reason)
    return dropped


def _moves(workload: str, untuned: _Side, tuned: _Side) -> bool:
    """Whether a workload got another layout."""
    before, after = untuned.configs[workload], tuned.configs[workload]
    return any(before.get(k) != after.get(k) for k in ("data_layout", "out_layout"))


def _time_layers(sides: Sequence[_Side], rounds: int = 5, repeats: int = 6) -> None:
    """Profile the models in turns; a layer's time is the median over all runs."""
    inputs = _inputs(sides[0])
    times: list[dict[str, list[float]]] = [defaultdict(list) for _ in sides]
    for _ in range(rounds):
        for side, found in zip(sides, times, strict=True):
            for layer in side.compiled.profile(inputs, repeats):
                found[layer.name].append(layer.ms)
    for side, found in zip(sides, times, strict=True):
        kinds = {x.name: x.workload for x in side.compiled.explain().layers if x.microkernel}
        side.layers = defaultdict(float)
        for name, samples in found.items():
            side.layers[kinds.get(name, "")] += median(samples)


def _take_turns(sides: Sequence[_Side], seconds: float) -> list[list[float]]:
    """Return the milliseconds of the runs of each model; the first of each turn is not counted."""
    inputs = _inputs(sides[0])
    samples: list[list[float]] = [[] for _ in sides]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 5:
        for side, found in zip(sides, samples, strict=True):
            side.compiled.run(inputs)
            turn_end = time.perf_counter() + _TURN_SECONDS
            while time.perf_counter() < turn_end:
                started = time.perf_counter()
                side.compiled.run(inputs)
                found.append((time.perf_counter() - started) * 1e3)
    return samples


def _inputs(side: _Side) -> dict[str, np.ndarray]:
    from tvm_blislike.inputs import random_inputs

    return random_inputs(side.compiled.inputs)


def _rel_error(one: _Side, other: _Side) -> float:
    from tvm_blislike.bench.result import max_rel_error

    inputs = _inputs(one)
    return max_rel_error(other.compiled.run(inputs), one.compiled.run(inputs))
