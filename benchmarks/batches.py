"""Batches: the time of an image with depth first over images, without, and of a batch of one.

    python benchmarks/batches.py                        three models, batch 8, 1 and 2 threads
    python benchmarks/batches.py -m vgg16 -b 4 -t 1     others
    python benchmarks/batches.py --peers                with ONNX Runtime and OpenVINO (f32)

All of a line take turns in one process, and the milliseconds are medians, divided by the batch.
"whole" is the plan without depth first, "chosen" the model's choice, whose note follows; the ratios
are the speed of an image beside that of batch 1, of "whole" and of the best of the peers.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from integer_models import job_on
from zoo_runs import add_model_option, in_turns, timed, zoo

import tvm_blislike
from tvm_blislike import Constraints
from tvm_blislike.bench.engines import load_engine
from tvm_blislike.bench.turns import pinned, wait_until_idle
from tvm_blislike.hardware.cpus import usable_cpus

MODELS = ("resnet18", "resnet50", "mobilenet_v2")
PEERS = ("onnxruntime", "openvino")


def ours(name: str, batch: int, threads: int, images: int | None) -> tuple[Callable, str]:
    """Return a run of a model compiled here, and what was decided about its batch."""
    limits = Constraints(images=images)
    network = zoo.build(name, batch)
    model = tvm_blislike.compile(network, threads=threads, constraints=limits)
    values = [sample(network)]
    model.run(values)
    notes = [note for note in model.explain().notes if note.startswith("batch of")]
    return lambda: model.run(values), " ".join(notes)


def peer(engine: str, name: str, batch: int, threads: int) -> Callable:
    """Return a run of another engine."""
    model = zoo.build(name, batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(model, path)
        job = job_on(path, {"input": sample(model)}, threads, tvm_blislike.native_core())
        return load_engine(engine, job)[0].run


def sample(model: onnx.ModelProto) -> np.ndarray:
    """Return the images that a model takes."""
    shape = [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def compare(name: str, batch: int, threads: int, options: argparse.Namespace) -> str:
    """Return a line of the table."""
    chosen, note = ours(name, batch, threads, options.images)
    runs = {"batch 1": ours(name, 1, threads, None)[0]}
    runs |= {"whole": ours(name, batch, threads, 0)[0], "chosen": chosen}
    if options.peers:
        runs |= {engine: peer(engine, name, batch, threads) for engine in PEERS}

    def turn(run: Callable) -> float:
        wait_until_idle()
        run()
        return median(timed(run) for _ in range(3))

    turns = [lambda run=run: turn(run) for run in runs.values()]
    samples = in_turns(turns, options.seconds, 5)
    ms = {key: 1e3 * median(found) for key, found in zip(runs, samples, strict=True)}
    ms = {key: value / (1 if key == "batch 1" else batch) for key, value in ms.items()}
    others = {"batch 1": ms["batch 1"], "whole": ms["whole"]}
    if options.peers:
        others["best peer"] = min(ms[engine] for engine in PEERS)
    cells = [f"{key} {value:7.3f}" for key, value in ms.items()]
    cells += [f"/{key} {value / ms['chosen']:5.3f}x" for key, value in others.items()]
    return f"{name:14s} {batch:3d} {threads}t  {'  '.join(cells)}\n    {note}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_option(parser)
    parser.add_argument("-b", "--batch", action="append", type=int, metavar="N")
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--images", type=int, metavar="N", help="at a time, instead of the choice")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each line")
    options = parser.parse_args()
    for name in options.model or MODELS:
        for batch in options.batch or (8,):
            for threads in options.threads or (1, 2):
                # Peers keep the process to a line's CPUs: the next line has all again.
                with pinned(usable_cpus()):
                    print(compare(name, batch, threads, options), flush=True)


if __name__ == "__main__":
    main()
