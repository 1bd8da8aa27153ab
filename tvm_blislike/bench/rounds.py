"""The measurement: rounds in which every engine takes its turn on the same CPUs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.bench.engines import ENGINES, Job
from tvm_blislike.bench.inside import layer_ms
from tvm_blislike.bench.result import (
    INTEGER_TOLERANCE,
    LEAST_OUTPUT,
    TOLERANCE,
    WEIGHTS_TOLERANCE,
    BenchResult,
    EngineResult,
)
from tvm_blislike.bench.turns import (
    Entrant,
    Progress,
    load_all,
    pinned,
    run_rounds,
    wait_until_idle,
)
from tvm_blislike.errors import UsageError, suggest
from tvm_blislike.model.agreement import max_rel_error
from tvm_blislike.model.types import FLOAT32, Types
from tvm_blislike.onnx import frontend
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.onnx.operator_sets import is_quantized
from tvm_blislike.runtime.inputs import Inputs, arranged
from tvm_blislike.runtime.runnable import require_runnable
from tvm_blislike.runtime.threads import cpus_by_use, default_threads, use_threads

if TYPE_CHECKING:
    import onnx

    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.choose.offers import Predictor
    from tvm_blislike.hardware import Core
    from tvm_blislike.records.book import RecordBook

_USUAL = tuple(name for name in ENGINES if name != "untuned")


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
    inputs: Inputs | None = None,
    cache: bool = True,
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
    inputs : mapping of str to array or sequence of array, optional
        What the model runs on; by default seeded random values, see `random_inputs`. Sizes that
        the model leaves open are those of the arrays.
    cache : bool
        Whether blislike may open what is kept of it, as for `tvm_blislike.compile`.

    Raises
    ------
    UsageError
        When an engine's name is unknown, none is left, or the model cannot be imported.
    InputError
        When `inputs` do not fit the model.
    """
    from tvm_blislike.api import resolve_core

    for name in engines:
        if name not in ENGINES:
            raise UsageError(f"unknown engine {name!r}", suggest(name, ENGINES))
    threads = threads or default_threads()
    core = resolve_core(target)
    require_runnable(core.target_config(threads))
    proto, title = frontend.read_model(model)
    values = _values(proto, shapes or {}, inputs)
    outputs = [value.name for value in proto.graph.output]
    job = Job(str(model), values, outputs, threads, core, constraints, records, learned, cache)
    # TVM's pool starts now, for all CPUs, so that later work in this process can use them too.
    use_threads(threads)
    with pinned(cpus_by_use()[:threads]):
        entrants, skipped = load_all(engines, job, progress)
        if not entrants:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
            raise UsageError(f"no engine left to measure ({reasons})")
        own = entrants.get("blislike")
        operations = _gop_by_types(own)
        measured = run_rounds(entrants, job, repeat, progress, {FLOAT32, *operations})
        compiled = own.engine.compiled if own and profile else None
        layers = compiled.profile(values) if compiled else []
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
        tolerance=_tolerance(proto, constraints),
    )


def _values(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], inputs: Inputs | None
) -> dict[str, np.ndarray]:
    """Return the arrays by name: those that were given, or random ones."""
    if isinstance(inputs, Mapping):
        shapes = {name: np.shape(array) for name, array in inputs.items()} | dict(shapes)
    specs = frontend.resolve_inputs(proto, shapes)
    if inputs is None:
        return random_inputs(specs)
    return {s.name: a for s, a in zip(specs, arranged(inputs, specs), strict=True)}


def _tolerance(proto: onnx.ModelProto, constraints: Constraints | None) -> float:
    """Return how far outputs may differ: peers keep weights whole that are rounded here."""
    if constraints is not None and (constraints.weights or constraints.precision != "fp32"):
        return WEIGHTS_TOLERANCE
    return INTEGER_TOLERANCE if is_quantized(proto) else TOLERANCE


def _result(entrant: Entrant, reference: Entrant) -> EngineResult:
    error = max_rel_error(entrant.outputs, reference.outputs, LEAST_OUTPUT)
    return EngineResult.of(entrant.samples_ms, error, entrant.load_s)


def _gop_by_types(entrant: Entrant | None) -> dict[Types, float]:
    """Return the operations of a run, 1e9, by the types of the products."""
    found: dict[Types, float] = {}
    if entrant is None or entrant.engine.compiled is None:
        return found
    for layer in entrant.engine.compiled.explain().layers:
        if layer.types:
            types = Types(*layer.types)
            found[types] = found.get(types, 0.0) + 2e-9 * layer.macs
    return found
