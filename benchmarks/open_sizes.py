"""One library for several sizes against a library compiled for each of them.

    python benchmarks/open_sizes.py                          batches of 1 to 8 of some models
    python benchmarks/open_sizes.py -m resnet50 -t 2 --batches 1..4
    python benchmarks/open_sizes.py -e minilm_l6 --lengths 1..512 --at 1/17/128/512
    python benchmarks/open_sizes.py -m resnet18 --images 64..256:32 --at 64/128/256
    python benchmarks/open_sizes.py --file det.onnx --images 32..640:32 --at 96/320/640 --peers

Of images the height and the width are open, and those measured are as high as wide. `--peers` runs
ONNX Runtime beside them, which takes any size: its ratio is ours to it.

Each size runs in turns in both libraries, in one process. A ratio above 1 means that the library
of all sizes is faster than that of the one size. Seconds to compile and bytes of the libraries are
shown as well: of all sizes together, and of one, the largest.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import onnx
import onnxruntime
from encoder_models import ENCODERS, save
from zoo_runs import add_model_option, in_turns, saved, timed

import tvm_blislike
from tvm_blislike.cli.options import parse_shapes
from tvm_blislike.hardware import native_core
from tvm_blislike.hardware.cpus import usable_cpus
from tvm_blislike.onnx.inputs import random_inputs

ROUNDS, SECONDS = 20, 2.0
_IMAGE = ("height", "width")
_MODELS = ("resnet18", "resnet50", "mobilenet_v2", "vgg11", "squeezenet1_1")


def with_open_batch(path: Path) -> Path:
    """Name the batch of a model's inputs and outputs, in place; return its path."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, path)
    return path


def with_open_image(path: Path) -> Path:
    """Name the height and the width of a model's image, in place; return its path."""
    model = onnx.load(path)
    batch, _, *sizes = model.graph.input[0].type.tensor_type.shape.dim
    batch.dim_value = 1
    for size, name in zip(sizes, _IMAGE, strict=True):
        size.dim_param = name
    # What exporters found out about one size.
    del model.graph.value_info[:]
    onnx.save(model, path)
    return path


def compiled(
    path: Path, names: Sequence[str], sizes: object, threads: int
) -> tuple[tvm_blislike.CompiledModel, float]:
    """Compile a model with values of the sizes of names; return it and the seconds that took."""
    started = time.perf_counter()
    shapes = {name: (sizes,) for name in names}
    options = {"threads": threads, "records": "none", "cache": False}
    return tvm_blislike.compile(path, shapes=shapes, **options), time.perf_counter() - started


def exported_bytes(model: tvm_blislike.CompiledModel) -> int:
    """Return the size of a model's library."""
    with tempfile.TemporaryDirectory() as folder:
        model.export(Path(folder) / "model.so")
        return (Path(folder) / "model.so").stat().st_size


def compare(
    path: Path,
    names: Sequence[str],
    sizes: Sequence[int],
    at: Sequence[int],
    threads: int,
    peers: bool = False,
) -> Iterator[float]:
    """Print a line for each of the sizes `at`, and yield its ratio."""
    every, seconds = compiled(path, names, sizes, threads)
    for size in at:
        alone, of_one = compiled(path, names, size, threads)
        inputs = random_inputs(alone.inputs)
        runs = [partial(model.run, inputs) for model in (every, alone)]
        for run in runs:
            run()
        times = [
            median(each) for each in in_turns([partial(timed, r) for r in runs], SECONDS, ROUNDS)
        ]
        yield times[1] / times[0]
        beside = f", ONNX Runtime {peer(path, inputs, threads) / times[0]:.2f}" if peers else ""
        print(
            f"  {size:4d}  {times[0] * 1e3:9.3f} ms, alone {times[1] * 1e3:9.3f} ms: "
            f"{times[1] / times[0]:.3f}{beside}",
            flush=True,
        )
    megabytes = exported_bytes(every) / 1e6, exported_bytes(alone) / 1e6
    print(
        f"  compiled in {seconds:.1f} s, the largest alone in {of_one:.1f} s; "
        f"{megabytes[0]:.1f} MB, the largest alone {megabytes[1]:.1f} MB"
    )


def peer(path: Path, inputs: dict[str, np.ndarray], threads: int) -> float:
    """Return the seconds that ONNX Runtime takes, behind ours.

    Not in turns: its threads wait awake for the next run, and keep ours from a CPU for 40 ms.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    run = partial(session.run, None, inputs)
    run()
    return median(timed(run) for _ in range(ROUNDS))


def values(text: str) -> tuple[int, ...]:
    """Return the values of a size that stays open, as the command line has them."""
    (sizes,) = parse_shapes([f"size={text}"]).values()
    if len(sizes) != 1:
        raise SystemExit(f"{text}: write several values of one size as {text.replace(',', '/')}")
    (found,) = sizes
    return (found,) if isinstance(found, int) else tuple(found)


def models(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Path, Sequence[str]]]:
    """Yield each model's name, its file, and the names of its open sizes."""
    for name in options.encoder or ():
        encoder = replace(ENCODERS[name], seq=max(values(options.lengths)))
        yield name, save(encoder, folder / f"{name}.onnx", is_open=True), ("seq",)
    for path in options.file or ():
        yield path.stem, with_open_image(Path(shutil.copy(path, folder))), _IMAGE
    if options.model or not (options.encoder or options.file):
        for name, path in saved(options.model or _MODELS):
            if options.images:
                yield name, with_open_image(path), _IMAGE
            else:
                yield name, with_open_batch(path), ("batch",)


def main() -> None:
    """Compare every model that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_option(parser)
    parser.add_argument("-e", "--encoder", action="append", choices=list(ENCODERS))
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--batches", default="1..8", metavar="1..8", help="or 1/2/4")
    parser.add_argument("--lengths", default="1..512", metavar="1..512", help="of encoders")
    parser.add_argument("--images", metavar="64..256:32", help="heights and widths")
    parser.add_argument("--file", action="append", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--peers", action="store_true", help="ONNX Runtime beside them")
    parser.add_argument("--at", metavar="1/17/128", help="of the sizes, those to be measured")
    options = parser.parse_args()
    print(f"machine: {native_core().name}, {len(usable_cpus())} CPUs, {platform.release()}")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path, names in models(options, Path(folder)):
            ranges = {("batch",): options.batches, ("seq",): options.lengths}
            sizes = values(ranges.get(tuple(names), options.images))
            for threads in options.threads or (1, 2):
                print(f"{name}, {threads} threads")
                at = values(options.at) if options.at else sizes
                ratios += compare(path, names, sizes, at, threads, options.peers)
    print(f"geometric mean {geometric_mean(ratios):.3f}, lowest {min(ratios):.3f}")


if __name__ == "__main__":
    main()
