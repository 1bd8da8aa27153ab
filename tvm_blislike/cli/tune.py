"""The command tune."""

from __future__ import annotations

from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tvm_blislike.cli import options
from tvm_blislike.cli.limits import Limits, limited
from tvm_blislike.cli.terminal import print_json, stderr, stdout

if TYPE_CHECKING:
    from tvm_blislike.tuning.result import TunedLayer, TuneResult


class CacheState(str, Enum):
    """State of the caches before each repeat."""

    cold = "cold"
    warm = "warm"


@limited("pin")
def tune(
    model: options.Model,
    target: options.Target = "native",
    shape: options.Shapes = None,
    threads: options.Threads = None,
    budget: Annotated[
        float | None,
        typer.Option(min=1.0, metavar="SECONDS", help="Time at most, the comparison included."),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Measurements at most; default: 8 per distinct layer, learned: 4, random, genetic "
            "and narrowing without --budget: 64.",
        ),
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|DIR/|URL",
            help="File of records; default: the user's own. A folder or a URL is a store that "
            "machines share.",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Measure part I of N, from 0, of the layers; a last run without it over all "
            "records compares the whole model.",
        ),
    ] = None,
    search: Annotated[
        str,
        typer.Option(
            metavar="model|learned|exhaustive|random|genetic|narrowing",
            help="What to measure: what the model expects most of, what a learned one does, every "
            "algorithm and block, or anything the implementations can do: drawn at random, from "
            "the values of the best so far, or like the best so far.",
        ),
    ] = "model",
    seed: Annotated[
        int,
        typer.Option(metavar="N", help="Seed of the searches random, genetic and narrowing."),
    ] = 0,
    cache: Annotated[
        CacheState,
        typer.Option(help="Whether caches are emptied before each repeat, as in a model."),
    ] = CacheState.cold,
    rpc: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Tracker of TVM's RPC: measure on its boards."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="What the boards are registered under.")
    ] = None,
    emulated: Annotated[
        bool,
        typer.Option(
            "--emulated",
            help="These boards are emulated: keep their times under a label, never follow them. "
            "qemu-user is recognized without it.",
        ),
    ] = False,
    limits: Limits = None,
    learned: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="What --search learned follows; default: trained on the records right now.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure a few configurations of each layer; later commands follow the records.

    Ctrl-C ends it after the present measurement, or amid the comparison of the models; the next
    run goes on from there.
    """
    from tvm_blislike.tuning.budget import PER_TASK_IN_SPACE
    from tvm_blislike.tuning.progress import Progress
    from tvm_blislike.tuning.searches import IN_WHOLE_SPACE
    from tvm_blislike.tuning.tune import tune as sweep

    if search in IN_WHOLE_SPACE and budget is None and trials is None:
        bound = f"at most {PER_TASK_IN_SPACE} measurements of each distinct layer"
        stderr().print(f"{bound}: --budget and --trials set other bounds", soft_wrap=True)
    shapes = options.settled_shapes(shape)
    progress = Progress(stderr())
    result = sweep(
        model,
        target,
        shapes,
        threads,
        budget,
        trials,
        records,
        search,
        limits,
        cache.value,
        progress,
        rpc,
        key,
        learned=learned,
        emulated=emulated,
        seed=seed,
        shard=shard,
    )
    if as_json:
        print_json(_plain(result))
    else:
        _print(stdout(), result)


def _plain(result: TuneResult) -> dict[str, object]:
    verdict = None
    if result.verdict:
        kept = ("untuned_ms", "tuned_ms", "gain", "rejected", "rel_error")
        verdict = {name: getattr(result.verdict, name) for name in kept}
    plain = asdict(replace(result, verdict=None))
    return plain | {"records": str(result.records), "verdict": verdict}


def _print(console: Console, result: TuneResult) -> None:
    table = Table("layer", "layers", "implementation", "block")
    for heading in ("ms", "untuned ms", "gain", "predicted ms"):
        table.add_column(heading, justify="right")
    table.add_column("measured in")
    for layer in result.layers:
        table.add_row(*_cells(layer))
    console.print(table)
    for reason in result.rejected:
        console.print(f"rejected: {escape(reason)}", soft_wrap=True)
    console.print(_summary(result), soft_wrap=True, markup=False)


def _cells(layer: TunedLayer) -> list[str]:
    best, untuned = layer.measured_ms, layer.untuned_ms
    return [
        escape(layer.workload),
        str(layer.count),
        layer.implementation,
        layer.block,
        f"{best:.3f}" if best else "",
        f"{untuned:.3f}" if untuned else "",
        f"{untuned / best:.2f}x" if best and untuned else "",
        f"{layer.predicted_ms:.3f}",
        layer.context,
    ]


def _summary(result: TuneResult) -> str:
    parts = [f"{result.measured} measurements in {result.seconds:.0f} s, kept in {result.records}"]
    if result.emulated:
        parts.append("the boards are emulated: these times mean nothing, compilations ignore them")
    if result.shard:
        what = "has" if result.layers else "has no layers: there are fewer than shards; it has"
        parts.append(
            f"shard {result.shard} {what} done its part: behind the last shard the same command "
            "without --shard compares the whole model"
        )
    if result.interrupted:
        parts.append("interrupted: the same command goes on")
    if result.verdict:
        v = result.verdict
        parts.append(
            f"whole model: {v.untuned_ms:.3f} ms untuned, {v.tuned_ms:.3f} ms tuned, {v.gain:.2f}x"
        )
    return "\n".join(parts)
