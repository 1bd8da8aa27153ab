"""The commands cache show and cache clear."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.table import Table

from tvm_blislike.cli import options
from tvm_blislike.cli.terminal import print_json, stderr, stdout

if TYPE_CHECKING:
    from tvm_blislike.cache import store

app = typer.Typer(
    help="Show and remove compiled models that are kept for their next start.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def show(as_json: options.Json = False) -> None:
    """List the kept models, those used last first."""
    from tvm_blislike.cache import store

    place, most = store.folder(), store.most_bytes()
    found = [_described(kept) for kept in store.entries()]
    if as_json:
        print_json({"folder": place and str(place), "most_bytes": most, "models": found})
        return
    if found:
        stdout().print(_table(found))
    if place is None:
        stdout().print("compiled models are not kept: TVM_BLISLIKE_CACHE turns it off")
        return
    size = _megabytes(sum(entry["bytes"] for entry in found))
    stdout().print(f"{size} of {_megabytes(most)} in {escape(str(place))}", soft_wrap=True)


@app.command()
def clear(as_json: options.Json = False) -> None:
    """Remove all kept models."""
    from tvm_blislike.cache import store

    gone = store.clear()
    if as_json:
        print_json({"removed": len(gone), "bytes": sum(kept.bytes for kept in gone)})
        return
    size = _megabytes(sum(kept.bytes for kept in gone))
    stderr().print(f"removed {len(gone)} models, {size}")


def _described(kept: store.Kept) -> dict[str, Any]:
    """Return what is known of an entry."""
    from tvm_blislike.cache import entry
    from tvm_blislike.model.report import Report

    known = {"key": kept.path.name, "bytes": kept.bytes, "used": kept.used}
    try:
        told = entry.describe(kept.path)
    except Exception:  # whatever a damaged file leads to
        return {**known, "model": None}
    report = Report.from_json(told.about.report)
    return {
        **known,
        "model": told.model,
        "core": report.core,
        "threads": report.threads,
        "inputs": [str(spec) for spec in told.about.inputs],
    }


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table()
    for name in ("model", "inputs", "core", "threads", "size", "last used"):
        table.add_column(name)
    for entry in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["used"]))
        name = "damaged" if entry["model"] is None else Path(entry["model"]).name or "of torch"
        cells = [name, ", ".join(entry.get("inputs", ())), entry.get("core", "")]
        cells += [str(entry.get("threads", "")), _megabytes(entry["bytes"]), used]
        table.add_row(*map(escape, cells))
    return table


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
