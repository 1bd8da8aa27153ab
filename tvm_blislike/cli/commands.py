"""The commands run, explain and targets."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_blislike.cli import options, tables
from tvm_blislike.cli.limits import Limits, limited
from tvm_blislike.cli.terminal import print_json, stdout, working
from tvm_blislike.export.output_names import output_files
from tvm_blislike.files import make_folder, require_folder, write_array

if TYPE_CHECKING:
    import numpy as np

    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.hardware import Core
    from tvm_blislike.model.report import Report
    from tvm_blislike.records.book import RecordBook
    from tvm_blislike.runtime.compiled import CompiledModel


@limited()
def run(
    model: options.Runnable,
    input: options.Inputs = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Write each output to a file, DIR/NAME.npy."),
    ] = None,
    target: options.Target = "native",
    shape: options.Shapes = None,
    threads: options.Threads = None,
    repeat: Annotated[
        int, typer.Option(min=1, metavar="N", help="Timed runs, after one that is not counted.")
    ] = 1,
    limits: Limits = None,
    records: options.Records = None,
    learned: options.Learned = None,
    no_verify: options.NoVerify = False,
    no_cache: options.NoCache = False,
    as_json: options.Json = False,
) -> None:
    """Run a model once, or several times to time it."""
    from tvm_blislike.api import resolve_core
    from tvm_blislike.onnx.inputs import random_inputs
    from tvm_blislike.runtime.library import is_library
    from tvm_blislike.runtime.runnable import require_runnable

    arrays = options.load_inputs(input)
    if output is not None:
        require_folder(output)
    # The native core is corrected by what the system says: nothing speaks against it.
    if target != "native":
        require_runnable(resolve_core(target).target_config())
    sizes, cache = {}, not no_cache
    if is_library(model):
        # Its own: one of them is run.
        sizes, shape = options.settled_shapes(shape), None
    elif arrays:
        _require_taken(arrays, model, shape)
    compiled = _open(model, target, shape, threads, limits, records, learned, no_verify, cache)
    if sizes and len(compiled.variants) == 1:
        raise typer.BadParameter("--shape is fixed in a compiled library of one size")
    arrays = arrays or random_inputs(compiled.variant_of(sizes).inputs)
    compiled.check(arrays)
    results, times = _timed_runs(compiled, arrays, repeat)
    files = _write_arrays(output, results) if output is not None else {}
    summary = {
        "model": model,
        "threads": compiled.threads,
        "random_input": not input,
        "median_ms": median(times),
        "min_ms": min(times),
        "repeat": repeat,
        "outputs": {
            name: tables.describe(array) | ({"file": str(files[name])} if files else {})
            for name, array in results.items()
        },
    }
    if as_json:
        print_json(summary)
    else:
        tables.print_run(stdout(), summary)


@limited()
def explain(
    model: options.Runnable,
    target: options.Target = "native",
    shape: options.Shapes = None,
    threads: options.Threads = None,
    limits: Limits = None,
    records: options.Records = None,
    learned: options.Learned = None,
    no_verify: options.NoVerify = False,
    no_cache: options.NoCache = False,
    asm: Annotated[
        bool,
        typer.Option(
            "--asm",
            help="Show the machine code of each k loop and its cycles, which llvm-mca counts.",
        ),
    ] = False,
    layer: Annotated[
        str | None,
        typer.Option(
            "--layer",
            help="Only layers whose name or workload has this text or matches this shell pattern, "
            "with what bounds their blocks.",
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Show every layer with all that is known of it, in one table."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show where the time goes, what was chosen for the layers, and why.

    A model is planned, not compiled. One screen by default; --layer, --all and --json tell more.
    """
    from tvm_blislike.api import explain as plan
    from tvm_blislike.cli.overview import print_overview
    from tvm_blislike.runtime.library import is_library

    cache = not no_cache
    if asm or is_library(model):
        # Nothing that is kept tells the text of its machine code.
        cache = cache and not asm
        compiled = _open(model, target, shape, threads, limits, records, learned, no_verify, cache)
        report = compiled.explain()
    else:
        _refuse_no_verify(no_verify)
        shapes = options.parse_shapes(shape)
        with working(f"planning {Path(model).name}"):
            report = plan(model, target, shapes, threads, None, limits, records, learned, cache)
    if layer is not None:
        report = report.matching(layer)
        if not report.layers:
            raise typer.BadParameter(f"no layer matches {layer!r}; explain --all lists them")
    if asm:
        _explain_loops(compiled, report, target, as_json)
    elif as_json:
        print_json(json.loads(report.to_json()))
    elif layer is not None:
        tables.print_layers(stdout(), report)
    elif every:
        tables.print_report(stdout(), report)
    else:
        print_overview(stdout(), report, Path(model).name)


def _explain_loops(compiled: CompiledModel, report: Report, target: str, as_json: bool) -> None:
    from tvm_blislike.api import resolve_core
    from tvm_blislike.inspect.loops import layer_loops

    loops = layer_loops(compiled.assembly(), report, resolve_core(target))
    if as_json:
        print_json([asdict(entry) for entry in loops])
    else:
        tables.print_loops(stdout(), loops)


def targets(as_json: options.Json = False) -> None:
    """List the cores that models can be compiled for."""
    from tvm_blislike.hardware import described_cores, native_core

    cores = [native_core(), *described_cores()]
    if as_json:
        print_json([asdict(core) | {"isa": core.isa.name} for core in cores])
    else:
        tables.print_cores(stdout(), cores)


def compiled_model(
    model: str,
    target: str | Core,
    shape: list[str] | None,
    threads: int | None,
    limits: Constraints | None,
    records: str | RecordBook | None,
    learned: Path | None,
    cache: bool = False,
) -> CompiledModel:
    """Compile an ONNX model or open what is kept of it, and show that this goes on."""
    from tvm_blislike.api import compile

    shapes = options.parse_shapes(shape)
    with working(f"compiling {Path(model).name}"):
        return compile(model, target, shapes, threads, None, limits, records, learned, cache=cache)


def _open(
    model: str,
    target: str,
    shape: list[str] | None,
    threads: int | None,
    limits: Constraints | None,
    records: str | None,
    learned: Path | None,
    no_verify: bool,
    cache: bool,
) -> CompiledModel:
    """Compile an ONNX model or load a library, which then runs with `threads`."""
    from tvm_blislike.runtime.compiled import CompiledModel
    from tvm_blislike.runtime.library import is_library

    if not is_library(model):
        _refuse_no_verify(no_verify)
        return compiled_model(model, target, shape, threads, limits, records, learned, cache)
    if shape or target != "native":
        raise typer.BadParameter("--shape and --target are fixed in a compiled library")
    if limits is not None or records is not None or learned is not None:
        raise typer.BadParameter("the choice of implementations is fixed in a compiled library")
    loaded = CompiledModel.load(model, verify=not no_verify)
    if threads and threads != loaded.threads:
        warnings.warn(f"compiled for {loaded.threads} threads, not {threads}", stacklevel=2)
        loaded.threads = threads
    return loaded


def _require_taken(arrays: dict[str, np.ndarray], model: str, shape: list[str] | None) -> None:
    """Raise for arrays that an ONNX model does not take, before it is compiled for minutes.

    Of sizes that stay open only names and types are known here; `check` does the rest.
    """
    from tvm_blislike.onnx.frontend import inputs_of
    from tvm_blislike.onnx.open_sizes import is_open
    from tvm_blislike.runtime.inputs import arranged

    shapes = options.parse_shapes(shape)
    some = {
        name: tuple(size[0] if isinstance(size, tuple) else size for size in sizes)
        for name, sizes in shapes.items()
    }
    with warnings.catch_warnings():
        # What is assumed of the model is said when it is compiled.
        warnings.simplefilter("ignore")
        specs = inputs_of(model, some)
    arranged(arrays, specs, (lambda *_: True) if is_open(shapes) else None)


def _refuse_no_verify(no_verify: bool) -> None:
    if no_verify:
        raise typer.BadParameter("--no-verify is about compiled libraries")


def _timed_runs(
    compiled: CompiledModel, arrays: dict[str, np.ndarray], repeat: int
) -> tuple[dict[str, np.ndarray], list[float]]:
    """Return the outputs and the milliseconds of each run after the first."""
    results = compiled.run(arrays)
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        results = compiled.run(arrays)
        times.append((time.perf_counter() - started) * 1e3)
    return results, times


def _write_arrays(folder: Path, arrays: dict[str, np.ndarray]) -> dict[str, Path]:
    """Write the outputs and return their files."""
    make_folder(folder)
    names = list(arrays)
    places = {name: folder / file for name, file in zip(names, output_files(names), strict=True)}
    for name, array in arrays.items():
        write_array(places[name], array)
    return places
