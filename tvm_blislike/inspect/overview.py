"""What of a report fits on one screen: shares of the time, the slowest layers, what fell back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tvm_blislike.model.report import LayerReport, Report

DEFAULT_RULE = "default rule"


@dataclass(frozen=True)
class Share:
    """The kernels of one algorithm.

    Parameters
    ----------
    name : str
        The algorithm; of the default rule the kind of loops.
    kernels : int
        How many the model calls in a run.
    ms : float
        Their predicted time; 0 where the model has no say.
    part : float
        Of the predicted time of all.
    peak_fraction : float or None
        Mean, weighted by time, of the peak of products of each layer's types.
    """

    name: str
    kernels: int
    ms: float
    part: float
    peak_fraction: float | None


@dataclass(frozen=True)
class Fallback:
    """Layers that are not computed as they might have been, for one reason.

    Parameters
    ----------
    what : str
        What became of them.
    layers : int
        How many.
    reason : str
        Why.
    """

    what: str
    layers: int
    reason: str


def shares(report: Report) -> list[Share]:
    """Return the algorithms of a report, the one that takes longest first."""
    groups: dict[str, list[LayerReport]] = {}
    for layer in report.layers:
        groups.setdefault(algorithm(layer), []).append(layer)
    found = [_share(name, layers, report.predicted_ms) for name, layers in groups.items()]
    return sorted(found, key=lambda share: (-share.ms, -share.kernels, share.name))


def algorithm(layer: LayerReport) -> str:
    """Return the algorithm of a layer; of the default rule "default rule: reduction"."""
    if layer.is_chosen:
        return layer.implementation
    # "lstm 12x64; 4 rows", "unscheduled: reason", "elementwise+reduction".
    kind = layer.kind.split(";")[0].split(":")[0].split() or ["?"]
    return f"{DEFAULT_RULE}: {kind[0]}"


def slowest(report: Report, most: int = 10) -> list[tuple[LayerReport, int]]:
    """Return the layers of the largest predicted times, equal ones once and how many there are."""
    counts: dict[tuple[str, str, str, float], int] = {}
    first: dict[tuple[str, str, str, float], LayerReport] = {}
    for layer in report.layers:
        if layer.predicted_ms is not None:
            key = (layer.workload, algorithm(layer), layer.microkernel, layer.predicted_ms)
            counts[key] = counts.get(key, 0) + layer.runs
            first.setdefault(key, layer)
    order = sorted(first, key=lambda key: -key[-1])
    return [(first[key], counts[key]) for key in order[:most]]


def fusions(layers: Iterable[LayerReport]) -> list[tuple[tuple[str, ...], int]]:
    """Return what kernels compute beside their layers, the most frequent first, with counts."""
    return Counter(layer.fused for layer in layers if layer.fused).most_common()


def fallbacks(report: Report) -> list[Fallback]:
    """Return each reason for which layers fell back, the one of most layers first."""
    found = [Fallback(left.what, len(left.layers), left.reason) for left in report.left_out]
    refused = Counter(
        layer.reason
        for layer in report.layers
        if not layer.is_chosen and layer.reason.startswith("unscheduled")
    )
    found += [Fallback("plain loops for", count, reason) for reason, count in refused.items()]
    return sorted(found, key=lambda fallback: -fallback.layers)


def facts(report: Report) -> list[str]:
    """Return the notes of a report that are about the core."""
    told = {*map(str, report.left_out), *report.impossible}
    return [note for note in report.notes if note not in told]


def _share(name: str, layers: list[LayerReport], total_ms: float) -> Share:
    times = [(layer, layer.runs * (layer.predicted_ms or 0.0)) for layer in layers]
    ms = sum(each for _, each in times)
    ideal = sum(each * (layer.peak_fraction or 0.0) for layer, each in times)
    kernels = sum(layer.runs for layer in layers)
    return Share(name, kernels, ms, ms / (total_ms or 1.0), ideal / ms if ideal else None)
