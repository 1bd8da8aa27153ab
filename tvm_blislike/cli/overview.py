"""The one screen of `explain`: it fits the terminal, and reads the same without colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tvm_blislike.inspect import overview

if TYPE_CHECKING:
    from tvm_blislike.model.report import LayerReport, Report

# From these widths on there is room for bars, for what computes a layer on the line of the layer,
# and for names and shares in full.
_BAR_WIDTH, _ONE_LINE_WIDTH, _FULL_WIDTH = 72, 78, 108
_BAR = 16
_FUSIONS = 6
_FALLBACKS = 5
# A layer below this share of its peak is worth a look.
_SLOW = 0.5


def print_overview(console: Console, report: Report, model: str) -> None:
    """Print where the time goes, the slowest layers, what was fused, fell back or left out."""
    timed = sum(layer.runs for layer in report.layers if layer.predicted_ms is not None)
    kernels = sum(layer.runs for layer in report.layers)
    threads = "1 thread" if report.threads == 1 else f"{report.threads} threads"
    console.print(f"[bold]{escape(model)}[/] for {escape(report.core)}, {threads}")
    console.print(f"{report.predicted_ms:.3f} ms predicted for {timed} of {kernels} kernels")
    _section(console, "where the time goes", _shares(console, report))
    slowest = overview.slowest(report)
    if slowest:
        _section(console, "slowest layers", _layers(console, report, slowest))
    _print_fusions(console, report)
    _print_fallbacks(console, report)
    if report.impossible:
        _print_lines(console, "left out", [*report.impossible])
    _print_hints(console, report, slowest)


def _section(console: Console, heading: str, table: Table) -> None:
    console.print(f"\n[bold]{heading}[/]")
    console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _columns(*headings: tuple[str, bool]) -> Table:
    """Return a table without lines; headings with True are of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading, is_number in headings:
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
        )
    return table


def _shares(console: Console, report: Report) -> Table:
    with_bars = console.width >= _BAR_WIDTH
    headings = [("algorithm", False), ("kernels", True), ("ms", True), ("time", True)]
    headings += [("% of peak", True), *([("", False)] if with_bars else [])]
    table = _columns(*headings)
    mark = "━" if console.encoding.startswith("utf") else "="
    for share in overview.shares(report):
        timed = share.ms > 0
        cells = [
            escape(share.name),
            str(share.kernels),
            f"{share.ms:.3f}" if timed else "",
            f"{100 * share.part:.0f}%" if timed else "",
            _percent(share.peak_fraction),
        ]
        bar = Text(mark * round(_BAR * share.part), style="cyan")
        table.add_row(*cells, *([bar] if with_bars else []))
    return table


def _layers(console: Console, report: Report, slowest: list[tuple[LayerReport, int]]) -> Table:
    one_line, full = console.width >= _ONE_LINE_WIDTH, console.width >= _FULL_WIDTH
    has_records = any(layer.measured_ms is not None for layer, _ in slowest)
    headings = [("ms", True), *([("on record", True)] if has_records else [])]
    headings += [*([("time", True)] if full else []), ("peak", True), ("layer", False)]
    table = _columns(*headings, *([("computed by", False)] if one_line else []))
    for layer, count in slowest:
        ms = layer.predicted_ms or 0.0
        recorded = "" if layer.measured_ms is None else f"{layer.measured_ms:.3f}"
        part = f"{100 * count * ms / (report.predicted_ms or 1.0):.1f}%"
        numbers = [f"{ms:.3f}", *([recorded] if has_records else []), *([part] if full else [])]
        workload = Text(layer.workload + (f"  x{count}" if count > 1 else ""))
        # avx512_f32_14x32: the block is what differs from layer to layer.
        kernel = layer.microkernel if full else layer.microkernel.rpartition("_")[2]
        by = Text(f"{layer.implementation} {kernel}".strip(), style="cyan")
        named = [workload, by] if one_line else [Text("\n  ").join([workload, by])]
        table.add_row(*numbers, _percent(layer.peak_fraction), *named)
    return table


def _percent(fraction: float | None) -> Text:
    if fraction is None:
        return Text("")
    return Text(f"{100 * fraction:.0f}%", style="yellow" if fraction < _SLOW else "")


def _print_fusions(console: Console, report: Report) -> None:
    chosen = [layer for layer in report.layers if layer.is_chosen]
    found = overview.fusions(chosen)
    if not found:
        return
    kernels = sum(count for _, count in found)
    shown = [f"{' '.join(names)} x{count}" for names, count in found[:_FUSIONS]]
    more = [f"{len(found) - _FUSIONS} others"] if len(found) > _FUSIONS else []
    text = f"{kernels} of {len(chosen)} kernels compute more: {', '.join([*shown, *more])}"
    _print_lines(console, "fused", [text])


def _print_fallbacks(console: Console, report: Report) -> None:
    found = overview.fallbacks(report)
    lines = [
        f"{fallback.what.rstrip(':')} {_layers_of(fallback.layers)}: {fallback.reason}"
        for fallback in found[:_FALLBACKS]
    ]
    if len(found) > _FALLBACKS:
        lines.append(f"{len(found) - _FALLBACKS} more reasons: --all")
    if not lines:
        lines = ["no layer: the kernels of the default rule are of other operators"]
    _print_lines(console, "fell back", lines)


def _layers_of(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def _print_lines(console: Console, heading: str, lines: list[str]) -> None:
    console.print(f"\n[bold]{heading}[/]")
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def _print_hints(console: Console, report: Report, slowest: list[tuple[LayerReport, int]]) -> None:
    facts = len(overview.facts(report))
    above = any((share.peak_fraction or 0.0) > 1.0 for share in overview.shares(report))
    console.print()
    if above:
        console.print(
            "above 100% of peak: Winograd needs fewer products than are counted", style="dim"
        )
    layer = slowest[0][0].workload.split(" -> ")[0] if slowest else "conv"
    console.print(
        f"more: --layer '{escape(layer)}*' derives blocks; --all shows every layer"
        + (f" and {facts} notes on the core" if facts else "")
        + "; --json",
        style="dim",
    )
