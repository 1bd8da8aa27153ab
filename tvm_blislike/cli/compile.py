"""The command compile: a library, a bundle for a board, or code without a runtime."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_blislike.cli import options, tables
from tvm_blislike.cli.commands import compiled_model
from tvm_blislike.cli.limits import Limits, limited
from tvm_blislike.cli.terminal import print_json, stdout, working
from tvm_blislike.errors import UsageError

if TYPE_CHECKING:
    from tvm_blislike.choose.constraints import Constraints
    from tvm_blislike.hardware import Core
    from tvm_blislike.records.book import RecordBook
    from tvm_blislike.runtime.compiled import CompiledModel
    from tvm_blislike.standalone import StandaloneModel


@limited()
def compile(
    model: options.Model,
    target: options.Target = "native",
    shape: options.Shapes = None,
    threads: options.Threads = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT.so", help="Library; default: MODEL.so."),
    ] = None,
    bundle: options.BundleFolder = None,
    standalone: options.Standalone = False,
    cc: options.Compiler = None,
    limits: Limits = None,
    records: options.Records = None,
    learned: options.Learned = None,
    as_json: options.Json = False,
) -> None:
    """Compile an ONNX model to a shared library, a bundle for a board, or code for C and C++."""
    from tvm_blislike.api import resolve_core, resolve_threads

    core = resolve_core(target)
    outputs = _outputs(Path(model).stem, core, output, bundle, standalone)
    _require_possible(core, outputs, cc, threads)
    started = time.perf_counter()
    book = options.record_book(records, core)
    if standalone:
        kind, path = next(iter(outputs.items()))
        count = 1 if kind == "object" else resolve_threads(core, threads)
        name = path.stem if kind == "object" else path.absolute().name
        compiled = _standalone(model, core, shape, count, limits, book, learned, name)
        result, report = _written(compiled, kind, path, cc), compiled.report
    else:
        compiled = compiled_model(model, core, shape, threads, limits, book, learned)
        written = [_write(compiled, kind, path, cc) for kind, path in outputs.items()]
        result, report = _result(compiled, *written[0]), compiled.explain()
    result["seconds"] = time.perf_counter() - started
    if as_json:
        print_json(result)
    else:
        tables.print_compiled(stdout(), report, result)


def _outputs(
    stem: str, core: Core, output: Path | None, bundle: Path | None, standalone: bool
) -> dict[str, Path]:
    """Return what is to be written, by kind; a library unless something else is asked for."""
    from tvm_blislike.export.link import is_darwin

    darwin = is_darwin(core.target_config())
    if standalone:
        if bundle is not None:
            raise UsageError("--standalone and --bundle exclude each other")
        path = output or Path(stem + (".a" if darwin else ".o"))
        is_folder = path.is_dir() or not (path.suffix or path.exists())
        return {"folder" if is_folder else "object": path}
    outputs = {"bundle": bundle, "library": output}
    asked = {kind: path for kind, path in outputs.items() if path is not None}
    return asked or {"library": Path(stem + (".dylib" if darwin else ".so"))}


def _require_possible(
    core: Core, outputs: dict[str, Path], cc: str | None, threads: int | None
) -> None:
    """Raise what would go wrong after compiling."""
    from tvm_blislike.export.bundle import require_bundle
    from tvm_blislike.export.link import find_builder, find_compiler
    from tvm_blislike.files import require_writable

    for kind, path in outputs.items():
        if kind == "bundle":
            require_bundle(path, core.target_config())
        elif kind == "folder":
            from tvm_blislike.standalone import require_package

            require_package(path, core.target_config()["mtriple"])
        elif kind == "object":
            from tvm_blislike.standalone import require_places

            require_places(path)
        else:
            require_writable(path)
    if "object" not in outputs and "folder" not in outputs:
        find_compiler(core.target_config(), cc)
        return
    find_builder(core.target_config(), cc)
    if "object" in outputs and (threads or 1) > 1:
        raise UsageError(
            "a standalone object runs in one thread",
            "leave out --threads, or name a folder with -o",
        )


def _write(compiled: CompiledModel, kind: str, path: Path, cc: str | None) -> tuple[Path, int]:
    """Write one output; return its path and size in bytes."""
    with working(f"writing {path}"):
        if kind == "bundle":
            return path, compiled.bundle(path, cc).bytes
        compiled.export(path, cc)
        return path, path.stat().st_size


def _result(compiled: CompiledModel, path: Path, size: int) -> dict[str, Any]:
    return {
        "output": str(path),
        "bytes": size,
        "core": compiled.core,
        "threads": compiled.threads,
        "inputs": [asdict(spec) for spec in compiled.inputs],
        "outputs": [asdict(spec) for spec in compiled.outputs],
        "variants": [asdict(variant) for variant in compiled.variants],
    }


def _standalone(
    model: str,
    core: Core,
    shape: list[str] | None,
    threads: int,
    limits: Constraints | None,
    book: RecordBook,
    learned: Path | None,
    name: str,
) -> StandaloneModel:
    """Compile without a runtime."""
    from tvm_blislike import standalone

    shapes = options.settled_shapes(shape)
    with working(f"compiling {Path(model).name}"):
        return standalone.compile(
            model,
            core,
            name,
            shapes,
            threads,
            constraints=limits,
            records=book,
            learned=learned,
        )


def _written(compiled: StandaloneModel, kind: str, path: Path, cc: str | None) -> dict[str, Any]:
    """Write an object or a folder; return what is told of it."""
    from tvm_blislike import standalone

    with working(f"writing {path}"):
        if kind == "folder":
            package = standalone.package(compiled, path, cc)
            told = {"header": str(package.header), "bytes": package.bytes}
        else:
            header = standalone.write(compiled, path, cc)
            told = {"header": str(header), "bytes": path.stat().st_size}
            told["needs"] = standalone.needs(compiled, path)
    return {
        "output": str(path),
        **told,
        "workspace_bytes": compiled.workspace_bytes,
        "core": compiled.core.name,
        "threads": compiled.threads,
        "inputs": [asdict(spec) for spec in compiled.inputs],
        "outputs": [asdict(spec) for spec in compiled.outputs],
    }
