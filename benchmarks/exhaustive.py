"""The best of at most 8 measurements beside an exhaustive search, layer by layer.

    python benchmarks/exhaustive.py resnet50 --records exhaustive.jsonl
    python benchmarks/exhaustive.py mobilenet_v2 --records exhaustive.jsonl --budget 240

The exhaustive search measures every algorithm and mr x nr of every layer; it takes a quarter of an
hour and more. With `--budget` it ends early, without a table; the same command goes on from there.
Then the winner of the first 8 that `tune` measures by default, the model's own choice and the four
fastest of the exhaustive search are measured again side by side: the fastest of many measurements
is partly luck. "few" is the winner's speed relative to the fastest of all, "untuned" the choice's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import zoo

import tvm_blislike
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.config import Config
from tvm_blislike.onnx import frontend
from tvm_blislike.records.book import RecordBook, fastest
from tvm_blislike.records.record import Record
from tvm_blislike.tuning.budget import PER_TASK
from tvm_blislike.tuning.kernels import CandidateGroup
from tvm_blislike.tuning.measure import LocalRunner
from tvm_blislike.tuning.search import model_search
from tvm_blislike.tuning.tasks import Task, tasks_of
from tvm_blislike.tuning.timing import timing_for
from tvm_blislike.tuning.tune import tune

FINALISTS = 4


@dataclass(frozen=True)
class Layer:
    """Seconds of one layer, measured side by side.

    Parameters
    ----------
    task : Task
        The layer.
    tried : int
        Configurations that the exhaustive search measured.
    untuned, few, best : float
        Of the model's choice, the best of few measurements, the fastest of all.
    """

    task: Task
    tried: int
    untuned: float
    few: float
    best: float


def winner(strategy: Strategy, task: Task, records: Sequence[Record]) -> Config:
    """Return what `tune` would keep of its first 8 measurements."""
    first = model_search(strategy, task.workload).propose(PER_TASK)
    measured = [r for r in records if r.config in {proposal.config for proposal in first}]
    return fastest(measured, partial(strategy.seconds, task.workload)).config


def side_by_side(strategy: Strategy, task: Task, book: RecordBook, runner: LocalRunner) -> Layer:
    """Measure the contestants of one layer in turns."""
    usable = book.usable(task.workload, strategy.core, strategy.threads)
    records = sorted((r for r in usable if r.context == "cold"), key=lambda r: r.median_seconds)
    untuned, few = task.choice.config, winner(strategy, task, records)
    contestants = dict.fromkeys([untuned, few, *[r.config for r in records[:FINALISTS]]])
    group = CandidateGroup(task.workload, tuple(contestants), strategy.core, strategy.threads)
    with closing(runner.measure([group])) as results:
        ((_, outcomes),) = results
    seconds = {o.config: median(o.seconds) for o in outcomes if o.status == "ok"}
    return Layer(task, len(records), seconds[untuned], seconds[few], min(seconds.values()))


def line(layer: Layer) -> str:
    """Return one row of the table."""
    t = layer
    return (
        f"{t.task.workload!s:50s} x{t.task.count:<2d} {t.tried:4d} tried  "
        f"best {t.best * 1e3:8.3f} ms   few {t.best / t.few:.3f}   untuned {t.best / t.untuned:.3f}"
    )


def totals(layers: Sequence[Layer]) -> str:
    """Return the last line: sums over the model's layers."""
    best, few, untuned = (
        sum(getattr(layer, name) * layer.task.count for layer in layers)
        for name in ("best", "few", "untuned")
    )
    return (
        f"sum over layers: best {best * 1e3:.2f} ms, few {few * 1e3:.2f} ms ({best / few:.3f} of "
        f"the best), untuned {untuned * 1e3:.2f} ms ({best / untuned:.3f})"
    )


def main() -> None:
    """Search, measure the best again and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=zoo.names(), metavar="MODEL")
    parser.add_argument("-t", "--threads", type=int, default=1, metavar="N")
    parser.add_argument("--records", type=Path, required=True, metavar="FILE")
    parser.add_argument("--budget", type=float, metavar="SECONDS")
    options = parser.parse_args()
    core, model = tvm_blislike.native_core(), zoo.build(options.model)
    strategy = Strategy(core, options.threads)
    runner = LocalRunner(core, options.threads, timing_for(core))
    try:
        done = tune(
            model,
            threads=options.threads,
            budget=options.budget,
            records=options.records,
            search="exhaustive",
            runner=runner,
        )
        print(f"{done.measured} measurements in {done.seconds:.0f} s")
        if options.budget is not None and done.measured:
            return
        tasks = tasks_of(frontend.load(model, None).module, strategy)
        book = RecordBook.open(options.records)
        layers = []
        for task in tasks:
            layers.append(side_by_side(strategy, task, book, runner))
            print(line(layers[-1]), flush=True)
    finally:
        runner.close()
    print(totals(layers))


if __name__ == "__main__":
    main()
