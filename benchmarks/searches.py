"""The searches of `tune` on single layers, with the same number of measurements each.

    python benchmarks/searches.py
    python benchmarks/searches.py --layers 1 --measurements 64 --seed 3

Every search begins with the model's choice. Its line says how much faster than that choice the
best was that it had found after so many measurements, one column for eight each; "again" is the
best of all of them, measured in turns with the choice and the best of the other searches. Times are
medians, with the private caches emptied before each repeat, and hold what moving images to other
layouts than the choice's is predicted to take.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from statistics import median

from tvm_blislike import Conv2dWorkload, GemmWorkload, Workload, native_core
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.config import Config
from tvm_blislike.probe import measure_peak_gflops
from tvm_blislike.tuning.kernels import CandidateGroup
from tvm_blislike.tuning.measure import LocalRunner, Outcome
from tvm_blislike.tuning.searches import search_named
from tvm_blislike.tuning.sweep import GROUP
from tvm_blislike.tuning.timing import timing_for

SEARCHES = ("model", "random", "genetic", "narrowing")
# Of ResNet, of MobileNet-v2, of a transformer.
LAYERS: tuple[Workload, ...] = (
    Conv2dWorkload(1, 128, 28, 28, 128, 3, 3, padding=(1, 1, 1, 1)),
    Conv2dWorkload(1, 96, 14, 14, 576, 1, 1),
    GemmWorkload(128, 3072, 768),
)
Seconds = dict[Config, float]


def seconds_of(outcomes: Iterable[Outcome], moving: Callable[[Config], float]) -> Seconds:
    """Return the medians of those that were right, with what moving images takes."""
    return {o.config: median(o.seconds) + moving(o.config) for o in outcomes if o.status == "ok"}


def explore(
    strategy: Strategy, runner: LocalRunner, workload: Workload, most: int, seed: int
) -> dict[str, list[Outcome]]:
    """Return the outcomes of each search in order; groups that several propose are shared."""
    searches = {name: search_named(name, seed=seed)(strategy, workload) for name in SEARCHES}
    found: dict[str, list[Outcome]] = {name: [] for name in SEARCHES}
    for first in range(0, most, GROUP):
        groups = {}
        for name, search in searches.items():
            configs = tuple(p.config for p in search.propose(min(GROUP, most - first)))
            if configs:
                groups[name] = CandidateGroup(workload, configs, strategy.core, strategy.threads)
        with closing(runner.measure(list(dict.fromkeys(groups.values())))) as measured:
            outcomes = dict(measured)
        for name, group in groups.items():
            searches[name].tell(outcomes[group])
            found[name] += outcomes[group]
    return found


def compare(
    strategy: Strategy, runner: LocalRunner, workload: Workload, most: int, seed: int
) -> None:
    """Print one layer."""
    found = explore(strategy, runner, workload, most, seed)
    choice = strategy.choose(workload).config
    moving = partial(strategy.moving, workload)
    times = {name: seconds_of(outcomes, moving) for name, outcomes in found.items()}
    best = {name: min(seconds, key=seconds.__getitem__) for name, seconds in times.items()}
    finalists = tuple(dict.fromkeys((choice, *best.values())))
    group = CandidateGroup(workload, finalists, strategy.core, strategy.threads)
    with closing(runner.measure([group])) as measured:
        again = seconds_of(next(measured)[1], moving)
    usual = _named(choice)
    print(f"{workload}: model's choice {1e3 * again[choice]:.3f} ms, {usual}", flush=True)
    for name in SEARCHES:
        steps = " ".join(f"{gain:6.2f}" for gain in _gains(times[name], choice))
        wrong = len(found[name]) - len(times[name])
        final = again[choice] / again[best[name]]
        print(
            f"  {name:10s} {steps}   again {final:.2f}, not right {wrong}, {_named(best[name])}",
            flush=True,
        )


def _gains(times: Seconds, choice: Config) -> list[float]:
    """Return how much faster than the choice the best is after each group."""
    ordered = list(times.values())
    ends = range(GROUP, len(ordered) + GROUP, GROUP)
    return [times[choice] / min(ordered[:end]) for end in ends]


def _named(config: Config) -> str:
    c = config
    return f"{' '.join(map(str, c.kind))} {c.loop_order} {c.data_layout}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--measurements", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, nargs="*", default=range(len(LAYERS)))
    options = parser.parse_args()
    core = native_core()
    tvm = importlib.metadata.version("apache-tvm")
    print(
        f"{core.name}, threads {options.threads}, seed {options.seed}; apache-tvm {tvm}, ", end=""
    )
    print(f"Python {platform.python_version()}; peak {measure_peak_gflops(core):.0f} GFLOPS")
    with closing(LocalRunner(core, options.threads, timing_for(core))) as runner:
        strategy = Strategy(core, options.threads)
        for number in options.layers:
            compare(strategy, runner, LAYERS[number], options.measurements, options.seed)
    print(f"peak at the end {measure_peak_gflops(core):.0f} GFLOPS")


if __name__ == "__main__":
    main()
