"""The commands records show, best, merge, prune, train, export and import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tvm_blislike.cli import options
from tvm_blislike.cli.terminal import print_json, stderr, stdout

if TYPE_CHECKING:
    from tvm_blislike.cost_models.learned import Facts
    from tvm_blislike.records.files import BadLine
    from tvm_blislike.records.record import Record

File = Annotated[
    str | None,
    typer.Option(
        "--records",
        metavar="FILE|DIR/|URL",
        help="File of records, or a store, of which a copy is kept here; default: the user's own.",
    ),
]
Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder of MetaSchedule's JSON database.")
]

app = typer.Typer(
    help="Show and maintain what `tune` measured.", no_args_is_help=True, add_completion=False
)


@app.command()
def show(records: File = None, as_json: options.Json = False) -> None:
    """Print every record, in the order in which they were written."""
    _print(_read_if_any(records), as_json)


@app.command()
def best(records: File = None, as_json: options.Json = False) -> None:
    """Print what compilations follow: one record for each core, threads and workload."""
    from tvm_blislike.records import maintain

    _print(maintain.best(_read_if_any(records)), as_json)


@app.command()
def merge(
    target: Annotated[
        str, typer.Argument(metavar="FILE|DIR/|URL", help="File or store to add to.")
    ],
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Files or stores to read.")
    ],
    as_json: options.Json = False,
) -> None:
    """Add the records of other files to a file or a store, each once."""
    from tvm_blislike.records import maintain

    added, bad = maintain.merge(target, sources)
    _name_bad(bad)
    if as_json:
        print_json({"added": added, "bad_lines": len(bad), "records": target})
        return
    stderr().print(f"added {added} records to {escape(target)}", soft_wrap=True)


@app.command()
def prune(
    records: File = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Keep only the N fastest of each workload."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Remove bad lines, superseded records and those of other versions; of a store's copy here."""
    from tvm_blislike.records import maintain

    path = _path(records)
    there = _is_there(records, path)
    stay, gone = maintain.prune(path, keep) if there else (0, 0)
    if as_json:
        print_json({"kept": stay, "removed_lines": gone})
    elif there:
        stderr().print(f"{stay} records stay, {gone} lines went")


@app.command()
def train(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.json", help="The learned model.")
    ],
    records: File = None,
    target: options.Target = "native",
    as_json: options.Json = False,
) -> None:
    """Learn from the records of a core what its cost model does not know."""
    from tvm_blislike.api import resolve_core
    from tvm_blislike.cost_models.learned import save
    from tvm_blislike.files import require_writable
    from tvm_blislike.tuning import learn

    require_writable(output)
    model = learn.train(_read(_path(records)), resolve_core(target))
    save(model, output)
    if as_json:
        print_json(asdict(model.facts) | {"output": str(output)})
    else:
        _print_trained(model.facts, output)


def _print_trained(facts: Facts, output: Path) -> None:
    console, title = stdout(), f"{output}: {facts.records} records of {facts.core}"
    console.print(escape(title), soft_wrap=True)
    for name, count in sorted(facts.implementations.items()):
        console.print(f"{count:6d} {escape(name)}", highlight=False)


@app.command("export")
def export_(folder: Folder, records: File = None, as_json: options.Json = False) -> None:
    """Write the usable records as MetaSchedule's JSON database."""
    from tvm_blislike.tuning import database

    count = database.export(_read(_path(records)), folder)
    if as_json:
        print_json({"written": count, "database": str(folder)})
        return
    stderr().print(f"wrote {count} records to {escape(str(folder))}", soft_wrap=True)


@app.command("import")
def import_(folder: Folder, records: File = None, as_json: options.Json = False) -> None:
    """Add the records of MetaSchedule's JSON database that are of this library's kernels."""
    from tvm_blislike.records.store import opened
    from tvm_blislike.tuning import database

    found, foreign = database.read(folder)
    kept = opened(records)
    kept.put(found)
    kept.send()
    if as_json:
        print_json({"added": len(found), "foreign": foreign})
        return
    stderr().print(f"added {len(found)} records; {foreign} are of other schedules")


def _path(records: str | None) -> Path:
    """Return the file of records; of a store its local copy, brought up to date."""
    from tvm_blislike.records.store import opened

    kept = opened(records)
    kept.get()
    return kept.path


def _read(path: Path) -> list[Record]:
    from tvm_blislike.records import files

    records, bad = files.read(path)
    _name_bad(bad)
    return records


def _read_if_any(records: str | None) -> list[Record]:
    path = _path(records)
    return _read(path) if _is_there(records, path) else []


def _is_there(records: str | None, path: Path) -> bool:
    """Return whether there is a file to read, and tell when it is the user's own that is not."""
    from tvm_blislike.records import files
    from tvm_blislike.records.place import is_store

    if path.exists() or not (records is None or is_store(records)):
        return True
    stderr().print(f"no records yet in {escape(str(path))}", soft_wrap=True)
    stderr().print(f"[bold]hint:[/]  {files.HOW_TO_START}", soft_wrap=True)
    return False


def _name_bad(bad: Sequence[BadLine]) -> None:
    for line in bad:
        stderr().print(f"skipped {escape(str(line))}", soft_wrap=True)


def _print(records: Sequence[Record], as_json: bool) -> None:
    if as_json:
        print_json([json.loads(record.to_json()) for record in records])
        return
    table = Table("core", "threads", "workload", "implementation", "block")
    for heading in ("median ms", "spread ms", "repeats", "predicted ms", "error"):
        table.add_column(heading, justify="right")
    for heading in ("context", "status", "date"):
        table.add_column(heading)
    for record in records:
        table.add_row(*map(escape, _cells(record)))
    stdout().print(table)


def _cells(record: Record) -> list[str]:
    config = record.config
    return [
        record.core,
        str(record.threads),
        str(record.workload),
        config.implementation,
        f"{config.mr}x{config.nr}",
        f"{record.median_seconds * 1e3:.4f}" if record.seconds else "",
        f"{record.spread_seconds * 1e3:.4f}" if record.seconds else "",
        str(len(record.seconds)),
        f"{record.predicted_seconds * 1e3:.4f}",
        "" if record.error is None else f"{record.error:.1e}",
        record.context,
        f"{record.status}: {record.reason}" if record.reason else record.status,
        record.date[:16],
    ]
