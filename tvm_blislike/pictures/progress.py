"""How the times of the layers fell while tuning."""

from __future__ import annotations

from matplotlib.figure import Figure

from tvm_blislike.pictures.findings import Findings
from tvm_blislike.pictures.look import Look
from tvm_blislike.pictures.section import Picture, Section, message

_NAME = "progress"
_FEWEST = 2
_HEADINGS = ("second", "measurements", "sum of the layers, ms", "relative to untuned")


def section(findings: Findings) -> Section:
    """Return the section: the sum of the best times so far after each measurement."""
    steps = findings.steps
    pauses = f" {findings.pauses} pauses are left out." if findings.pauses else ""
    is_enough = len(steps) >= _FEWEST
    empty = "No measurement of this model's layers by themselves is on record."
    measurements = max(len(steps) - 1, 0)
    noun = "measurement" if measurements == 1 else "measurements"
    return Section(
        _NAME,
        "Tuning over time",
        "Sum of the best times so far of all layers on record, each counted as often as it occurs, "
        "measured by themselves. It starts with what the cost model alone chooses." + pauses,
        (Picture(_NAME, _alt(findings), lambda look: _draw(look, findings)),)
        if is_enough
        else (message(_NAME, empty),),
        _HEADINGS,
        _rows(findings),
        f"Only {measurements} {noun} on record." if measurements < 2 * len(findings.layers) else "",
    )


def _alt(findings: Findings) -> str:
    first, last = findings.steps[0], findings.steps[-1]
    return (
        f"Steps that fall from {first.total_ms:.3f} ms to {last.total_ms:.3f} ms in "
        f"{last.seconds:.0f} seconds of tuning, {len(findings.steps) - 1} measurements."
    )


def _rows(findings: Findings) -> tuple[tuple[str, ...], ...]:
    """Return the first step, those that gained something, and the last."""
    steps = findings.steps
    shown = [
        number
        for number, step in enumerate(steps)
        if number in (0, len(steps) - 1) or step.total_ms < steps[number - 1].total_ms
    ]
    return tuple(
        (
            f"{steps[n].seconds:.1f}",
            str(n),
            f"{steps[n].total_ms:.4f}",
            f"{steps[n].total_ms / steps[0].total_ms:.4f}",
        )
        for n in shown
    )


def _draw(look: Look, findings: Findings) -> Figure:
    steps = findings.steps
    figure = Figure(figsize=(look.width, 2.8 if look.is_narrow else 3.4))
    axes = figure.subplots()
    first, last = steps[0].total_ms, steps[-1].total_ms
    seconds, sums = [s.seconds for s in steps], [s.total_ms for s in steps]
    axes.step(seconds, sums, where="post", color=look.colour("blislike"), lw=1.8)
    axes.axhline(first, color=look.muted, ls="--", lw=0.8, zorder=0)
    room = max(first - last, 0.005 * first)
    axes.set_ylim(last - 0.25 * room, first + 0.25 * room)
    _annotate(axes, f"untuned {first:.3f} ms", (seconds[-1], first), 4)
    gain = f"{first / last:.3f}x" if first / last < 1.1 else f"{first / last:.2f}x"
    _annotate(axes, f"{last:.3f} ms, {gain}", (seconds[-1], last), -12)
    axes.set(xlabel="seconds of tuning", ylabel="sum of the best times, ms")
    axes.grid(lw=0.6)
    return figure


def _annotate(axes: object, text: str, at: tuple[float, float], points: int) -> None:
    axes.annotate(text, at, (0, points), textcoords="offset points", ha="right", fontsize="small")
