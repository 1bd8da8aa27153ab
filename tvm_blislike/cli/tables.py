"""Results as tables for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    import numpy as np

    from tvm_blislike.bench import BenchResult
    from tvm_blislike.hardware import Core
    from tvm_blislike.inspect.loops import LayerLoop
    from tvm_blislike.model.report import LayerReport, Report
    from tvm_blislike.probe import ProbeResult
    from tvm_blislike.runtime.compiled import LayerTime

# Fields of a config that other columns show already, or that say little.
_SHOWN_ELSEWHERE = {"implementation", "mr", "nr", "unroll", "data_layout", "out_layout"}


def describe(array: np.ndarray) -> dict[str, Any]:
    """Return shape, data type and range of an array, JSON-ready."""
    facts: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype)}
    if array.size:
        facts |= {key: float(getattr(array, key)()) for key in ("min", "mean", "max")}
    return facts


def print_compiled(console: Console, report: Report, result: Mapping[str, Any]) -> None:
    """Print what `compile` wrote."""
    from tvm_blislike.model.tensor_spec import TensorSpec
    from tvm_blislike.model.variant import Variant, spanned, spanned_outputs

    used = Counter(layer.implementation for layer in report.layers)
    kernels = ", ".join(f"{count} {name}" for name, count in used.most_common())
    console.print(
        f"{result['output']}: {result['bytes'] / 1e6:.1f} MB, compiled in {result['seconds']:.1f} s"
        f" for {result['core']}, {_threads(result['threads'])}"
    )
    # A library of several sizes has its open ones as they are written, 1..8.
    variants = [Variant.from_dict(fields) for fields in result.get("variants", ())]
    several = {"inputs": spanned(variants), "outputs": spanned_outputs(variants)}
    for label, key in (("in ", "inputs"), ("out", "outputs")):
        for spec in several[key] or [TensorSpec(**fields) for fields in result[key]]:
            console.print(f"  {label} {escape(str(spec))}")
    console.print(f"  kernels: {kernels}")
    if "header" in result:
        console.print(f"  {result['header']}; a run takes {result['workspace_bytes'] / 1e6:.2f} MB")
    if "needs" in result:
        needs = ", ".join(result["needs"]) or "see the header"
        console.print(f"  needs from elsewhere: {needs}")


def print_run(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the outputs and the time of `run`."""
    if summary["random_input"]:
        console.print("inputs: random, seed 0")
    files = (
        [Column("file", overflow="fold")]
        if any("file" in facts for facts in summary["outputs"].values())
        else []
    )
    table = Table("output", "shape", "data type", "min", "mean", "max", *files)
    for name, facts in summary["outputs"].items():
        sizes = "x".join(map(str, facts["shape"])) or "scalar"
        values = [f"{facts[key]:.6g}" if key in facts else "" for key in ("min", "mean", "max")]
        table.add_row(
            escape(name),
            sizes,
            facts["dtype"],
            *values,
            *([escape(facts["file"])] if files else []),
        )
    console.print(table)
    runs = "1 run" if summary["repeat"] == 1 else f"median of {summary['repeat']} runs"
    console.print(
        f"{summary['median_ms']:.3f} ms ({runs}; minimum {summary['min_ms']:.3f} ms), "
        f"{_threads(summary['threads'])}"
    )


def print_report(console: Console, report: Report) -> None:
    """Print the choice for each layer, then every reason."""
    title = f"{report.core}, {_threads(report.threads)}"
    table = Table(title=title, title_justify="left")
    for heading in ("layer", "workload", "implementation", "blocking", "footprint"):
        table.add_column(heading, overflow="fold")
    for heading in ("predicted ms", "measured ms", "% of peak"):
        table.add_column(heading, justify="right")
    table.add_column("of which", overflow="fold")
    table.add_column("other candidates", overflow="fold")
    for layer in report.layers:
        table.add_row(*_layer_cells(layer))
    console.print(table)
    console.print(f"predicted: {report.predicted_ms:.3f} ms for the layers the model covers")
    _print_reasons(console, report)


def print_layers(console: Console, report: Report) -> None:
    """Print each layer by itself: what was chosen, what bounds its blocks, what it costs."""
    for layer in report.layers:
        console.print(f"{layer.name}: {layer.workload}", markup=False)
        fields = ", ".join(f"{key} {value}" for key, value in layer.config.items())
        lines = [fields, *layer.derivation, _breakdown(layer), f"because: {layer.reason}"]
        if layer.weights_error is not None:
            lines.append(_stored(layer))
        if layer.predicted_ms is not None:
            lines.append(f"predicted: {layer.predicted_ms:.3f} ms; {_candidates(layer)}")
        for line in filter(None, lines):
            console.print(f"    {line}", markup=False, highlight=False)


def print_cores(console: Console, cores: Sequence[Core]) -> None:
    """Print name, instruction set and caches of each core."""
    table = Table("core", "isa", "vector bits", "registers", "FMA/cycle", "caches (ways)")
    for core in cores:
        caches = ", ".join(
            f"L{c.level} {_size(c.bytes)} ({c.ways})"
            + (f" for {c.shared_by} cores" if c.shared_by > 1 else "")
            for c in core.caches
        )
        numbers = (core.vector_bits, core.vector_registers, core.fma_per_cycle)
        table.add_row(core.name, core.isa.name, *(f"{number:g}" for number in numbers), caches)
    console.print(table)


def print_profile(console: Console, times: Sequence[LayerTime], report: Report) -> None:
    """Print the measured time of each kernel beside the predicted one."""
    layers = {layer.name: layer for layer in report.layers}
    total = sum(time.ms for time in times) or 1.0
    table = Table("layer", "workload", "implementation", title="per layer", title_justify="left")
    for heading in ("calls", "ms", "% of time", "GFLOPS", "predicted ms"):
        table.add_column(heading, justify="right")
    for time in times:
        layer = layers.get(time.name)
        speed = 2e-6 * layer.macs * time.calls / time.ms if layer and time.ms else 0.0
        predicted = layer.predicted_ms if layer else None
        table.add_row(
            escape(time.name),
            escape(layer.workload) if layer else "",
            _implementation(layer) if layer else "",
            str(time.calls),
            f"{time.ms:.3f}",
            f"{100 * time.ms / total:.1f}",
            f"{speed:.1f}" if speed else "",
            "" if predicted is None else f"{predicted * time.calls:.3f}",
        )
    console.print(table)


def print_bench(console: Console, result: BenchResult) -> None:
    """Print the engines side by side, fastest first, and what the figures refer to."""
    table = Table(title=f"{result.model}, {_threads(result.threads)}", title_justify="left")
    table.add_column("engine")
    headings = ("median ms", "min ms", "p10 .. p90 ms", "% of peak", "max rel. error", "load s")
    for heading in (*headings, f"speed / {result.reference}"):
        table.add_column(heading, justify="right")
    base = result.engines[result.reference].median_ms
    for name, engine in sorted(result.engines.items(), key=lambda item: item[1].median_ms):
        low, high = engine.spread_ms
        fraction = result.peak_ms / engine.median_ms
        error = engine.max_rel_error
        table.add_row(
            f"{name} {result.versions[name]}",
            f"{engine.median_ms:.3f}",
            f"{engine.min_ms:.3f}",
            f"{low:.3f} .. {high:.3f}",
            f"{100 * fraction:.0f}" if fraction else "",
            "not finite" if error is None else f"{error:.1e}",
            f"{engine.load_s:.1f}",
            f"{base / engine.median_ms:.2f}",
        )
    console.print(table)
    low, high = result.peak_spread_gflops
    console.print(
        f"FMA peak in this run: {result.peak_gflops:.0f} GFLOPS ({low:.0f} .. {high:.0f}), "
        f"{result.rounds} rounds; {result.core}, {result.machine}"
    )
    for types, gops in result.peaks_gops.items():
        console.print(f"peak of {types}: {gops:.0f} Gop/s")
    if result.report:
        print_profile(console, result.layers, result.report)
    for name, reason in result.skipped.items():
        console.print(f"skipped {name}: {escape(reason)}", soft_wrap=True)


def print_probe(console: Console, measured: ProbeResult, toml: str | None) -> None:
    """Print what was measured and, unless it went to a file, the core as TOML."""
    together = measured.bandwidth_gb_per_s_all
    rows = [("fp32 FMA peak", "GFLOPS", measured.peak_gflops, measured.peak_gflops_all)]
    for level, speed in measured.bandwidth_gb_per_s.items():
        rows.append((f"{level} read bandwidth", "GB/s", speed, together.get(level)))
    table = Table("", "unit", _threads(1), f"all ({_threads(measured.threads)})")
    for name, unit, one, all_threads in rows:
        table.add_row(name, unit, f"{one:.1f}", f"{all_threads:.1f}" if all_threads else "")
    console.print(table)
    core = measured.to_core()
    console.print(
        f"clock {measured.ghz:.2f} GHz; vectors per cycle: {core.fma_per_cycle:g} FMA, "
        f"{core.loads_per_cycle:g} loads, {core.stores_per_cycle:g} stores; a load takes "
        f"{core.element_load_cycles:g} (element) and {core.vector_load_cycles:g} (vector) cycles "
        f"from FMAs; {core.lines_in_flight} lines in flight"
    )
    if measured.threads > 1:
        console.print(
            f"handing work to {measured.threads} threads: {core.fork_join_us:g} us; a core reads "
            f"{core.passed_bytes_per_cycle:g} bytes per cycle of what another one has written"
        )
    for note in measured.notes:
        console.print(note, markup=False)
    if toml:
        console.print()
        console.print(toml, markup=False, soft_wrap=True)


def print_loops(console: Console, loops: Sequence[LayerLoop]) -> None:
    """Print the k loop of each layer, then a table of what they consist of."""
    for entry in loops:
        console.print(f"{entry.layer}: {entry.implementation} {entry.microkernel}", markup=False)
        for instruction in entry.loop:
            console.print(f"    {instruction}", markup=False, highlight=False)
    table = Table("layer", "micro-kernel", title="k loops, per iteration", title_justify="left")
    headings = (
        "instructions",
        "FMAs",
        "loads",
        "spills",
        "moves",
        "cycles",
        "llvm-mca",
        "% of FMA",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for entry in loops:
        counts, speed = entry.speed.counts, entry.speed
        numbers = (counts.instructions, counts.fmas, counts.loads, counts.spills, counts.moves)
        cycles = (f"{speed.cycles:.1f}", f"{speed.mca_cycles:.1f}")
        table.add_row(
            escape(entry.layer),
            entry.microkernel,
            *map(str, numbers),
            *cycles,
            f"{100 * speed.utilisation:.0f}",
        )
    console.print(table)


def _layer_cells(layer: LayerReport) -> list[str]:
    blocking = ", ".join(
        f"{key} {value}" for key, value in layer.config.items() if key not in _SHOWN_ELSEWHERE
    )
    footprint = ", ".join(
        f"{part.operand} {part.level} {100 * part.fraction:.0f}%" for part in layer.footprint
    )
    return [
        escape(layer.name),
        escape(layer.workload),
        _implementation(layer),
        escape(blocking),
        footprint,
        "" if layer.predicted_ms is None else f"{layer.predicted_ms:.3f}",
        "" if layer.measured_ms is None else f"{layer.measured_ms:.3f}",
        "" if layer.peak_fraction is None else f"{100 * layer.peak_fraction:.0f}",
        _breakdown(layer),
        _candidates(layer),
    ]


def _candidates(layer: LayerReport) -> str:
    """Predicted times of the implementations that lost, or why they were none."""
    others = [c for c in layer.candidates if c.implementation != layer.implementation]
    return "; ".join(
        f"{c.implementation}: {c.reason}"
        if c.predicted_ms is None
        else f"{c.implementation} {c.predicted_ms:.3f} ms"
        for c in others
    )


def _breakdown(layer: LayerReport) -> str:
    """Causes of one percent of the predicted time or more, the largest first."""
    total = sum(layer.breakdown.values()) or 1.0
    shares = sorted(layer.breakdown.items(), key=lambda entry: -entry[1])
    shown = [f"{cause} {100 * ms / total:.0f}%" for cause, ms in shares if abs(ms) >= 0.01 * total]
    return ", ".join(shown)


def _print_reasons(console: Console, report: Report) -> None:
    """Print each reason once, with the layers it holds for; fallbacks first."""
    layers_of: dict[tuple[bool, str], list[str]] = {}
    for layer in report.layers:
        if layer.reason:
            layers_of.setdefault((layer.is_chosen, layer.reason), []).append(layer.name)
    for (chosen, reason), names in sorted(layers_of.items()):
        kind = "why" if chosen else "default rule"
        listed = ", ".join(dict.fromkeys(names))
        console.print(f"{kind}: {escape(reason)}: {escape(listed)}", soft_wrap=True)
    _print_stored(console, report)
    for note in report.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)


def _print_stored(console: Console, report: Report) -> None:
    """Print the error of each layer's weights that are stored in fewer bytes."""
    for layer in report.layers:
        if layer.weights_error is not None:
            console.print(f"stored: {escape(layer.name)}: {_stored(layer)}", soft_wrap=True)


def _stored(layer: LayerReport) -> str:
    return f"weights as {layer.types[1]}, relative rms error {layer.weights_error:.1e}"


def _implementation(layer: LayerReport) -> str:
    return f"{layer.implementation} {layer.microkernel}".strip()


def _threads(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _size(size_bytes: int) -> str:
    return f"{size_bytes // 1024} KB" if size_bytes < 1 << 20 else f"{size_bytes / (1 << 20):g} MB"
