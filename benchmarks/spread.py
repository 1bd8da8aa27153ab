"""Records of good and bad candidates alike, for `learned.py`.

    python benchmarks/spread.py spread.jsonl
    python benchmarks/spread.py spread.jsonl -m resnet50 -m vgg11 --layers 2 --budget 240

Of the most expensive layers of each model that no model before had: the first 6 candidates of the
exhaustive search and 14 at equal steps behind them, each kernel by itself, with the caches as a
model leaves them. All of a layer take turns in one process: between groups the clock moves more
than candidates differ. Matrix products are measured in six processes: their candidates all take
what memory takes, and differ by less than by where their weights lie. Records come in the order of
the models; layers that the file has already are left out, so that the same command goes on after
`--budget` or Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import zoo
from rich.console import Console
from zoo_runs import MODELS, add_model_option

import tvm_blislike
from tvm_blislike import Workload
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.onnx import frontend
from tvm_blislike.records import files
from tvm_blislike.records.book import RecordBook
from tvm_blislike.tuning.interrupt import Interrupt
from tvm_blislike.tuning.kernels import CandidateGroup
from tvm_blislike.tuning.measure import LocalRunner, Measured, Outcome, Wait
from tvm_blislike.tuning.progress import Progress
from tvm_blislike.tuning.search import InOrder, exhaustive_search
from tvm_blislike.tuning.sweep import Limits, Sweep
from tvm_blislike.tuning.tasks import tasks_of
from tvm_blislike.tuning.timing import timing_for

FIRST, BEHIND = 6, 14
PROCESSES = 6


class InProcesses:
    """A runner that measures matrix products in several processes, one after the other."""

    def __init__(self, runner: LocalRunner) -> None:
        self.runner, self.emulated, self.at_once = runner, runner.emulated, runner.at_once

    def measure(self, groups: Sequence[CandidateGroup], wait: Wait) -> Measured:
        """Measure each group and yield it with its outcomes, the repeats of all processes."""
        products = [group for group in groups if group.workload.kind == "gemm"]
        yield from self.runner.measure([b for b in groups if b not in products], wait)
        for group in products:
            runs = [dict(self.runner.measure([group], wait))[group] for _ in range(PROCESSES)]
            yield group, [joined(outcomes) for outcomes in zip(*runs, strict=True)]

    def close(self) -> None:
        """Stop all processes."""
        self.runner.close()


def joined(outcomes: Sequence[Outcome]) -> Outcome:
    """Return one outcome of a candidate in several processes: all repeats, or what went wrong."""
    bad = next((outcome for outcome in outcomes if outcome.status != "ok"), None)
    return bad or replace(outcomes[0], seconds=tuple(s for o in outcomes for s in o.seconds))


def spread_search(strategy: Strategy, workload: Workload) -> InOrder:
    """Return the first candidates of the exhaustive search and some at equal steps behind."""
    every = exhaustive_search(strategy, workload).propose(sys.maxsize)
    first, rest = every[:FIRST], every[FIRST:]
    if len(rest) > BEHIND:
        step = (len(rest) - 1) / (BEHIND - 1)
        rest = [rest[round(i * step)] for i in range(BEHIND)]
    return InOrder([*first, *rest])


def gather(name: str, layers: int, strategy: Strategy, path: Path, end: float) -> bool:
    """Measure the layers of one model that no other has; return whether the user wants to stop."""
    found = files.read(path)[0] if path.exists() else []
    known = {record.workload: record.model for record in found}
    tasks = tasks_of(frontend.load(zoo.build(name), None).module, strategy)
    fresh = [task for task in tasks if known.get(task.workload, name) == name]
    progress = Progress(Console(stderr=True))
    runner = InProcesses(LocalRunner(strategy.core, strategy.threads, timing_for(strategy.core)))
    with progress, Interrupt(lambda: progress.working("stopping")) as interrupt:
        sweep = Sweep(
            strategy,
            spread_search,
            runner,
            RecordBook.open(path) if path.exists() else RecordBook(),
            partial(files.append, path),
            progress,
            Limits(sys.maxsize, end=end),
            stopped=interrupt.asked,
            model=name,
            group=FIRST + BEHIND,
        )
        try:
            sweep.run(fresh[:layers])
        finally:
            runner.close()
    print(f"{name}: {sweep.measured} measurements", flush=True)
    return interrupt.asked()


def main() -> None:
    """Gather records, model by model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, metavar="FILE")
    add_model_option(parser)
    parser.add_argument("-t", "--threads", type=int, default=1, metavar="N")
    parser.add_argument("--layers", type=int, default=8, metavar="N", help="of each model")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS")
    options = parser.parse_args()
    strategy = Strategy(tvm_blislike.native_core(), options.threads)
    end = time.monotonic() + options.budget
    for name in options.model or MODELS:
        stopped = gather(name, options.layers, strategy, options.records, end)
        if stopped or time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
