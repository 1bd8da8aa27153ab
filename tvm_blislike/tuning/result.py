"""What a sweep found, layer by layer, as `tune` returns it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tvm_blislike.records.book import fastest
from tvm_blislike.records.record import EMULATED, Record
from tvm_blislike.tuning.sweep import Sweep
from tvm_blislike.tuning.tasks import Task
from tvm_blislike.tuning.whole_model import Verdict


@dataclass(frozen=True)
class TunedLayer:
    """What tuning found for one distinct workload.

    Parameters
    ----------
    workload : str
        As `explain` prints it.
    count : int
        Layers of the model that are this workload.
    implementation : str
        Of the configuration that will be used.
    block : str
        Its mr x nr.
    measured_ms, untuned_ms : float or None
        Of the configuration that will be used, and of the model's choice.
    predicted_ms : float
        Of the configuration that will be used.
    measured : int
        Configurations on record.
    context : str
        Where they were measured: "model" when inside the model, else by themselves; "emulated"
        times mean nothing.
    """

    workload: str
    count: int
    implementation: str
    block: str
    measured_ms: float | None
    untuned_ms: float | None
    predicted_ms: float
    measured: int
    context: str = ""


@dataclass(frozen=True)
class TuneResult:
    """What a sweep did.

    Parameters
    ----------
    records : Path
        The file of records.
    layers : tuple of TunedLayer
        The most expensive first.
    verdict : Verdict or None
        The comparison end to end; None when the sweep was interrupted.
    measured : int
        Configurations measured in this sweep.
    rejected : tuple of str
        Those that were wrong, crashed or hung, with the reason.
    seconds : float
        Wall time.
    interrupted : bool
        Whether the user ended it.
    emulated : bool
        Whether processors were emulated: the times mean nothing, and compilations ignore them.
    shard : str
        "I/N" where `layers` are those of one shard.
    """

    records: Path
    layers: tuple[TunedLayer, ...]
    verdict: Verdict | None
    measured: int
    rejected: tuple[str, ...]
    seconds: float
    interrupted: bool = False
    emulated: bool = False
    shard: str = ""


def tuned_layer(sweep: Sweep, task: Task) -> TunedLayer:
    """Return what is known of a task now."""
    s = sweep.strategy
    usable = sweep.book.usable(task.workload, s.core, s.threads)
    if not usable and sweep.context == EMULATED:
        usable = [r for r in sweep.usable(task) if r.config == task.choice.config]
    of = task.workload
    best = fastest(usable, partial(s.seconds, of), partial(s.moving, of)) if usable else None
    config = best.config if best else task.choice.config
    untuned = [r for r in usable if best and r.context == best.context]
    untuned = [r for r in untuned if r.config == task.choice.config]
    return TunedLayer(
        str(task.workload),
        task.count,
        config.implementation,
        f"{config.mr}x{config.nr}",
        best.median_seconds * 1e3 if best else None,
        untuned[0].median_seconds * 1e3 if untuned else None,
        s.seconds(task.workload, config) * 1e3,
        len(_timed(sweep, task)),
        best.context if best else "",
    )


def _timed(sweep: Sweep, task: Task) -> list[Record]:
    """Return the records of a task's kernels by themselves, also of those that were dropped."""
    return [r for r in sweep.known(task) if r.seconds and r.status in ("ok", "dropped")]


def rejections(sweep: Sweep, tasks: Sequence[Task]) -> Iterator[str]:
    """Yield each configuration that was wrong, crashed or hung, with the reason."""
    s = sweep.strategy
    for task in tasks:
        for record in sweep.book.of(task.workload, s.core, s.threads):
            if record.status in ("wrong", "failed"):
                c = record.config
                kernel = f"{c.implementation} {c.mr}x{c.nr}"
                yield f"{task.workload}: {kernel} {record.status}: {record.reason}"
