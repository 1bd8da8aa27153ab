"""Predicted against measured time of every configuration on record."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.figure import Figure

from tvm_blislike.pictures.findings import Attempt, Findings, Layer
from tvm_blislike.pictures.look import Look, marker, spread_ticks
from tvm_blislike.pictures.section import Picture, Section, few, message

_NAME = "prediction"
_NEAR = 1.25
_HEADINGS = ("layer", "algorithm", "block", "predicted ms", "measured ms", "measured / predicted")


def section(findings: Findings) -> Section:
    """Return the section: one point for each configuration."""
    layers = [layer for layer in findings.layers if layer.alone]
    pairs = [(layer, attempt) for layer in layers for attempt in layer.alone]
    return Section(
        _NAME,
        "Predicted against measured",
        "What the cost model said before, and what was then measured, of every configuration on "
        "record. On the solid line both are equal; between the dotted ones they differ by less "
        "than a quarter. " + summary([attempt for _, attempt in pairs]),
        (_picture(pairs) if pairs else message(_NAME, "No configuration is on record."),),
        _HEADINGS,
        tuple(_row(layer, attempt) for layer, attempt in pairs),
        few(len(layers), findings.layers, "are on record by themselves"),
    )


def summary(attempts: Sequence[Attempt]) -> str:
    """Return in words how near the predictions are; nothing without any."""
    if not attempts:
        return ""
    ratios = [a.ms / a.predicted_ms for a in attempts]
    near = sum(1 / _NEAR <= ratio <= _NEAR for ratio in ratios)
    return (
        f"{near} of {len(ratios)} do; the median of measured over predicted is "
        f"{median(ratios):.2f}."
    )


def _row(layer: Layer, a: Attempt) -> tuple[str, ...]:
    times = (f"{a.predicted_ms:.4f}", f"{a.ms:.4f}", f"{a.ms / a.predicted_ms:.2f}")
    return (layer.title, a.implementation, a.block, *times)


def _picture(pairs: Sequence[tuple[Layer, Attempt]]) -> Picture:
    attempts = [attempt for _, attempt in pairs]
    alt = f"Scatter plot of predicted and measured times. {summary(attempts)}"
    return Picture(_NAME, alt, lambda look: _draw(look, attempts))


def _draw(look: Look, attempts: Sequence[Attempt]) -> Figure:
    figure = Figure(figsize=(look.width, 4.4 if look.is_narrow else 5.2))
    axes = figure.subplots()
    names = sorted({a.implementation for a in attempts})
    for name in names:
        points = [a for a in attempts if a.implementation == name]
        axes.scatter(
            [a.predicted_ms for a in points],
            [a.ms for a in points],
            s=16,
            marker=marker(name),
            color=look.colour(name),
            alpha=0.75,
            linewidths=0,
        )
    times = [ms for a in attempts for ms in (a.predicted_ms, a.ms)]
    ends = (min(times) / 1.3, max(times) * 1.3)
    for factor in (1.0, _NEAR, 1 / _NEAR):
        style = "-" if factor == 1.0 else ":"
        axes.plot(ends, [factor * end for end in ends], style, color=look.muted, lw=0.9, zorder=1.5)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set(xlabel="predicted, ms", ylabel="measured, ms")
    for which in "xy":
        spread_ticks(axes, which)
    axes.grid(lw=0.6)
    look.legend(figure, names)
    return figure
