"""Quantized models side by side with other engines and with fp32, in one interleaved run each.

    python benchmarks/integer_models.py                    every model of the bars, 1 and 2 threads
    python benchmarks/integer_models.py -m resnet50 -t 1   one of them
    python benchmarks/integer_models.py --core x86-64-v3   ours for another core, and no peers

Models are quantized by ONNX Runtime's quantizer, with a scale per channel, on seeded random
samples, and kept in build/integer_models. Each run is a process of its own in which this library's
int8 and fp32 and the peers' int8 take turns on the same pinned CPUs. Printed are medians in
milliseconds, the speed of our int8 relative to the faster peer and to our fp32, and in brackets the
relative root mean square of each engine's difference from the float simulation of the quantized
model, ONNX Runtime without optimizations: for fp32 what quantizing costs. Peers compute in 8 bits
by themselves.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
from zoo_runs import add_model_option, in_turns, saved, timed

from tvm_blislike.bench.engines import Engine, EngineUnavailableError, Job, load_engine
from tvm_blislike.bench.turns import wait_until_idle
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.onnx.graph_inputs import resolve_inputs
from tvm_blislike.onnx.inputs import random_inputs
from tvm_blislike.quantize import quantize
from tvm_blislike.quantize.data import random_samples
from tvm_blislike.runtime.threads import cpus_by_use, use_threads

FOLDER = Path(__file__).parents[1] / "build" / "integer_models"
MODELS = ("resnet18", "resnet50", "vgg16", "mobilenet_v2", "googlenet", "squeezenet1_1")
OURS, FP32, PEERS = "blislike", "blislike fp32", ("onnxruntime", "openvino")
SAMPLES, SECONDS, ROUNDS, RUNS = 4, 6.0, 10, 3


def quantized(name: str, model: Path) -> Path:
    """Return the quantized model, which is made where it is missing."""
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        proto = onnx.load(model)
        quantize(proto, random_samples(resolve_inputs(proto, {}), SAMPLES), path)
    return path


def simulated(model: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of the model computed in floats, step by step."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(model), options).run(None, dict(inputs))


def error(outputs: Mapping[str, np.ndarray], expected: list[np.ndarray]) -> float:
    """Return the relative root mean square of the difference, the largest of all outputs."""
    pairs = zip(outputs.values(), (each.astype("float64") for each in expected), strict=True)
    return max(float(np.sqrt(((a - b) ** 2).sum() / (b**2).sum())) for a, b in pairs)


def turn(engine: Engine) -> float:
    """Return the median of some runs; the first, uncounted, wakes the pool."""
    wait_until_idle()
    engine.run()
    return median(timed(engine.run) for _ in range(RUNS))


def measured(
    integers: Path,
    floats: Path,
    threads: int,
    inputs: Mapping[str, np.ndarray] | None = None,
    core: Core | None = None,
    peers: Sequence[str] = PEERS,
) -> dict[str, dict[str, float]]:
    """Return milliseconds and error of each engine that takes the model; by default this core."""
    core = core or native_core()
    inputs = inputs or random_inputs(resolve_inputs(onnx.load(integers), {}), seed=SAMPLES)
    job = job_on(integers, inputs, threads, core)
    entrants = {OURS: (OURS, job), FP32: (OURS, replace(job, path=str(floats)))}
    if core == native_core():
        # Peers find out by themselves what the machine has.
        entrants |= {peer: (peer, job) for peer in peers}
    return by_turns(entrants, simulated(integers, inputs))


def job_on(model: Path, inputs: Mapping[str, np.ndarray], threads: int, core: Core) -> Job:
    """Return what engines get, which run on the first CPUs from here on."""
    names = [value.name for value in onnx.load(model).graph.output]
    use_threads(threads)
    os.sched_setaffinity(0, cpus_by_use()[:threads])
    return Job(str(model), inputs, names, threads, core, records="none")


def by_turns(
    entrants: Mapping[str, tuple[str, Job]], expected: list[np.ndarray]
) -> dict[str, dict[str, float]]:
    """Return milliseconds and error of each engine that takes its job; they take turns."""
    engines, errors = {}, {}
    for name, (engine, job) in entrants.items():
        try:
            engines[name], outputs = load_engine(engine, job)
            errors[name] = error(outputs, expected)
        except EngineUnavailableError as reason:
            print(f"skipped {name}: {reason}", file=sys.stderr)
    samples = in_turns([partial(turn, engine) for engine in engines.values()], SECONDS, ROUNDS)
    return {
        name: {"ms": 1e3 * median(times), "error": errors[name]}
        for name, times in zip(engines, samples, strict=True)
    }


def speeds(result: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
    """Return the speed of our int8 relative to the fastest peer and to our fp32."""
    best = min((result[peer]["ms"] for peer in PEERS if peer in result), default=math.nan)
    return best / result[OURS]["ms"], result[FP32]["ms"] / result[OURS]["ms"]


def line(name: str, threads: int, result: Mapping[str, Mapping[str, float]]) -> str:
    """Return one row of the table."""
    cells = "  ".join(f"{engine} {x['ms']:7.2f} ({x['error']:.1e})" for engine, x in result.items())
    peer, own = speeds(result)
    of_peers = "" if math.isnan(peer) else f"  /best peer {peer:.2f}x"
    return f"{name:14s} {threads}t  {cells}{of_peers}  /fp32 {own:.2f}x"


def in_a_process(script: str, *arguments: object) -> dict[str, Any]:
    """Return what a benchmark measures in a process of its own: its JSON with `--times`."""
    command = [sys.executable, script, "--times", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def compare(
    runs: Iterable[tuple[str, Callable[[int], dict[str, Any]]]], threads: Sequence[int] | None
) -> None:
    """Print a row for each model and number of threads, by default 1 and 2, then the means."""
    found: dict[int, list[tuple[float, float]]] = {}
    for name, run in runs:
        for count in threads or (1, 2):
            result = run(count)
            print(line(name, count, result), flush=True)
            found.setdefault(count, []).append(speeds(result))
    for count, rows in found.items():
        summary(count, rows)


def summary(threads: int, rows: Sequence[tuple[float, float]]) -> None:
    """Print the means of what `speeds` returned for all models."""
    names = ("the best peer", "our fp32")
    for what, values in zip(names, zip(*rows, strict=True), strict=True):
        if any(map(math.isnan, values)):
            continue
        print(
            f"{threads}t relative to {what}: geometric mean {geometric_mean(values):.3f}x,"
            f" lowest {min(values):.3f}x"
        )


def main() -> None:
    """Compare, or, in a process of its own, measure one model."""
    if sys.argv[1:2] == ["--times"]:
        integers, floats, name, threads = sys.argv[2:]
        core = Core.named(name) if name else native_core()
        print(json.dumps(measured(Path(integers), Path(floats), int(threads), core=core)))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_model_option(parser)
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--core", default="", metavar="NAME", help="by default this machine's")
    options = parser.parse_args()
    models = saved(options.model, MODELS)
    files = ((name, quantized(name, model), model) for name, model in models)
    run = partial(in_a_process, __file__)
    compare(((name, partial(run, *each, options.core)) for name, *each in files), options.threads)


if __name__ == "__main__":
    main()
