"""torchvision's models by `torch.compile` here, by torch itself (eager) and by Inductor.

    python benchmarks/torch_models.py                      every model, 1 and 2 threads
    python benchmarks/torch_models.py -m resnet50 -t 1 --peers eager,freezing-last
    python benchmarks/torch_models.py --roads              the same model by three roads, see below

Batch 1, 3x224x224, fp32, random weights, `torch.inference_mode`. All backends of a line take turns
in one process, whose pools of threads have as many threads as the line says. Peers: torch's eager
mode, Inductor, Inductor with `freezing`, and with `freezing` and `max_autotune` (whose products of
matrices are templates for constant weights only); with "-last" images and weights are
channels_last. Milliseconds are medians, with half the distance of the quartiles; the ratio at the
end is the best of the peers beside this package. Errors are relative to the largest result of
eager mode.

`--roads` compares the model of an ONNX file, of `torch.export` and of `torch.compile`, all compiled
here; ratios are to the file. Needs torchvision.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from types import ModuleType
from typing import Any

import torch
from torch._inductor import config as inductor_config
from zoo_runs import in_turns, timed

import tvm_blislike
from tvm_blislike.bench.turns import wait_until_idle

MODELS = (
    *("resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0"),
    *("vit_b_16", "convnext_tiny", "squeezenet1_1"),
)
OURS = "blislike"
_LAST = "-last"
# What Inductor is told; None is eager mode.
_WAYS: dict[str, dict[str, bool] | None] = {
    "eager": None,
    "inductor": {},
    "freezing": {"freezing": True},
    "max-autotune": {"freezing": True, "max_autotune": True},
}
PEERS = tuple(way + layout for way in _WAYS for layout in ("", _LAST))
_SIZE = (1, 3, 224, 224)
_TURN_SECONDS = 0.15

# Returns a result for the images.
Run = Callable[[], Any]


@dataclass(frozen=True)
class Job:
    """A line: a model, its images, and what is asked for."""

    module: torch.nn.Module
    images: torch.Tensor
    threads: int


def job_of(name: str, threads: int) -> Job:
    """Return a model of torchvision with values that neither vanish nor grow.

    Normalizations take the statistics of an image, and parameters that are zero get values.
    """
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    module = torchvision().models.get_model(name, weights=None)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = None
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
        module.train()(torch.randn(2, *_SIZE[1:]))
    return Job(module.eval(), torch.randn(_SIZE), threads)


def torchvision() -> ModuleType:
    """Return torchvision, also where its library of operators was built for another torch.

    That is so beside torch's wheels for CPUs alone. The models need none of these operators, but
    the import registers shape functions of two that the library would have declared.
    """
    with contextlib.suppress(RuntimeError):
        return importlib.import_module("torchvision")
    for name in ("nms", "qnms"):
        signature = "(Tensor boxes, Tensor scores, float limit) -> Tensor"
        torch.library.define(f"torchvision::{name}", signature)
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


def contestant(name: str, job: Job) -> Run:
    """Return a run by a backend, compiled."""
    module, images = job.module, job.images
    if name == OURS:
        options = {"threads": job.threads}
        return partial(torch.compile(module, backend="tvm_blislike", options=options), images)
    if name.endswith(_LAST):
        module = copy.deepcopy(module).to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    way = _WAYS[name.removesuffix(_LAST)]
    if way is None:
        return partial(module, images)
    run = partial(torch.compile(module, options=way), images)
    # As an option alone, freezing has no effect: Dynamo looks at the process's own setting to make
    # parameters constants, and without that weights are packed anew in every run.
    with inductor_config.patch(way):
        run()
    return run


def by_file(job: Job) -> Run:
    """Return a run of the model in an ONNX file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(job.module, (job.images,), path, dynamo=True, verbose=False)
        return _runner(tvm_blislike.compile(path, threads=job.threads, cache=False), job)


def by_export(job: Job) -> Run:
    """Return a run of the model by torch.export."""
    program = torch.export.export(job.module, (job.images,))
    return _runner(tvm_blislike.compile(program, threads=job.threads, cache=False), job)


def _runner(model: tvm_blislike.CompiledModel, job: Job) -> Run:
    runner = model.runner()

    def run() -> torch.Tensor:
        (result,) = runner.run([job.images]).values()
        return torch.from_numpy(result)

    return run


ROADS = {
    "onnx file": by_file,
    "torch.export": by_export,
    "torch.compile": partial(contestant, OURS),
}


class _LateError(Exception):
    """A compilation took longer than it may."""


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise _LateError in what takes longer."""

    def stop(*_: object) -> None:
        raise _LateError(f"not compiled in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def prepared(ways: dict[str, Callable[[], Run]], seconds: int) -> dict[str, Run]:
    """Return the runs of those that could be compiled in time; others are named."""
    runs: dict[str, Run] = {}
    for name, way in ways.items():
        started = time.perf_counter()
        try:
            with limit(seconds):
                run = way()
                for _ in range(3):
                    run()
        except Exception as error:
            print(f"  {name} is left out: {type(error).__name__}: {error}"[:300], file=sys.stderr)
            continue
        print(f"  {name}: ready in {time.perf_counter() - started:.1f} s", file=sys.stderr)
        runs[name] = run
    return runs


def measured(runs: dict[str, Run], seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of each, which take turns."""

    def turn(run: Run) -> list[float]:
        wait_until_idle()
        usual = timed(run)
        return [1e3 * timed(run) for _ in range(max(1, min(20, int(_TURN_SECONDS / usual))))]

    samples = in_turns([partial(turn, run) for run in runs.values()], seconds, 5)
    return {name: [*chain(*found)] for name, found in zip(runs, samples, strict=True)}


def line_of(name: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one line in this process."""
    job = job_of(name, threads)
    ways = {OURS: partial(contestant, OURS, job)}
    ways |= {peer: partial(contestant, peer, job) for peer in options.peers.split(",")}
    if options.roads:
        ways = {road: partial(way, job) for road, way in ROADS.items()}
    with torch.inference_mode():
        wanted = job.module(job.images)
        runs = prepared(ways, options.limit)
        errors = {
            way: float((run() - wanted).abs().max() / wanted.abs().max())
            for way, run in runs.items()
        }
        if options.pause:
            input("ready: Enter starts the measurement\n")
        found = measured(runs, options.seconds)
    quarters = {way: quantiles(ms, n=4) for way, ms in found.items()}
    return {
        "name": name,
        "threads": threads,
        "ms": {way: median(ms) for way, ms in found.items()},
        "spread": {way: (each[2] - each[0]) / 2 for way, each in quarters.items()},
        "error": errors,
    }


def in_own_process(name: str, threads: int, arguments: list[str]) -> dict[str, Any]:
    """Measure one line in a process with so many threads."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "line.json"
        words = ["-m", name, "-t", str(threads), "--line", str(result)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, __file__, *arguments, *words]
        subprocess.run(command, env=environment, check=True)
        return json.loads(result.read_text())


def shown(line: dict[str, Any], base: str) -> str:
    """Return the text of a line: times, and ratios to the time of one."""
    ms, spread = line["ms"], line["spread"]
    cells = [f"{way} {ms[way]:.2f}±{spread[way]:.2f}" for way in ms]
    ratios = {way: value / ms[base] for way, value in ms.items() if way != base}
    if base == OURS and ratios:
        best = min(ratios, key=ratios.__getitem__)
        cells.append(f"best peer {ratios[best]:.3f}x ({best})")
    else:
        cells += [f"{way} {value:.3f}" for way, value in ratios.items()]
    error = max(line["error"].values())
    return f"{line['name']:18s} {line['threads']}t  {'  '.join(cells)}  error {error:.0e}"


def summary(lines: list[dict[str, Any]]) -> str:
    """Return the mean and the lowest of the ratios to the best peers."""
    ratios = [
        min(ms for way, ms in line["ms"].items() if way != OURS) / line["ms"][OURS]
        for line in lines
    ]
    return f"geometric mean {geometric_mean(ratios):.3f}x, lowest {min(ratios):.3f}x"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", action="append", metavar="NAME", help="of torchvision")
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--roads", action="store_true", help="compare roads into this package")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each line")
    parser.add_argument("--limit", type=int, default=240, help="seconds of one compilation")
    parser.add_argument("--pause", action="store_true", help="wait for Enter before measuring")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--line", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.line:
        line = line_of(options.model[-1], options.threads[-1], options)
        options.line.write_text(json.dumps(line))
        return
    lines = []
    for name in options.model or MODELS:
        for threads in options.threads or (1, 2):
            lines.append(in_own_process(name, threads, sys.argv[1:]))
            print(shown(lines[-1], "onnx file" if options.roads else OURS), flush=True)
    if not options.roads:
        print(summary(lines))
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
