"""The commands bench and probe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tvm_blislike.cli import options, tables
from tvm_blislike.cli.terminal import print_json, progress, stderr, stdout
from tvm_blislike.errors import DisagreementError

if TYPE_CHECKING:
    from tvm_blislike.bench import EngineResult


def bench(
    model: options.Model,
    engines: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="Engines to compare.")
    ] = "blislike,onnxruntime,openvino,tvm",
    target: options.Target = "native",
    shape: options.Shapes = None,
    threads: options.Threads = None,
    repeat: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Rounds; default: at least 10 and 5 s."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Add per-layer times of blislike.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout."),
    ] = None,
    max_error: options.MaxError = None,
    max_workspace: options.MaxWorkspace = None,
    only: options.Only = None,
    without: options.Without = None,
    pin: options.Pins = None,
    records: options.Records = None,
    learned: options.Learned = None,
) -> None:
    """Measure engines side by side: interleaved, pinned, outputs compared."""
    from tvm_blislike.bench import bench as measure
    from tvm_blislike.files import require_writable, write_text

    to_stdout = str(json_file) == "-"
    if json_file and not to_stdout:
        require_writable(json_file)
    names = [name.strip() for name in engines.split(",") if name.strip()]
    shapes = options.parse_shapes(shape)
    limits = options.constraints(max_error, max_workspace, only, without, pin)
    book = options.record_book(records)
    with progress() as show:
        result = measure(
            model, names, threads, repeat, target, shapes, profile, limits, show, book, learned
        )
    if to_stdout:
        print(result.to_json())
    else:
        tables.print_bench(stdout(), result)
    if json_file and not to_stdout:
        write_text(json_file, result.to_json() + "\n")
    _require_agreement(result.engines)


def probe(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.toml", help="Write the core as TOML."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure this machine: FMA peak and the bandwidth of each cache level and of memory."""
    from tvm_blislike.files import require_writable, write_text
    from tvm_blislike.hardware import native_core

    if output:
        require_writable(output)
    from tvm_blislike.inspect.probe import probe as measure

    with progress() as show:
        measured = measure(native_core(), show)
    core = measured.to_core()
    if output:
        write_text(output, core.to_toml())
    if as_json:
        print_json(
            {
                "core": asdict(core) | {"isa": core.isa.name},
                "peak_gflops": measured.peak_gflops,
                "threads": measured.threads,
                "peak_gflops_all": measured.peak_gflops_all,
                "bandwidth_gb_per_s": dict(measured.bandwidth_gb_per_s),
                "memory_gb_per_s_all": measured.memory_gb_per_s_all,
                "ghz": measured.ghz,
                "fma_per_cycle": measured.fma_per_cycle,
            }
        )
    else:
        tables.print_probe(stdout(), measured, None if output else core.to_toml())
    if output:
        stderr().print(f"wrote {escape(str(output))}", soft_wrap=True)


def _require_agreement(engines: dict[str, EngineResult]) -> None:
    """Raise DisagreementError naming the engines whose outputs differ by more than rounding."""
    from tvm_blislike.bench.result import TOLERANCE, disagreeing

    wrong = disagreeing(engines)
    if wrong:
        listed = ", ".join(f"{n} ({'not finite' if e is None else e})" for n, e in wrong.items())
        raise DisagreementError(f"outputs differ by more than {TOLERANCE:g}: {listed}")
