"""What a page measures: the whole model and its layers, by `bench`, and the roofs, by `probe`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from tvm_blislike.bench import BenchResult, bench
from tvm_blislike.bench.engines import OWN
from tvm_blislike.bench.result import disagreeing
from tvm_blislike.hardware import Core
from tvm_blislike.pictures.collect import Collected
from tvm_blislike.pictures.findings import EngineTime, Findings, Layer, Roofs
from tvm_blislike.probe import ProbeResult, probe

Progress = Callable[[str], None]


def measured(
    collected: Collected,
    model: str,
    core: Core,
    threads: int,
    shapes: Mapping[str, Sequence[int]] | None,
    engines: Sequence[str],
    progress: Progress,
) -> Findings:
    """Return the findings with everything that this machine can measure.

    Parameters
    ----------
    collected : Collected
        Of the records, which this library follows.
    model, core, threads, shapes
        As for `tvm_blislike.bench.bench`.
    engines : sequence of str
        Peers, out of `tvm_blislike.bench.ENGINES`.
    progress : callable
        Called between the measurements with what comes next.

    Raises
    ------
    UsageError
        When an engine's name is unknown.
    TargetError
        When code for the core cannot run here.
    """
    peers = [name for name in engines if name not in OWN]
    progress("whole model")
    whole = bench(
        model, (*OWN, *peers), threads, None, core, shapes, True, None, progress, collected.book
    )
    progress("probe")
    probed = probe(core)
    found, wrong = collected.findings, disagreeing(whole)
    layers = (
        dataclasses.replace(layer, engine_ms=_times(layer, whole, wrong)) for layer in found.layers
    )
    return dataclasses.replace(
        found,
        roofs=measured_roofs(probed, threads, whole.peak_gflops, whole.peaks_gops),
        layers=tuple(layers),
        engines={name: _engine_time(whole, name) for name in whole.engines},
        versions={**found.versions, **{n: whole.versions[n] for n in whole.engines if n in peers}},
        notes=(*probed.to_core().notes, *_complaints(whole)),
    )


def _times(layer: Layer, whole: BenchResult, wrong: Collection[str]) -> dict[str, float]:
    """Return a layer's milliseconds by engine; what computes something else has no time."""
    return {
        name: times[layer.workload]
        for name, times in whole.layer_ms.items()
        if layer.workload in times and name not in wrong
    }


def measured_roofs(
    probed: ProbeResult,
    threads: int,
    peak_gflops: float,
    peaks_gops: Mapping[str, float] | None = None,
) -> Roofs:
    """Return the limits of `threads` threads.

    Parameters
    ----------
    probed : ProbeResult
        Bandwidths of one core, which grow with the threads, and of those that share a level.
    threads : int
        Threads.
    peak_gflops : float
        FMA peak of that many threads.
    peaks_gops : mapping of str to float, optional
        Peaks of products of other types.
    """
    speeds = {level: speed * threads for level, speed in probed.bandwidth_gb_per_s.items()}
    if threads > 1:
        for level, together in probed.bandwidth_gb_per_s_all.items():
            speeds[level] = min(speeds[level], together)
    return Roofs(peak_gflops, speeds, True, peaks_gops or {})


def _complaints(whole: BenchResult) -> list[str]:
    """Return which engines are left out and why, and whose results differ."""
    wrong = disagreeing(whole)
    differ = [f"{name}: other results than {whole.reference}" for name in wrong]
    return [*differ, *(f"{name}: {reason}" for name, reason in whole.skipped.items())]


def _engine_time(whole: BenchResult, name: str) -> EngineTime:
    result = whole.engines[name]
    return EngineTime(whole.versions[name], result.median_ms, *result.spread_ms)
