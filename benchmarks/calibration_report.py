"""The tables of `calibration.py`: how predicted times compare with measured ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

import numpy as np

from tvm_blislike.cost_models.roofline import kernel_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.registry import Implementation
from tvm_blislike.records.record import Record
from tvm_blislike.schedules import get_implementation

WORST = 12


@dataclass(frozen=True)
class Sample:
    """A candidate with its predicted and measured seconds."""

    record: Record
    predicted: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted / self.record.median_seconds


def samples(records: Iterable[Record], core: Core) -> list[Sample]:
    """Return the candidates with what the models predict for a description of the core."""
    return [
        Sample(r, kernel_seconds(ours(r).estimate(r.workload, r.config, core, r.threads), core))
        for r in records
        if r.status == "ok" and not ours(r).applies(r.workload, core)
    ]


def ours(record: Record) -> Implementation:
    """Return the implementation of a record."""
    return get_implementation(record.config.implementation)


def grouped(found: Iterable[Sample], key: Callable[[Sample], str]) -> dict[str, list[Sample]]:
    """Return samples by a key, in its order."""
    groups: dict[str, list[Sample]] = defaultdict(list)
    for sample in found:
        groups[key(sample)].append(sample)
    return dict(sorted(groups.items()))


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the correlation of the ranks; no value occurs twice but by chance."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def of_layers(found: Sequence[Sample], value: Callable[[list[Sample]], float]) -> list[float]:
    """Return a figure of each layer with three candidates or more."""
    layers = grouped(found, lambda s: str(s.record.workload)).values()
    return [value(layer) for layer in layers if len(layer) > 2]


def rank(layer: list[Sample]) -> float:
    """Return Spearman's correlation over the candidates of a layer."""
    return spearman([s.predicted for s in layer], [s.record.median_seconds for s in layer])


def repeated(layer: list[Sample]) -> float:
    """Return the same of every other repeat and those between: no model can know more."""
    halves = [[median(s.record.seconds[first::2]) for s in layer] for first in (0, 1)]
    return spearman(*halves)


def choice(layer: list[Sample]) -> float:
    """Return the fastest candidate's time over the time of the one that the model prefers."""
    best = min(s.record.median_seconds for s in layer)
    return best / min(layer, key=lambda s: s.predicted).record.median_seconds


def row(name: str, found: Sequence[Sample]) -> str:
    """Return one line of the table."""
    logs = [math.log(s.ratio) for s in found]
    ranks, most, choices = (of_layers(found, value) for value in (rank, repeated, choice))
    ranked = " ".join(f"{fmean(v):6.3f}" if v else f"{'-':>6s}" for v in (ranks, most, choices))
    return (
        f"  {name:22s} {len(found):4d} {math.exp(fmean(logs)):7.3f} {math.exp(pstdev(logs)):7.2f} "
        f"{ranked}"
    )


def table(title: str, found: Sequence[Sample]) -> Iterator[str]:
    """Yield the lines of a description of the core: by algorithm, then the worst candidates."""
    yield f"{title}\n  {'algorithm':22s}    n   ratio  spread   rank   most choice"
    for name, group in grouped(found, lambda s: s.record.config.implementation).items():
        yield row(name, group)
    yield row("all", found)
    worst = sorted(found, key=lambda s: -abs(math.log(s.ratio)))[:WORST]
    for s in worst:
        c, milliseconds = s.record.config, s.record.median_seconds * 1e3
        what = f"{c.implementation} {c.mr}x{c.nr} {c.loop_order}"
        yield f"    {s.ratio:6.2f} {milliseconds:9.3f} ms  {what:36s} {s.record.workload}"
