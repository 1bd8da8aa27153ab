"""What the benchmarks of whole models have in common: the models, and commands run on them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Add `-m NAME`, which may be given several times."""
    parser.add_argument("-m", "--model", action="append", choices=zoo.names(), metavar="NAME")


def saved(names: Sequence[str] | None) -> Iterator[tuple[str, Path]]:
    """Yield models, by default those of the bars, each with its ONNX file; one file at a time."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names or MODELS:
            path = zoo.save(name, Path(folder) / f"{name}.onnx")
            yield name, path
            path.unlink()


def printed(*arguments: object) -> dict[str, Any]:
    """Return the JSON that a command of tvm-blislike prints, run in a process of its own."""
    command = [sys.executable, "-m", "tvm_blislike", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)
