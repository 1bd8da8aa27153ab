"""The dataflows of YFlows against each other and against `conv2d_direct`: figures 2 and 7.

    python benchmarks/dataflows.py                          on this machine, as in results/
    python benchmarks/dataflows.py --simulate neoverse-n1   inner loops, by llvm-mca; no board
    python benchmarks/dataflows.py --image 112 --filters 256

Layers are the paper's (section 5): 3x3, 4x4 and 5x5 windows with strides of 1 and 2, fp32, without
padding; `--channels` of the input are as many as fill its vectors several times. Sides are the
basic dataflows (OS, WS and IS: stationary outputs, weights and inputs, nothing else in registers),
and those with auxiliary stationarities, in the order in which registers are given away: OS+W keeps
weights first, then inputs, OS+I the other way round. Variables have `--vectors` registers. Each
side has the slab that the cost model takes. Here they take turns in every round and the median
counts; simulated, it is the loop with the most multiply-adds, and no cache is in it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from statistics import median

import numpy as np
from layers import Layer, choice, conditions, library, random_operands, take_turns

from tvm_blislike.cost_models.conv2d_dataflow.anchors import period
from tvm_blislike.cost_models.conv2d_dataflow.candidates import configs
from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, WEIGHT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.geometry import DataflowGeometry
from tvm_blislike.cost_models.conv2d_dataflow.room import (
    is_short,
    most_inputs,
    most_outputs,
    most_weights,
)
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.inspect.mca import speed
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.probe import measure_peak_gflops
from tvm_blislike.runtime.threads import use_threads
from tvm_blislike.tvm_seams.executables import code_of
from tvm_blislike.tvm_seams.machine_code import innermost_loops

_MOST = {"weights": most_weights, "inputs": most_inputs, "outputs": most_outputs}
# Anchor, and what gets registers in which order.
SIDES = {
    "OS": (OUTPUT, ()),
    "WS": (WEIGHT, ()),
    "IS": (INPUT, ()),
    "OS+W": (OUTPUT, ("weights", "inputs")),
    "OS+I": (OUTPUT, ("inputs", "weights")),
    "WS+O": (WEIGHT, ("outputs", "inputs")),
    "WS+I": (WEIGHT, ("inputs", "outputs")),
    "IS+O": (INPUT, ("outputs", "weights")),
    "IS+W": (INPUT, ("weights", "outputs")),
}
DIRECT = "direct"


def layers(options: argparse.Namespace) -> Iterator[Conv2dWorkload]:
    """Yield the layers: (window, image) of each stride."""
    sizes = itertools.product((1, 2), options.image, options.window)
    for stride, size, window in sizes:
        for filters in options.filters:
            shape = (1, options.channels, size, size, filters, window, window)
            yield Conv2dWorkload(*shape, (stride, stride))


def sides(workload: Conv2dWorkload, core: Core, vectors: int) -> dict[str, Config]:
    """Return the configuration of each side."""
    lanes = core.lanes(workload.types.acc)
    start = next(c for c in configs(workload, core, 1) if c.nr == vectors * lanes)
    plain = start.with_fields(weights=0, inputs=0, outputs=0, channels=1)
    found = {name: allocated(workload, plain, core, *side) for name, side in SIDES.items()}
    return {**found, DIRECT: choice("conv2d_direct", workload, core)}


def allocated(
    workload: Conv2dWorkload,
    config: DataflowConfig,
    core: Core,
    anchor: str,
    kinds: tuple[str, ...],
) -> DataflowConfig:
    """Return a configuration whose registers go to the kinds of variables, one after the other."""
    c = config.with_fields(anchor=anchor)
    for kind in kinds:
        most = _MOST[kind](workload, c, core)
        kept = (c.with_fields(**{kind: number}) for number in range(most, -1, -1))
        c = next(each for each in kept if is_short(workload, each))
    return c.with_fields(unroll=period(DataflowGeometry(workload, c).sizes, c))


def measured(workload: Conv2dWorkload, core: Core, vectors: int, rounds: int) -> dict[str, float]:
    """Return the seconds of each side, which agree."""
    data, weights = random_operands(workload)
    chosen = sides(workload, core, vectors)
    made = {n: Layer(workload, c, core, data, weights) for n, c in chosen.items()}
    seconds = take_turns({name: layer.run for name, layer in made.items()}, rounds)
    wanted = made[DIRECT].result()
    for layer in made.values():
        limit = 1e-5 * np.abs(wanted).max()
        np.testing.assert_allclose(layer.result(), wanted, rtol=0, atol=limit)
    return seconds


def label(workload: Conv2dWorkload) -> str:
    """Return window, image, filters and stride as the paper's figures name them."""
    w = workload
    return f"({w.kh}, {w.h}, {w.co}) s{w.stride[0]}"


def compare(options: argparse.Namespace) -> None:
    """Print a line per layer: times relative to OS+W, whose share of the FMA peak stands last."""
    core = native_core()
    use_threads(1)
    print(json.dumps(conditions(core, ("apache-tvm", "numpy"), options=vars(options))))
    names = [*SIDES, DIRECT]
    for vectors in options.vectors:
        print(f"\nvariables of {vectors} registers; times over that of OS+W")
        print(f"{'layer':18s}" + "".join(f"{name:>8s}" for name in names) + "  OS+W ms  of peak")
        found: list[dict[str, float]] = []
        for workload in layers(options):
            seconds = measured(workload, core, vectors, options.repeat)
            peak = measure_peak_gflops(core, 1)
            own = seconds["OS+W"]
            found.append({name: seconds[name] / own for name in names})
            times = "".join(f"{found[-1][name]:8.2f}" for name in names)
            of_peak = 2 * workload.macs / own / 1e9 / peak
            print(f"{label(workload):18s}{times}{1e3 * own:9.3f}{of_peak:9.2f}", flush=True)
        middle = "".join(f"{median(each[name] for each in found):8.2f}" for name in names)
        print(f"{'median':18s}{middle}")


def simulate(options: argparse.Namespace) -> None:
    """Print the inner loop of each side on a core: cycles and instructions per multiply-add."""
    core = Core.named(options.simulate)
    print(f"{core.name}: cycles of llvm-mca, instructions, loads and spills per multiply-add")
    for vectors in options.vectors:
        print(f"\nvariables of {vectors} registers")
        for workload in layers(options):
            print(label(workload))
            for name, config in sides(workload, core, vectors).items():
                text = code_of(library(workload, config, core), "asm")
                loop = max(innermost_loops(text), key=lambda each: sum(i.is_fma for i in each))
                found = speed(loop, core)
                counts = found.counts
                print(
                    f"  {name:7s}{found.cycles / counts.fmas:7.2f}{len(loop) / counts.fmas:7.2f}"
                    f"{counts.loads / counts.fmas:7.2f}{counts.spills / counts.fmas:7.2f}",
                    flush=True,
                )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--simulate", metavar="CORE", help="llvm-mca instead of this machine")
    parser.add_argument("--image", type=int, nargs="+", default=[56, 112])
    parser.add_argument("--window", type=int, nargs="+", default=[3, 4, 5])
    parser.add_argument("--filters", type=int, nargs="+", default=[128])
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--vectors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=5, metavar="ROUNDS")
    options = parser.parse_args()
    (simulate if options.simulate else compare)(options)


if __name__ == "__main__":
    main()
