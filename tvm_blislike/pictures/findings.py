"""What a page of pictures shows, as data: everything drawn or printed is computed from this."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Kernels by themselves, in the order of preference, then inside a model.
_ALONE = ("cold", "warm")
_EQUAL_PADDINGS = re.compile(r" p(\d+)(,\1){3}\b")


@dataclass(frozen=True)
class Attempt:
    """One configuration of a layer on record that computed the right result.

    Parameters
    ----------
    implementation : str
        The algorithm.
    block : str
        The micro-kernel's mr x nr.
    context : str
        One of `tvm_blislike.records.record.CONTEXTS`.
    ms, predicted_ms : float
        Median of the repeats, and what the cost model said before.
    is_untuned : bool
        Whether the cost model alone chooses it.
    """

    implementation: str
    block: str
    context: str
    ms: float
    predicted_ms: float
    is_untuned: bool = False


@dataclass(frozen=True)
class Layer:
    """One distinct workload of the model.

    Parameters
    ----------
    number : int
        From 1, in the order of `share`; the pictures name layers by it.
    workload : str
        As `explain` prints it.
    count : int
        Layers of the model that are this workload.
    share : float
        Of the predicted time of all layers, between 0 and 1.
    gflop : float
        1e9 operations of one call, two for each multiplication of the direct algorithm.
    megabytes : float
        1e6 bytes that any algorithm moves at least: operands and result, once each.
    attempts : tuple of Attempt
        What is on record.
    followed : Attempt or None
        What a compilation follows of it.
    engine_ms : mapping of str to float
        Time of one call inside the model, by engine, measured for this page.
    types : str
        Data types of its products, "" where they are fp32.
    """

    number: int
    workload: str
    count: int
    share: float
    gflop: float
    megabytes: float
    attempts: tuple[Attempt, ...] = ()
    followed: Attempt | None = None
    engine_ms: Mapping[str, float] = field(default_factory=dict)
    types: str = ""

    @property
    def title(self) -> str:
        """Number, workload, and how often it occurs; four equal paddings as one."""
        times = f" (x{self.count})" if self.count > 1 else ""
        workload = _EQUAL_PADDINGS.sub(r" p\1", self.workload)
        return f"{self.number}: {workload}{times}"

    @property
    def alone(self) -> tuple[Attempt, ...]:
        """The attempts by themselves: with cold caches, where there are none with warm ones."""
        for context in _ALONE:
            found = tuple(a for a in self.attempts if a.context == context)
            if found:
                return found
        return ()

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return 1e3 * self.gflop / self.megabytes

    @property
    def our_ms(self) -> float | None:
        """Time in this library: measured for this page, else of what is followed on record."""
        on_record = self.followed.ms if self.followed else None
        return self.engine_ms.get("blislike", on_record)

    def gflops(self, ms: float) -> float:
        """Return 1e9 operations per second of a call that takes `ms`."""
        return 1e3 * self.gflop / ms


@dataclass(frozen=True)
class Roofs:
    """What limits a kernel on the core.

    Parameters
    ----------
    peak_gflops : float
        fp32 FMA peak of all threads.
    bandwidth_gb_per_s : mapping of str to float
        Of all threads together, by level ("L1", ..., "memory").
    is_measured : bool
        Measured for this page; otherwise what the core's description and the cost model say.
    peaks_gops : mapping of str to float
        Peaks of products of other types that the layers have.
    """

    peak_gflops: float
    bandwidth_gb_per_s: Mapping[str, float]
    is_measured: bool
    peaks_gops: Mapping[str, float] = field(default_factory=dict)

    def peak_of(self, layer: Layer) -> float:
        """Return the peak that a layer is judged by, 1e9 operations per second."""
        return self.peaks_gops.get(layer.types, self.peak_gflops)


@dataclass(frozen=True)
class TuningStep:
    """The state of tuning after one measurement.

    Parameters
    ----------
    seconds : float
        Since the first measurement, pauses left out.
    total_ms : float
        Sum of the best times so far of all layers of the model that are on record.
    """

    seconds: float
    total_ms: float


@dataclass(frozen=True)
class EngineTime:
    """The whole model in one engine, in milliseconds: median, 10th and 90th percentile."""

    version: str
    ms: float
    low_ms: float
    high_ms: float


@dataclass(frozen=True)
class Findings:
    """All data of one page.

    Parameters
    ----------
    model : str
        File name.
    core, threads, machine, versions, date
        What the figures hold for; `date` is UTC, ISO 8601.
    records : str
        Name of the file of records.
    roofs : Roofs
        Of the core.
    layers : tuple of Layer
        The most expensive first.
    steps : tuple of TuningStep
        Tuning in the order of time.
    pauses : int
        How often tuning was interrupted.
    engines : mapping of str to EngineTime
        The whole model, by engine; empty when it was not measured.
    notes : tuple of str
        What else a reader must know: engines left out, assumptions.
    """

    model: str
    core: str
    threads: int
    machine: str
    versions: Mapping[str, str]
    date: str
    records: str
    roofs: Roofs
    layers: tuple[Layer, ...]
    steps: tuple[TuningStep, ...] = ()
    pauses: int = 0
    engines: Mapping[str, EngineTime] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the data as plain values."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Return the data as JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)
