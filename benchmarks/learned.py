"""The learned model on models that it has not seen, against the analytical model alone.

    python benchmarks/learned.py records.jsonl
    python benchmarks/spread.py wide.jsonl        # good and bad candidates of eight layers each
    python benchmarks/learned.py wide.jsonl --also tuned.jsonl -o benchmarks/results/learned.txt

Each model of the records is left out in turn: the learned model is trained on the records of all
others, without any of a workload that the one left out has too, and orders the candidates of each
of its layers that took turns when they were measured, each kernel by itself.

rank     Spearman's correlation of predicted and measured times, mean over the layers with at least
         4 candidates, then the median; "halves" is that of the even with the odd repeats of the
         measurements
first    measured time of the first choice, sum over the layers relative to the fastest candidates;
of 3     the same for the fastest of the first three choices

A workload that several models have belongs to the one that was measured first.
"""

from __future__ import annotations

import argparse
import platform
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np
import xgboost
from scipy.stats import spearmanr

from tvm_blislike.api import resolve_core
from tvm_blislike.cost_models.learned import Sample
from tvm_blislike.files import write_text
from tvm_blislike.hardware import Core
from tvm_blislike.probe import measure_peak_gflops
from tvm_blislike.records import files
from tvm_blislike.records.record import Record
from tvm_blislike.tuning import learn

_LEAST_TO_RANK = 4
_PREDICTORS = ("analytical", "learned")


@dataclass(frozen=True)
class Layer:
    """The measured candidates of one layer.

    Parameters
    ----------
    model : str
        The model that it is of.
    records : tuple of Record
        One per candidate.
    candidates : tuple of Sample
        The same for the predictors.
    predicted : dict of str to array
        Seconds of each candidate, by predictor.
    """

    model: str
    records: tuple[Record, ...]
    candidates: tuple[Sample, ...]
    predicted: dict[str, np.ndarray]

    @property
    def measured(self) -> np.ndarray:
        """Median seconds of each candidate."""
        return np.array([record.median_seconds for record in self.records])

    def rank(self, predictor: str) -> float:
        """Return the rank correlation of a predictor."""
        return float(spearmanr(self.predicted[predictor], self.measured).statistic)

    def halves(self) -> float:
        """Return the rank correlation of the measurements with themselves."""
        even, odd = (
            [median(record.seconds[start::2]) for record in self.records] for start in (0, 1)
        )
        return float(spearmanr(even, odd).statistic)

    def best_of(self, predictor: str, count: int) -> float:
        """Return the time of the fastest of a predictor's first choices, in seconds."""
        order = np.argsort(self.predicted[predictor], kind="stable")
        return float(self.measured[order[:count]].min())


def layers_of(records: Sequence[Record], also: Sequence[Record], core: Core) -> Iterator[Layer]:
    """Yield the layers of each model of `records` with what was predicted without them."""
    groups = defaultdict(list)
    alone = [record for record in records if record.context == "cold"]
    for record, number in zip(alone, learn.groups_of(alone), strict=True):
        groups[record.model, number].append(record)
    for name in sorted({name for name, _ in groups}):
        pages = [page for (model, _), page in groups.items() if model == name and len(page) > 1]
        model = learn.train(_without([*records, *also], name), core)
        for page in pages:
            candidates = tuple(learn.candidate_of(record, core) for record in page)
            analytical = np.array([candidate.seconds for candidate in candidates])
            predicted = {"analytical": analytical, "learned": model.seconds(candidates)}
            yield Layer(name, tuple(page), candidates, predicted)


def _without(records: Sequence[Record], name: str) -> list[Record]:
    """Return the records of workloads that a model does not have."""
    held_out = {record.workload for record in records if record.model == name}
    return [record for record in records if record.workload not in held_out]


def row(title: str, layers: Sequence[Layer], figures: Sequence[float]) -> str:
    """Return one line of the table."""
    candidates = sum(len(layer.records) for layer in layers)
    cells = " ".join(f"{figure:6.3f}" for figure in figures)
    return f"{title:18s} {len(layers):6d} {candidates:10d} {cells}"


def figures(layers: Sequence[Layer]) -> list[float]:
    """Return "halves", then mean and median rank, first and of 3 of each predictor."""
    ranked = [layer for layer in layers if len(layer.records) >= _LEAST_TO_RANK]
    best = sum(layer.measured.min() for layer in layers)
    found = [float(np.nanmean([layer.halves() for layer in ranked]))]
    for predictor in _PREDICTORS:
        # Equal predictions have no order: not a number.
        ranks = [layer.rank(predictor) for layer in ranked]
        found += [float(np.nanmean(ranks)), float(np.nanmedian(ranks))]
        found += [sum(layer.best_of(predictor, n) for layer in layers) / best for n in (1, 3)]
    return found


def errors(layers: Sequence[Layer]) -> Iterator[str]:
    """Yield what is measured over predicted, per implementation and kernel."""
    ratios: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for layer in layers:
        for place, candidate in enumerate(layer.candidates):
            w = candidate.workload
            kernel = f"{w.kh}x{w.kw}" if w.kind == "conv2d" else ""
            for predictor in _PREDICTORS:
                ratio = layer.measured[place] / layer.predicted[predictor][place]
                ratios[candidate.config.implementation, kernel, predictor].append(ratio)
    for name, kernel in sorted({(name, kernel) for name, kernel, _ in ratios}):
        found = [ratios[name, kernel, predictor] for predictor in _PREDICTORS]
        cells = [f"{q:6.2f}" for r in found for q in np.quantile(r, (0.1, 0.5, 0.9))]
        yield f"{name:20s} {kernel:6s} {len(found[0]):10d}  {' '.join(cells)}"


def report(layers: Sequence[Layer]) -> str:
    """Return the tables."""
    names = sorted({layer.model for layer in layers})
    of = {name: [layer for layer in layers if layer.model == name] for name in names}
    each = {name: figures(of[name]) for name in names}
    heads = " ".join(["  rank median  first   of 3"] * 2)
    lines = [
        f"{'':43s} {'analytical':^27s} {'learned':^27s}",
        f"{'left out':18s} layers candidates halves {heads}",
        *(row(name, of[name], each[name]) for name in names),
        row("mean of models", layers, np.mean(list(each.values()), axis=0)),
        row("all layers", layers, figures(layers)),
        "",
        "Measured over predicted time: 10 %, median, 90 % of the candidates",
        f"{'':40s} {'analytical':^20s} {'learned':^20s}",
        *errors(layers),
    ]
    return "\n".join(lines)


def title(core: Core, records: Sequence[Record], also: Sequence[Record]) -> str:
    """Return what was done and where; the peak is measured now."""
    peak = measure_peak_gflops(core)
    versions = f"tvm-blislike {version('tvm-blislike')}, xgboost {xgboost.__version__}"
    what, _, legend = __doc__.partition("\n\n    python")
    return "\n".join(
        [
            what,
            legend.partition("\n\n")[2],
            f"{platform.machine()}, {core.name}, {peak:.0f} GFLOPS at the FMA peak of a core",
            f"{versions}; {len(records)} records with one thread, {records[0].date[:10]}, "
            f"and {len(also)} that were only trained on",
            "",
        ]
    )


def _read(paths: Iterable[Path], core: Core) -> list[Record]:
    found = [record for path in paths for record in files.read(path)[0]]
    return [record for record in learn.usable(found, core) if record.threads == 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="records to train on only")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    core = resolve_core("native")
    records, also = _read(options.records, core), _read(options.also, core)
    layers = list(layers_of(records, also, core))
    text = title(core, records, also) + "\n" + report(layers)
    print(text)
    if options.output:
        write_text(options.output, text + "\n")


if __name__ == "__main__":
    main()
