"""Two threads on cores that share a cache, and on cores that do not.

    python benchmarks/shared_cache.py                           what a round trip of a line takes
    python benchmarks/shared_cache.py -m densenet121 --peers    with ONNX Runtime and OpenVINO
    python benchmarks/shared_cache.py -l old.so -l new.so       libraries that `compile -o` has made

The CPUs of a virtual machine move: for minutes they share an L3, then they do not. So a run counts
for the state that the machine is in both before and behind it ("near": a line goes to the other CPU
and back in less than NEAR_NS), and there is a figure for each state that was met, with the number
of samples. All take turns in one process; milliseconds are medians.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
from batches import PEERS, peer, sample
from zoo_runs import add_model_option, timed, zoo

import tvm_blislike
from tvm_blislike.bench.turns import wait_until_idle
from tvm_blislike.export.link import find_builder, run_tool
from tvm_blislike.runtime.threads import cpus_by_use

# A round trip between cores of Zen 4 takes 50 to 65 ns through an L3, 310 to 380 without one.
NEAR_NS = 150.0
TRIPS, THREADS = 5_000, 2

Run = Callable[[], object]


class Handover:
    """Times a line of memory that goes from one CPU to the other one and back."""

    def __init__(self, folder: Path) -> None:
        library = folder / "handover.so"
        source = Path(__file__).with_name("handover.c")
        command = find_builder(tvm_blislike.native_core().target_config())
        command = [*command, "-O2", "-shared", "-fPIC", "-o", str(library), str(source)]
        run_tool([*command, "-lpthread"], "build the clock")
        self._round_trip = ctypes.CDLL(str(library)).round_trip_ns
        self._round_trip.restype = ctypes.c_double

    def nanoseconds(self) -> float:
        """Return what a round trip takes now."""
        usable = os.sched_getaffinity(0)
        first, second, *_ = cpus_by_use()
        try:
            return float(self._round_trip(first, second, ctypes.c_long(TRIPS)))
        finally:
            os.sched_setaffinity(0, usable)

    def state(self) -> str:
        """Return whether the CPUs share a cache now: "near" or "far"."""
        return "near" if self.nanoseconds() < NEAR_NS else "far"


def of_model(name: str, peers: bool) -> dict[str, Run]:
    """Return runs of a model: ours, and those of the peers if asked for."""
    network = zoo.build(name, 1)
    images, model = [sample(network)], tvm_blislike.compile(network, threads=THREADS)
    others = PEERS if peers else ()
    ours = {f"{name} ours": lambda: model.run(images)}
    return ours | {f"{name} {engine}": peer(engine, name, 1, THREADS) for engine in others}


def of_library(path: Path) -> dict[str, Run]:
    """Return a run of a compiled library."""
    loaded = tvm_blislike.CompiledModel.load(path)
    inputs = [np.full(spec.shape, 0.5, spec.dtype) for spec in loaded.inputs]
    return {path.stem: lambda: loaded.run(inputs)}


def measured(
    runs: Mapping[str, Run], handover: Handover, seconds: float
) -> dict[tuple[str, str], list[float]]:
    """Return milliseconds of each run in each state."""
    found: dict[tuple[str, str], list[float]] = {}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, run in runs.items():
            wait_until_idle()
            before = handover.state()
            run()
            taken = median(timed(run) for _ in range(5))
            wait_until_idle()
            if handover.state() == before:
                found.setdefault((name, before), []).append(1e3 * taken)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_option(parser)
    parser.add_argument("-l", "--library", action="append", type=Path, metavar="FILE")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    if len(cpus_by_use()) < THREADS:
        raise SystemExit("this process may use one CPU only")
    with tempfile.TemporaryDirectory() as folder:
        handover = Handover(Path(folder))
        print(f"a line goes to the other CPU and back in {handover.nanoseconds():.0f} ns now")
        runs: dict[str, Run] = {}
        for name in options.model or ():
            runs |= of_model(name, options.peers)
        for path in options.library or ():
            runs |= of_library(path)
        found = measured(runs, handover, options.seconds) if runs else {}
    for name in runs:
        cells = [
            f"{state} {median(samples):8.3f} ms ({len(samples)})"
            for state in ("near", "far")
            if (samples := found.get((name, state)))
        ]
        print(f"{name:28s} {'   '.join(cells)}")


if __name__ == "__main__":
    main()
