"""What the benchmarks of whole models have in common: the models, and commands run on them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import zoo

MODELS = (
    "vgg11",
    "vgg16",
    "resnet18",
    "resnet34",
    "resnet50",
    "googlenet",
    "squeezenet1_0",
    "squeezenet1_1",
    "mobilenet_v1",
    "mobilenet_v2",
)
# What is compared with other engines: three more, that nothing was ever fitted to.
COMPARED = (*MODELS, "densenet121", "alexnet", "mnasnet")


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Add `-m NAME`, which may be given several times."""
    parser.add_argument("-m", "--model", action="append", choices=zoo.names(), metavar="NAME")


def saved(
    names: Sequence[str] | None, otherwise: Sequence[str] = MODELS
) -> Iterator[tuple[str, Path]]:
    """Yield the models of these names, each with its ONNX file; one file at a time."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names or otherwise:
            path = zoo.save(name, Path(folder) / f"{name}.onnx")
            yield name, path
            path.unlink()


def timed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def in_turns(
    turns: Sequence[Callable[[], float]], seconds: float, rounds: int
) -> list[list[float]]:
    """Return what each function returns, called in turns: so long, and so often at least."""
    samples: list[list[float]] = [[] for _ in turns]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < rounds:
        for turn, found in zip(turns, samples, strict=True):
            found.append(turn())
    return samples


def printed(*arguments: object) -> dict[str, Any]:
    """Return the JSON that a command of tvm-blislike prints, run in a process of its own."""
    command = [sys.executable, "-m", "tvm_blislike", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)
