"""The roofline: each layer's speed against its operations per byte, below what the core can do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tvm_blislike.pictures.findings import Findings, Layer, Roofs
from tvm_blislike.pictures.look import Look, marker, spread_ticks
from tvm_blislike.pictures.section import Picture, Section, few, message

_NAME = "roofline"
_UNKNOWN = "not on record"
# Inches that a number takes.
_ROOM = (0.16, 0.1)
_HEADINGS = ("layer", "algorithm", "operations per byte", "GFLOPS", "% of peak", "ms", "measured")


def section(findings: Findings) -> Section:
    """Return the section: one point for each layer with a time."""
    layers = [layer for layer in findings.layers if layer.our_ms is not None]
    picture = (
        Picture(_NAME, _alt(layers, findings.roofs), lambda look: _draw(look, layers, findings))
        if layers
        else message(_NAME, "No layer was measured, and none is on record.")
    )
    return Section(
        _NAME,
        "Roofline",
        "Speed of each layer against the operations it does per byte of its operands and result, "
        "each moved once; the larger a point, the more of the model's time it should take, and "
        "its number, where there is room, is that of the tables. "
        + _roofs_text(findings.roofs)
        + " GFLOPS count the operations of the direct algorithm: with Winograd they are effective "
        "ones, which may exceed the peak. A layer may also lie above a slope: what the layer "
        "before has written can still be in a nearer cache.",
        (picture,),
        _HEADINGS,
        tuple(_row(layer, findings.roofs) for layer in layers),
        few(len(layers), findings.layers, "have a time"),
    )


def _roofs_text(roofs: Roofs) -> str:
    speeds = ", ".join(f"{name} {speed:.0f}" for name, speed in roofs.bandwidth_gb_per_s.items())
    source = "as measured for this page" if roofs.is_measured else "as described, not measured here"
    return (
        f"The roof, {source}: {_peaks_text(roofs)}; the slopes: read bandwidth in GB/s, {speeds}."
    )


def _peaks_text(roofs: Roofs) -> str:
    others = (f", of {types} {gops:.0f}" for types, gops in roofs.peaks_gops.items())
    return f"an FMA peak of {roofs.peak_gflops:.0f} GFLOPS{''.join(others)}"


def _row(layer: Layer, roofs: Roofs) -> tuple[str, ...]:
    speed = layer.gflops(layer.our_ms)
    return (
        layer.title,
        _algorithm(layer),
        f"{layer.intensity:.1f}",
        f"{speed:.1f}",
        f"{100 * speed / roofs.peak_of(layer):.0f}",
        f"{layer.our_ms:.4f}",
        source(layer),
    )


def source(layer: Layer) -> str:
    """Return where a layer's `our_ms` comes from."""
    if "blislike" in layer.engine_ms:
        return "inside the model, for this page"
    if layer.followed is None:
        return ""
    where = "inside a model" if layer.followed.context == "model" else layer.followed.context
    return f"on record, {where}"


def _algorithm(layer: Layer) -> str:
    return layer.followed.implementation if layer.followed else _UNKNOWN


def _alt(layers: Sequence[Layer], roofs: Roofs) -> str:
    fractions = sorted(layer.gflops(layer.our_ms) / roofs.peak_of(layer) for layer in layers)
    middle = fractions[len(fractions) // 2]
    return (
        f"Roofline with {len(layers)} layers below {_peaks_text(roofs)}; they reach from "
        f"{100 * fractions[0]:.0f} % to {100 * fractions[-1]:.0f} % of it, half of them at least "
        f"{100 * middle:.0f} %."
    )


def _draw(look: Look, layers: Sequence[Layer], findings: Findings) -> Figure:
    figure = Figure(figsize=(look.width, 4.6 if look.is_narrow else 5.6))
    axes = figure.subplots()
    names = sorted({_algorithm(layer) for layer in layers})
    _limits(axes, layers, findings.roofs)
    for layer in layers:
        _point(axes, look, layer)
    for layer in _with_room(axes, layers):
        _number(axes, layer)
    _roof(axes, look, findings.roofs)
    axes.set(xlabel="operations per byte", ylabel="GFLOPS")
    for which in "xy":
        spread_ticks(axes, which)
    axes.grid(lw=0.6)
    look.legend(figure, names)
    return figure


def _point(axes: Axes, look: Look, layer: Layer) -> None:
    at = (layer.intensity, layer.gflops(layer.our_ms))
    name = _algorithm(layer)
    size = (8 if look.is_narrow else 18) + 500 * layer.share
    axes.scatter(
        *at, s=size, marker=marker(name), color=look.colour(name), alpha=0.8, lw=0, zorder=3
    )


def _with_room(axes: Axes, layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers whose numbers do not cover that of a more expensive one."""
    to_inches = axes.figure.dpi_scale_trans.inverted()
    kept: list[tuple[Layer, float, float]] = []
    for layer in layers:
        at = (layer.intensity, layer.gflops(layer.our_ms))
        x, y = to_inches.transform(axes.transData.transform(at))
        if all(abs(x - u) > _ROOM[0] or abs(y - v) > _ROOM[1] for _, u, v in kept):
            kept.append((layer, x, y))
    return [layer for layer, _, _ in kept]


def _number(axes: Axes, layer: Layer) -> None:
    at = (layer.intensity, layer.gflops(layer.our_ms))
    axes.annotate(
        str(layer.number), at, (6, 4), textcoords="offset points", fontsize="x-small", zorder=4
    )


def _limits(axes: Axes, layers: Sequence[Layer], roofs: Roofs) -> None:
    """Show all points, the roof, and where the steepest slopes meet it as far as they are near."""
    intensities = [layer.intensity for layer in layers]
    speeds = [layer.gflops(layer.our_ms) for layer in layers]
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(min(intensities) / 4, max(*intensities, 10.0) * 1.6)
    axes.set_ylim(min(speeds) / 2, max(*speeds, _highest(roofs)) * 1.5)


def _highest(roofs: Roofs) -> float:
    return max(roofs.peak_gflops, *roofs.peaks_gops.values(), 0.0)


def _roof(axes: Axes, look: Look, roofs: Roofs) -> None:
    (left, right), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    peak = _highest(roofs)
    # As far from the edge as the rotated text is high.
    inset = (right / left) ** (0.06 if look.is_narrow else 0.02)
    style = {"color": look.muted, "lw": 1.0, "zorder": 2}
    peaks = {"FMA peak": roofs.peak_gflops, **roofs.peaks_gops}
    for name, gops in peaks.items():
        axes.plot([left, right], [gops, gops], **style)
        axes.annotate(
            f"{name} {gops:.0f} GFLOPS",
            (left, gops),
            (3, 3),
            textcoords="offset points",
            fontsize="small",
        )
    for name, speed in roofs.bandwidth_gb_per_s.items():
        ridge = peak / speed
        axes.plot([left, ridge], [speed * left, peak], **style, ls="--")
        at = max(left * inset, 1.15 * bottom / speed)
        if at < ridge and at < right:
            axes.text(
                at,
                at * speed,
                f"{name} {speed:.0f} GB/s",
                rotation=math.degrees(math.atan(speed)),
                rotation_mode="anchor",
                transform_rotates_text=True,
                va="bottom",
                fontsize="small",
                color=look.muted,
                clip_on=True,
            )
