"""What `bench` measured, as data."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvm_blislike.model.report import Report
from tvm_blislike.runtime.compiled import LayerTime

# Relative to the largest output: more is no rounding.
TOLERANCE = 1e-4
# Of a quantized model: where sums differ by rounding, a step of 8 bits goes the other way here and
# there, and moves those behind it. Peers differ by 1e-2 to 2e-2 from the float simulation.
INTEGER_TOLERANCE = 5e-2
# Of weights that were rounded, those of fp8 by 3e-2 to 5e-2 each.
WEIGHTS_TOLERANCE = 1e-1
# Outputs that are smaller are compared as if they were as large as this: ONNX Runtime computes
# sigmoids to 1.2e-7 of 1, which is 2e-3 of a score of 6e-5.
LEAST_OUTPUT = 5e-3


@dataclass(frozen=True)
class EngineResult:
    """The times of one engine.

    Parameters
    ----------
    median_ms, min_ms : float
        Over all timed runs, milliseconds.
    max_rel_error : float or None
        Largest difference from the reference engine's outputs, relative to the largest value of
        that output or to `LEAST_OUTPUT`. None when a value that should be finite is not.
    load_s : float
        Seconds to load (for blislike and tvm: to compile) and run once, on the engine's CPUs.
    spread_ms : tuple of float
        10th and 90th percentile of the timed runs.
    runs : int
        Timed runs.
    """

    median_ms: float
    min_ms: float
    max_rel_error: float | None
    load_s: float
    spread_ms: tuple[float, float]
    runs: int

    @staticmethod
    def of(samples_ms: list[float], max_rel_error: float, load_s: float) -> EngineResult:
        """Summarize the timed runs."""
        low, median, high = (float(p) for p in np.percentile(samples_ms, (10, 50, 90)))
        error = max_rel_error if np.isfinite(max_rel_error) else None
        return EngineResult(median, min(samples_ms), error, load_s, (low, high), len(samples_ms))


@dataclass(frozen=True)
class BenchResult:
    """One interleaved measurement of several engines.

    Parameters
    ----------
    model : str
        File name.
    threads : int
        Threads of every engine.
    peak_gflops : float
        FMA peak of those threads: median of the measurements made between the rounds.
    engines : dict of str to EngineResult
        By name.
    reference : str
        The engine the others' outputs are compared with.
    skipped : dict of str to str
        Engines that were not measured, and why.
    core : str
        Name of the core compiled for.
    versions : dict of str to str
        Of the engines.
    machine : str
        Processor and operating system.
    rounds : int
        Rounds of the interleaving.
    peak_spread_gflops : tuple of float
        Least and greatest FMA peak measured: how much the clock moved.
    peaks_gops : dict of str to float
        Peaks of products of other types that the model's layers have, 1e9 operations a second, as
        measured in between.
    gflop : float
        Operations of one run in the layers the report covers, 1e9.
    peak_ms : float
        Time of these at the peaks of their types.
    layers : list of LayerTime
        Per-layer times of blislike when asked for.
    report : Report or None
        What was chosen for these layers.
    layer_ms : dict of str to dict of str to float
        When asked for: milliseconds of one call of each workload inside the model, by engine.
    tolerance : float
        What errors are rounding up to.
    """

    model: str
    threads: int
    peak_gflops: float
    engines: dict[str, EngineResult]
    reference: str
    skipped: dict[str, str]
    core: str
    versions: dict[str, str]
    machine: str
    rounds: int
    peak_spread_gflops: tuple[float, float]
    gflop: float = 0.0
    peak_ms: float = 0.0
    peaks_gops: dict[str, float] = field(default_factory=dict)
    layers: list[LayerTime] = field(default_factory=list)
    report: Report | None = None
    layer_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    tolerance: float = TOLERANCE

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return the result as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)


def disagreeing(result: BenchResult) -> dict[str, float | None]:
    """Return the largest relative errors, by engine, that are more than rounding or not finite."""
    errors = {name: engine.max_rel_error for name, engine in result.engines.items()}
    return {n: e for n, e in errors.items() if e is None or e > result.tolerance}
