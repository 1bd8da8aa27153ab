"""GFLOPS of every measured micro-kernel, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tvm_blislike.pictures.findings import Attempt, Findings, Layer, Roofs
from tvm_blislike.pictures.look import Look
from tvm_blislike.pictures.section import Section, few, message, sheets

_NAME = "microkernels"
_PER_SHEET = 12
_COLUMNS = 3
_HEADINGS = ("layer", "algorithm", "micro-kernel", "GFLOPS", "ms", "% of peak", "measured")


def section(findings: Findings) -> Section:
    """Return the section: the best configuration of each micro-kernel on record."""
    layers = [layer for layer in findings.layers if layer.alone]
    roofs = findings.roofs
    pictures = sheets(_NAME, layers, _PER_SHEET, _alt, lambda look, part: _draw(look, part, roofs))
    return Section(
        _NAME,
        "Micro-kernels by layer",
        "Speed of each layer with each register block (mr x nr) and algorithm on record, "
        "the best configuration of each, the fastest on top. Layers that should take most time "
        "come first. Measured one by one, with the caches of the core emptied before each repeat "
        "where the table says cold. "
        "GFLOPS count the operations of the direct algorithm, so Winograd may exceed the peak, "
        "the dashed line.",
        pictures or (message(_NAME, "No layer of this model is on record by itself."),),
        _HEADINGS,
        tuple(
            _row(layer, a, roofs.peak_of(layer)) for layer in layers for a in best_of_each(layer)
        ),
        few(len(layers), findings.layers, "are on record by themselves"),
    )


def best_of_each(layer: Layer) -> list[Attempt]:
    """Return the fastest attempt of each algorithm and block, the fastest first."""
    best: dict[tuple[str, str], Attempt] = {}
    for attempt in sorted(layer.alone, key=lambda a: a.ms):
        best.setdefault((attempt.implementation, attempt.block), attempt)
    return list(best.values())


def _row(layer: Layer, attempt: Attempt, peak: float) -> tuple[str, ...]:
    speed = layer.gflops(attempt.ms)
    return (
        layer.title,
        attempt.implementation,
        attempt.block,
        f"{speed:.1f}",
        f"{attempt.ms:.4f}",
        f"{100 * speed / peak:.0f}",
        attempt.context,
    )


def _alt(layers: Sequence[Layer]) -> str:
    best = [(layer, best_of_each(layer)[0]) for layer in layers]
    parts = [f"{n.number}: {a.block} {n.gflops(a.ms):.0f}" for n, a in best]
    return f"Bars of GFLOPS by micro-kernel; the best of each layer: {', '.join(parts)}."


def _draw(look: Look, layers: Sequence[Layer], roofs: Roofs) -> Figure:
    columns = 1 if look.is_narrow else min(_COLUMNS, len(layers))
    bars = [len(best_of_each(layer)) for layer in layers]
    most = [max(bars[at : at + columns]) for at in range(0, len(layers), columns)]
    heights = [0.17 * count + 0.42 for count in most]
    names = sorted({a.implementation for layer in layers for a in layer.alone})
    legend_rows = len(names) + 1 if look.is_narrow else math.ceil((len(names) + 1) / 5)
    figure = Figure(figsize=(look.width, sum(heights) + 0.2 * legend_rows + 0.45))
    grid = figure.subplots(
        len(heights),
        columns,
        squeeze=False,
        sharex=True,
        gridspec_kw={"height_ratios": heights},
    )
    reach = max(layer.gflops(best_of_each(layer)[0].ms) for layer in layers)
    for axes, layer, rows in zip(grid.flat, layers, _repeated(most, columns), strict=False):
        _bars(axes, look, layer, rows, roofs.peak_of(layer))
        axes.set_xlim(0, 1.17 * max(reach, 0.98 * max(map(roofs.peak_of, layers))))
    for axes in grid.flat[len(layers) :]:
        axes.remove()
    figure.supxlabel("GFLOPS", fontsize="medium")
    chosen = {"marker": "d", "ls": "", "mfc": look.paper, "mec": look.ink, "ms": 5}
    look.legend(figure, names, {"chosen without tuning": chosen}, shape="s")
    return figure


def _repeated(values: Sequence[int], times: int) -> list[int]:
    return [value for value in values for _ in range(times)]


def _bars(axes: Axes, look: Look, layer: Layer, rows: int, peak: float) -> None:
    attempts = best_of_each(layer)
    speeds = [layer.gflops(a.ms) for a in attempts]
    colours = [look.colour(a.implementation) for a in attempts]
    axes.barh(range(len(attempts)), speeds, color=colours, height=0.72)
    for place, speed in enumerate(speeds):
        bold = "bold" if place == 0 else "normal"
        axes.annotate(
            f"{speed:.3g}",
            (speed, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            fontweight=bold,
        )
    _mark_untuned(axes, look, layer, attempts)
    axes.axvline(peak, color=look.muted, ls="--", lw=0.8, zorder=0)
    axes.set_yticks(range(len(attempts)), [a.block for a in attempts], fontsize="small")
    axes.set_ylim(rows - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_title(layer.title, loc="left", fontsize="small", fontweight="bold")


def _mark_untuned(axes: Axes, look: Look, layer: Layer, rows: Sequence[Attempt]) -> None:
    """Mark the speed of what is chosen without tuning, on the bar of its micro-kernel."""
    kernels = [(a.implementation, a.block) for a in rows]
    for attempt in layer.alone:
        if attempt.is_untuned:
            place = kernels.index((attempt.implementation, attempt.block))
            speed = layer.gflops(attempt.ms)
            axes.plot(speed, place, marker="d", mfc=look.paper, mec=look.ink, mew=0.8, ms=5)
