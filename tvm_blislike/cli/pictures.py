"""The command report."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from tvm_blislike.cli import options
from tvm_blislike.cli.terminal import progress, stdout, working
from tvm_blislike.errors import TargetError, UsageError

_NEEDED = ("matplotlib", "jinja2")


def report(
    model: options.Model,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="Folder to write to."),
    ],
    records: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR/|URL", help="What `tune` measured; default: the user's own file."
        ),
    ] = None,
    target: options.Target = "native",
    shape: options.Shapes = None,
    threads: options.Threads = None,
    engines: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="Peers, as `bench` takes them.")
    ] = "onnxruntime,openvino",
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="Measure the model, its layers, the peers, FMA peak and bandwidths; or show "
            "what is on record only.",
        ),
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Draw what is on record for a model: one HTML page, PNGs and the data as JSON."""
    from tvm_blislike.api import resolve_core
    from tvm_blislike.files import make_folder, require_folder

    _require_extra()
    core, names = resolve_core(target), _engines(engines)
    require_folder(output)
    from tvm_blislike.export.link import is_foreign
    from tvm_blislike.pictures import collect, page
    from tvm_blislike.pictures.model_times import measured
    from tvm_blislike.records.store import opened
    from tvm_blislike.runtime.runnable import why_not_runnable
    from tvm_blislike.runtime.threads import default_threads

    foreign = is_foreign(core.target_config())
    threads = threads or (core.cores if foreign else default_threads())
    reason = why_not_runnable(core.target_config(threads)) if measure else None
    if reason:
        raise TargetError(
            f"{core.name} cannot be measured here: {reason}",
            "add --no-measure to show what is on record",
        )
    shapes = options.settled_shapes(shape)
    with working(f"reading {Path(model).name} and its records"):
        kept = opened(records)
        kept.get(core, threads)
        found = collect.collect(model, core, threads, shapes, kept.path)
    findings = found.findings
    if measure:
        with progress() as show:
            findings = measured(found, model, core, threads, shapes, names, show)
    make_folder(output)
    with working(f"drawing into {output}"):
        written = page.write(findings, output)
    if as_json:
        print(findings.to_json())
    else:
        for path in written:
            stdout().print(escape(str(path)), soft_wrap=True)


def _engines(text: str) -> list[str]:
    """Return the names of the peers.

    Raises
    ------
    UsageError
        When one is unknown.
    """
    from tvm_blislike.bench import ENGINES
    from tvm_blislike.errors import suggest

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in ENGINES:
            raise UsageError(f"unknown engine {name!r}", suggest(name, ENGINES))
    return names


def _require_extra() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"`report` needs {' and '.join(missing)}", "pip install 'tvm-blislike[report]'"
        )
