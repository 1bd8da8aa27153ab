"""Time of each layer in this library and in its peers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tvm_blislike.pictures.findings import Findings, Layer
from tvm_blislike.pictures.look import Look, marker, spread_ticks
from tvm_blislike.pictures.section import Section, few, message, sheets

_NAME = "layers"
_PER_SHEET = 40
_OURS = "blislike"


def section(findings: Findings) -> Section:
    """Return the section: a row for each layer with a time."""
    layers = [layer for layer in findings.layers if layer.our_ms is not None or layer.engine_ms]
    engines = _engines(layers)
    pictures = sheets(_NAME, layers, _PER_SHEET, _alt, lambda look, part: _draw(look, part))
    return Section(
        _NAME,
        "Time of each layer",
        f"{_text(engines, findings)} {summary(layers)}".strip(),
        pictures or (message(_NAME, "No layer was measured, and none is on record."),),
        ("layer", *(f"{name} ms" for name in engines), "fastest peer / blislike"),
        tuple(_row(layer, engines) for layer in layers),
        few(len(layers), findings.layers, "have a time"),
    )


def times_of(layer: Layer) -> dict[str, float]:
    """Return the milliseconds by engine, ours first, which may be those on record."""
    ours = {} if layer.our_ms is None else {_OURS: layer.our_ms}
    return {**ours, **layer.engine_ms}


def _engines(layers: Sequence[Layer]) -> list[str]:
    return list(dict.fromkeys(name for layer in layers for name in times_of(layer)))


def ratio(layer: Layer) -> float | None:
    """Return the time of the fastest peer over ours, None where one of them is missing."""
    peers = [ms for name, ms in layer.engine_ms.items() if name != _OURS]
    ours = layer.engine_ms.get(_OURS)
    return min(peers) / ours if peers and ours else None


def summary(layers: Sequence[Layer]) -> str:
    """Return in words how the layers compare with the fastest peer; nothing without peers."""
    ratios = [found for found in map(ratio, layers) if found is not None]
    if not ratios:
        return ""
    faster = sum(found > 1 for found in ratios)
    return (
        f"{faster} of {len(ratios)} layers are faster than in the fastest peer, "
        f"{geometric_mean(ratios):.2f}x in the geometric mean."
    )


def _text(engines: Sequence[str], findings: Findings) -> str:
    if not any(layer.engine_ms for layer in findings.layers):
        return "Time of one call of each layer as on record; no other engine was measured."
    peers = [name for name in engines if name != _OURS]
    silent = [n for n in findings.engines if n not in (*engines, "untuned")]
    return (
        "One call of each layer inside the whole model, as each engine's own profiler tells it, "
        "the engines in turns on the same CPUs. A time includes what the engine fuses into the "
        "layer, such as its activation; what it runs apart, such as changes of layout, counts in "
        "the whole model only. "
        "Peers tell whole microseconds."
        + (" Numbers on the right: the fastest peer's time over ours." if peers else "")
        + (f" Not told by: {', '.join(silent)}." if silent else "")
    )


def _row(layer: Layer, engines: Sequence[str]) -> tuple[str, ...]:
    times, found = times_of(layer), ratio(layer)
    return (
        layer.title,
        *(f"{times[name]:.4f}" if name in times else "" for name in engines),
        "" if found is None else f"{found:.2f}",
    )


def _alt(layers: Sequence[Layer]) -> str:
    parts = [f"Dot plot of milliseconds, {len(layers)} layers.", summary(layers)]
    slow = [str(layer.number) for layer in layers if (ratio(layer) or 1.0) < 1]
    parts += [f"Slower than the fastest peer: layers {', '.join(slow)}."] if slow else []
    return " ".join(filter(None, parts))


def _draw(look: Look, layers: Sequence[Layer]) -> Figure:
    engines = _engines(layers)
    step = 0.38 if look.is_narrow else 0.25
    rows = len(engines) if look.is_narrow else 1
    figure = Figure(figsize=(look.width, step * len(layers) + 0.2 * rows + 0.75))
    axes = figure.subplots()
    for place, layer in enumerate(layers):
        _place(axes, look, place, layer)
    axes.set(xscale="log", xlabel="milliseconds of one call")
    axes.set_ylim(len(layers) - 0.3, -0.8)
    spread_ticks(axes, "x")
    axes.grid(axis="x", lw=0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if look.is_narrow:
        axes.set_yticks([])
        for place, layer in enumerate(layers):
            _above(axes, place, layer.title)
    else:
        axes.set_yticks(range(len(layers)), [layer.title for layer in layers], fontsize="small")
    look.legend(figure, engines)
    return figure


def _place(axes: Axes, look: Look, place: int, layer: Layer) -> None:
    """Draw the times of one layer, a line between the extremes, and the ratio."""
    times = times_of(layer)
    ends = [min(times.values()), max(times.values())]
    axes.plot(ends, [place, place], color=look.grid, lw=2, zorder=1)
    # Ours last, over the others.
    for name, ms in reversed(times.items()):
        axes.plot(ms, place, marker=marker(name), color=look.colour(name), ms=5.5, zorder=2)
    found = ratio(layer)
    if found is not None:
        axes.annotate(
            f"{found:.2f}x",
            (1.0, place),
            (4, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
            fontsize="small",
            fontweight="normal" if found >= 1 else "bold",
            annotation_clip=False,
        )


def _above(axes: Axes, place: int, title: str) -> None:
    """Write the name of a layer over its row: beside it there is no room on a phone."""
    transform = axes.get_yaxis_transform()
    axes.text(0.0, place - 0.3, title, transform=transform, va="center", fontsize="small")
