"""The commands bench and probe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from tvm_blislike.cli import options, tables
from tvm_blislike.cli.limits import Limits, limited
from tvm_blislike.cli.terminal import bar, print_json, progress, stderr, stdout
from tvm_blislike.errors import DisagreementError, UsageError

if TYPE_CHECKING:
    from tvm_blislike.bench import BenchResult
    from tvm_blislike.probe import ProbeResult

# Time that the tracker and a board may take to appear, and that a board has at most.
_START_SECONDS = 20.0
_SESSION_SECONDS = 600


@limited()
def bench(
    model: options.Model,
    engines: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="Engines to compare.")
    ] = "blislike,onnxruntime,openvino,tvm",
    input: options.Inputs = None,
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
    limits: Limits = None,
    records: options.Records = None,
    learned: options.Learned = None,
    no_cache: options.NoCache = False,
) -> None:
    """Measure engines side by side: interleaved, pinned, outputs compared."""
    from tvm_blislike.api import resolve_core
    from tvm_blislike.bench import bench as measure
    from tvm_blislike.files import require_writable, write_text

    to_stdout = str(json_file) == "-"
    if json_file and not to_stdout:
        require_writable(json_file)
    names = [name.strip() for name in engines.split(",") if name.strip()]
    shapes, arrays = options.settled_shapes(shape), options.load_inputs(input) or None
    book = options.record_book(records, resolve_core(target))
    with progress() as show:
        result = measure(
            model,
            names,
            threads,
            repeat,
            target,
            shapes,
            profile,
            limits,
            show,
            book,
            learned,
            arrays,
            not no_cache,
        )
    if to_stdout:
        print(result.to_json())
    else:
        tables.print_bench(stdout(), result)
    if json_file and not to_stdout:
        write_text(json_file, result.to_json() + "\n")
    _require_agreement(result)


def probe(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.toml", help="Write the core as TOML."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="About a second of measuring instead of 12.")
    ] = False,
    target: Annotated[
        str,
        typer.Option(
            metavar="native|CORE|FILE.toml",
            help="What is measured as far as described; of a board the core that is nearest.",
        ),
    ] = "native",
    rpc: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Tracker of TVM's RPC: measure one of its boards."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="What the board is registered under.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="DIR",
            help="Write a folder for a board instead: `blis_run --probe` measures there.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure this machine, or a board: all that the cost models use of it, as a core file."""
    from tvm_blislike.files import require_writable, write_text

    if (rpc is None) != (key is None):
        raise UsageError("--rpc and --key belong together")
    if folder and (rpc or output or quick):
        raise UsageError("--bundle goes with --target only: nothing is measured here")
    if folder:
        _write_bundle(folder, target)
        return
    if output:
        require_writable(output)
    if rpc and key:
        measured, kept = _of_board(rpc, key, target, quick), None
    else:
        measured, kept = _of_this_machine(target, quick)
    core = measured.to_core()
    if output:
        write_text(output, core.to_toml())
    if as_json:
        figures = ("threads", "peak_gflops", "peak_gflops_all", "ghz", "spreads", "notes")
        figures += ("bandwidth_gb_per_s", "bandwidth_gb_per_s_all")
        found = {name: getattr(measured, name) for name in figures}
        print_json({"core": asdict(core) | {"isa": core.isa.name}, **found})
    else:
        tables.print_probe(stdout(), measured, None if output else core.to_toml())
    if output:
        stderr().print(f"wrote {escape(str(output))}", soft_wrap=True)
    if kept:
        stderr().print(
            f"the target native uses it from now on: {escape(str(kept))}", soft_wrap=True
        )


def _of_this_machine(target: str, quick: bool) -> tuple[ProbeResult, Path | None]:
    """Measure; return the result, and the file in which it is kept if it is."""
    from tvm_blislike.api import resolve_core
    from tvm_blislike.hardware import native_description, probed
    from tvm_blislike.probe import probe as measure
    from tvm_blislike.probe.native import keep

    path, native = native_description()
    with bar("probe") as tick:
        measured = measure(native if target == "native" else resolve_core(target), quick, tick)
    # What a longer probe found stays.
    keeps = target == "native" and probed.is_wanted() and not (quick and probed.known(path))
    return measured, keep(measured) if keeps else None


def _write_bundle(folder: Path, target: str) -> None:
    from tvm_blislike.api import resolve_core
    from tvm_blislike.probe.plan import write_bundle

    write_bundle(resolve_core(target), folder)
    stderr().print(
        f"wrote {escape(str(folder))}: copy it to the board and start ./blis_run --probe "
        "--output CORE.toml there",
        soft_wrap=True,
    )


def _of_board(tracker: str, key: str, target: str, quick: bool) -> ProbeResult:
    from tvm_blislike.api import resolve_core
    from tvm_blislike.probe.measure import probe_board
    from tvm_blislike.tuning.farm import Farm

    if target == "native":
        raise UsageError(
            "the target native is this machine, not a board", "name the board's core with --target"
        )
    core = resolve_core(target)
    farm = Farm.at(tracker, key, _START_SECONDS)
    with bar("probe") as tick:
        return probe_board(farm.session(_SESSION_SECONDS), core, quick, tick)


def _require_agreement(result: BenchResult) -> None:
    """Raise DisagreementError naming the engines whose outputs differ by more than rounding."""
    from tvm_blislike.bench.result import disagreeing

    wrong = disagreeing(result)
    if wrong:
        listed = ", ".join(f"{n} ({'not finite' if e is None else e})" for n, e in wrong.items())
        raise DisagreementError(f"outputs differ by more than {result.tolerance:g}: {listed}")
