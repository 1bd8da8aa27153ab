"""`--precision fast` side by side with OpenVINO in bf16 and with fp32, in one interleaved run each.

    python benchmarks/precisions.py                    every model of the bars, 1 and 2 threads
    python benchmarks/precisions.py -m resnet50 -t 1   one of them
    python benchmarks/precisions.py --precision bf16   another precision than fast

Networks are those of the zoo, encoders those of `encoder_models.py`. OpenVINO gets bf16 as its
hint, its default where the processor has AMX (f16 beside `--precision fp16`). How they are
measured, and what is printed: see `integer_models.py`; errors are relative to our fp32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
from encoder_models import ENCODERS, save
from encoders import tokens
from integer_models import FP32, OURS, SAMPLES, by_turns, compare, in_a_process, job_on
from zoo_runs import saved

from tvm_blislike.bench.engines import load_engine
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.hardware import native_core
from tvm_blislike.onnx.graph_inputs import resolve_inputs
from tvm_blislike.onnx.inputs import random_inputs

NETWORKS = ("resnet18", "resnet50", "vgg16", "mobilenet_v2")
PEER = "openvino"


def measured(name: str, path: Path, precision: str, threads: int) -> dict[str, dict[str, float]]:
    """Return milliseconds and error of each engine."""
    inputs = (
        tokens(ENCODERS[name])
        if name in ENCODERS
        else random_inputs(resolve_inputs(onnx.load(path), {}), seed=SAMPLES)
    )
    whole = job_on(path, inputs, threads, native_core())
    narrow = replace(whole, constraints=Constraints(precision=precision))
    _, expected = load_engine(OURS, whole)
    entrants = {OURS: (OURS, narrow), FP32: (OURS, whole), PEER: (PEER, narrow)}
    return by_turns(entrants, list(expected.values()))


def files(names: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield models with their ONNX files, one at a time."""
    for name in names:
        if name not in ENCODERS:
            yield from saved([name])
            continue
        with tempfile.TemporaryDirectory() as folder:
            yield name, save(ENCODERS[name], Path(folder) / f"{name}.onnx")


def main() -> None:
    """Compare, or, in a process of its own, measure one model."""
    if sys.argv[1:2] == ["--times"]:
        name, path, precision, threads = sys.argv[2:]
        print(json.dumps(measured(name, Path(path), precision, int(threads))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-m", "--model", action="append", choices=[*NETWORKS, *ENCODERS])
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--precision", default="fast", choices=("bf16", "fp16", "fast"))
    options = parser.parse_args()
    run = partial(in_a_process, __file__)
    models = files(options.model or [*NETWORKS, *ENCODERS])
    compare(((n, partial(run, n, path, options.precision)) for n, path in models), options.threads)


if __name__ == "__main__":
    main()
