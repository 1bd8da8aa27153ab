"""How the layers of models are divided among more threads than this machine has.

    python benchmarks/partitions.py                         resnet18, vgg16, googlenet, mobilenet_v2
    python benchmarks/partitions.py -m resnet50 --core zen4 --threads 64 --every

Nothing is run: the strategy chooses for a chip of so many cores, and the estimate tells what the
busiest thread does. "even" is an equal part of the work over that of the busiest thread, 1 where
nobody waits. "gain" is the predicted time by one thread, with what is best for one, over that by
all. Bytes are those of the blocks that a thread works on, by the level that holds them.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import zoo

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.workload import Workload
from tvm_blislike.onnx import frontend
from tvm_blislike.schedules import get_implementation
from tvm_blislike.tuning.tasks import tasks_of

MODELS = ("resnet18", "vgg16", "googlenet", "mobilenet_v2")
THREADS = (4, 8, 16, 64)


def chip(core: Core, cores: int) -> Core:
    """Return a core on a chip of so many; caches that several share stay as they are."""
    return dataclasses.replace(core, cores=max(cores, core.cores))


def even(choice: Choice, core: Core, threads: int) -> float:
    """Return an equal part of a layer's FMAs over those of the busiest thread."""
    estimate = get_implementation(choice.config.implementation).estimate
    every = estimate(choice.workload, choice.config, core, 1).cycles["fma"]
    busiest = estimate(choice.workload, choice.config, core, threads).cycles["fma"]
    return every / threads / busiest


def held(choice: Choice) -> str:
    """Return the kilobytes that a thread works on, by level."""
    sizes: defaultdict[int, int] = defaultdict(int)
    for _, level, size, _ in choice.estimate.footprint:
        sizes[level] += size
    names = {level: f"L{level}" if level else "memory" for level in sizes}
    return "  ".join(
        f"{names[n]} {sizes[n] / 1024:.0f}" for n in sorted(sizes, key=lambda n: n or 9)
    )


def divided(
    workloads: list[Workload], core: Core, threads: int
) -> Iterator[tuple[Choice, float, float]]:
    """Yield what is chosen for each workload, how even it is and what the threads gain."""
    one, several = Strategy(core, 1), Strategy(chip(core, threads), threads)
    for workload in workloads:
        choice = several.choose(workload)
        gain = one.choose(workload).estimate.seconds / choice.estimate.seconds
        yield choice, even(choice, several.core, threads), gain


def main() -> None:
    """Print a table for each model and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", action="append", choices=zoo.names(), metavar="NAME")
    parser.add_argument("--core", default="zen4", metavar="NAME")
    parser.add_argument("--threads", type=int, action="append", metavar="N")
    parser.add_argument("--every", action="store_true", help="print all layers, not the worst")
    options = parser.parse_args()
    core = Core.named(options.core)
    print(f"{core.name}, chips of as many cores as threads; KiB of a thread by level")
    for name in options.model or MODELS:
        module = frontend.load(zoo.build(name), None).module
        workloads = [task.workload for task in tasks_of(module, Strategy(core, 1))]
        for threads in options.threads or THREADS:
            rows = list(divided(workloads, core, threads))
            gains, evens = [row[2] for row in rows], [row[1] for row in rows]
            print(
                f"{name}, {threads} threads: gain {geometric_mean(gains):.1f}, "
                f"even {geometric_mean(evens):.2f}, lowest {min(evens):.2f}"
            )
            shown = rows if options.every else sorted(rows, key=lambda row: row[1])[:4]
            for choice, balance, gain in shown:
                algorithm = choice.config.implementation.removeprefix("conv2d_")
                print(
                    f"  {choice.workload!s:50s} {algorithm:11s} even {balance:.2f} "
                    f"gain {gain:5.1f}  {held(choice)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
