"""Products by seven of half the size (`gemm_strassen`) beside plain ones, by turns in one run.

    python benchmarks/strassen.py                      squares, one thread
    python benchmarks/strassen.py --shapes layers      products of transformers and of 1x1 layers
    python benchmarks/strassen.py --threads 2

In each round the FMA peak and each product take one turn. Plain ones are the model's choice and, as
that may be mistaken, its choice among those that pack A; "ratio" is against the faster one of both.
Medians over the rounds. The last columns: what the model predicted, and the errors of both relative
to the largest result, the bound of Strassen's beside its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import tvm
from gemm import compiled, conditions, turn

from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.choice import Choice
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.probe import measure_peak_gflops
from tvm_blislike.runtime.threads import use_threads

OURS = "gemm_strassen"
SETS = {
    "squares": [(size,) * 3 for size in (256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)],
    "layers": [
        (128, 768, 768),
        (128, 3072, 768),
        (128, 768, 3072),
        (197, 768, 768),
        (197, 3072, 768),
        (197, 768, 3072),
        (384, 3072, 768),
        (512, 1024, 1024),
        (512, 4096, 1024),
        (196, 1024, 256),
        (784, 256, 512),
        (196, 256, 1024),
    ],
}
TURN_SECONDS = 0.01
HEADER = (
    "     m     n     k  kernel  order     pairs  GFLOPS  /peak   plain  /peak  packed  ratio  "
    "pred.  error    bound    plain"
)


def choices(workload: GemmWorkload, core: Core, threads: int) -> dict[str, Choice]:
    """Return the model's choices: Strassen's, a plain one, and one that packs A."""
    only = {
        "strassen": Constraints(only=(OURS,)),
        "plain": Constraints(without=(OURS,)),
    }
    found = {n: Strategy(core, threads, constraints=c).choose(workload) for n, c in only.items()}
    plain = found["plain"]
    packing = [
        (plain.implementation.estimate(workload, config, core, threads).seconds, config)
        for config in plain.implementation.configs(workload, core, threads)
        if config.packing == "packed"
    ]
    if packing and plain.config.packing != "packed":
        found["packed"] = replace(plain, config=min(packing, key=lambda each: each[0])[1])
    return found


def measure(shape: tuple[int, int, int], core: Core, threads: int, rounds: int) -> str:
    """Compile, time and check one shape; return its line of the table."""
    workload = GemmWorkload(*shape)
    found = choices(workload, core, threads)
    if found["strassen"].config.implementation != OURS:
        return f"{shape[0]:6d} {shape[1]:5d} {shape[2]:5d}  no configuration"
    rng = np.random.default_rng(0)
    a = rng.standard_normal((workload.m, workload.k), dtype=np.float32)
    b = rng.standard_normal((workload.k, workload.n), dtype=np.float32)
    wanted = a.astype("float64") @ b.astype("float64")
    runs: dict[str, Callable[[], object]] = {}
    errors = {}
    for name, choice in found.items():
        function = compiled(choice, core, threads, packing=False)
        packed = choice.implementation.pack(workload, choice.config, b)
        out = tvm.runtime.tensor(np.empty(wanted.shape, np.float32))
        arguments = (tvm.runtime.tensor(a), tvm.runtime.tensor(packed), out)
        runs[name] = lambda function=function, arguments=arguments: function(*arguments)
        runs[name]()
        errors[name] = np.abs(out.numpy() - wanted).max() / np.abs(wanted).max()
    flops = 2.0 * workload.macs
    times = {
        n: max(1, round(TURN_SECONDS * turn(r, 1, flops) * 1e9 / flops)) for n, r in runs.items()
    }
    speeds: dict[str, list[float]] = {name: [] for name in (*runs, "peak")}
    for _ in range(rounds):
        speeds["peak"].append(measure_peak_gflops(core, threads))
        for name, run in runs.items():
            speeds[name].append(turn(run, times[name], flops))
    speed = {name: median(each) for name, each in speeds.items()}
    ours, plain, packed = (speed.get(name, 0.0) for name in ("strassen", "plain", "packed"))
    c, bound = found["strassen"].config, found["strassen"].implementation.error_bound
    predicted = found["plain"].seconds / found["strassen"].seconds
    checked = (errors["strassen"], bound(workload, c), errors["plain"])
    return (
        f"{shape[0]:6d} {shape[1]:5d} {shape[2]:5d}  {c.mr:3d}x{c.nr:<2d}  {c.loop_order:8s} "
        f"{c.mc:6d} {ours:7.1f} {ours / speed['peak']:6.3f} {plain:7.1f} "
        f"{plain / speed['peak']:6.3f} {packed:7.1f} {ours / max(plain, packed):6.3f} "
        f"{predicted:6.3f}  {'  '.join(f'{error:.1e}' for error in checked)}"
    )


def main() -> None:
    """Measure the shapes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", choices=SETS, default="squares")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--core", metavar="NAME", help="a described core; by default this one")
    parser.add_argument("--repeat", type=int, default=7, metavar="ROUNDS")
    options = parser.parse_args()
    core = Core.named(options.core) if options.core else native_core()
    use_threads(options.threads)
    about = conditions(core, options.threads)
    print(", ".join(f"{key}: {value}" for key, value in about.items()))
    print(HEADER)
    for shape in SETS[options.shapes]:
        print(measure(shape, core, options.threads, options.repeat), flush=True)


if __name__ == "__main__":
    main()
