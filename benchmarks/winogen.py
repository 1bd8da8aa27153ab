"""Winogen's 28 layers: Winograd in two and in one dimension, direct convolution, im2col.

    python benchmarks/winogen.py layers.jsonl                    every layer, one thread
    python benchmarks/winogen.py layers.jsonl --seconds 50       go on later where this stops
    python benchmarks/winogen.py layers.jsonl --report > results.txt

The layers are those of the thesis, tables 4.2 and 4.3: stride 1, square kernels, as much padding as
keeps the size, batch 1. Each implementation computes in its own layout with the configuration that
its cost model prefers. "model" is the layer as an ONNX model of one node, NCHW in and out, compiled
by this library with its own choice, layouts included; "onnxruntime" is the same model there.

GFLOPS count the multiplications of direct convolution, whatever an algorithm really needs. Errors
are the largest difference from a convolution in float64, relative to its largest result. In each
round the sides take turns; a figure is the median over the rounds. The FMA peak is measured before
and after each layer, and the larger one counts. Results are appended to the file, a line per layer;
layers that it has already are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from layers import Layer, Run, choice, conditions, random_operands, read_lines, take_turns
from onnx import ModelProto, TensorProto, helper, numpy_helper
from winogen_report import report

import tvm_blislike
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.probe import measure_peak_gflops
from tvm_blislike.runtime.threads import use_threads
from tvm_blislike.schedules import get_implementation

# Network: (height and width, ci, co, kernel), ...
LAYERS = {
    "AlexNet": ((27, 96, 256, 5), (13, 256, 384, 3), (13, 384, 384, 3), (13, 384, 256, 3)),
    "InceptionV4": (
        *((299, 3, 32, 3), (149, 32, 32, 3), (147, 64, 64, 3), (73, 64, 96, 3)),
        (35, 64, 96, 3),
    ),
    "MobileNetV2": (
        *((224, 3, 32, 3), (112, 32, 32, 3), (112, 56, 56, 3), (56, 128, 128, 3)),
        *((28, 256, 256, 3), (14, 512, 512, 3)),
    ),
    "ResNet-152": ((56, 64, 64, 3), (28, 128, 128, 3), (14, 256, 256, 3), (7, 512, 512, 3)),
    "VGG": (
        *((224, 3, 64, 3), (224, 64, 64, 3), (112, 64, 128, 3), (112, 128, 128, 3)),
        *((56, 128, 256, 3), (56, 256, 256, 3), (28, 256, 512, 3), (28, 512, 512, 3)),
        (14, 512, 512, 3),
    ),
}
SIDES = ("conv2d_winograd", "conv2d_winograd_1d", "conv2d_direct", "conv2d_im2col")
PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnxruntime")


@dataclass(frozen=True)
class Row:
    """One layer: figures by side, of those that apply."""

    layer: str
    network: str
    size: tuple[int, int, int, int]
    gflop: float
    seconds: dict[str, float]
    errors: dict[str, float]
    workspace_bytes: dict[str, int]
    configs: dict[str, str]
    peak_gflops: float


def workloads() -> list[tuple[str, Conv2dWorkload]]:
    """Return the layers with the name of their network."""
    return [
        (network, Conv2dWorkload(1, ci, size, size, co, k, k, padding=(k // 2,) * 4))
        for network, layers in LAYERS.items()
        for size, ci, co, k in layers
    ]


def title(network: str, workload: Conv2dWorkload) -> str:
    """Return the name of a layer: two networks have 512 channels of 14x14."""
    return f"{network}: {workload}"


def model_of(workload: Conv2dWorkload, weights: np.ndarray) -> ModelProto:
    """Return an ONNX model of one convolution without bias."""
    w, kind = workload, TensorProto.FLOAT
    node = helper.make_node("Conv", ["x", "weights"], ["y"], pads=w.padding)
    inputs = [helper.make_tensor_value_info("x", kind, [w.n, w.ci, w.h, w.w])]
    outputs = [helper.make_tensor_value_info("y", kind, [w.n, w.co, w.oh, w.ow])]
    constants = [numpy_helper.from_array(weights, "weights")]
    graph = helper.make_graph([node], "layer", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def in_float64(workload: Conv2dWorkload, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the result of an image in float64: a product for each tap of the kernel."""
    w = workload
    top, left, bottom, right = w.padding
    padded = np.pad(data[0].astype("f8"), ((0, 0), (top, bottom), (left, right)))
    out = np.zeros((w.co, w.oh * w.ow))
    for y, x in np.ndindex(w.kh, w.kw):
        window = padded[:, y : y + w.oh, x : x + w.ow].reshape(w.ci, -1)
        out += weights[:, :, y, x].astype("f8") @ window
    return out.reshape(1, w.co, w.oh, w.ow)


def measure(network: str, workload: Conv2dWorkload, core: Core, rounds: int) -> Row:
    """Compile every implementation, compare with float64, and time one layer."""
    w, (data, weights) = workload, random_operands(workload)
    chosen = {name: choice(name, w, core) for name in SIDES}
    configs = {name: config for name, config in chosen.items() if config is not None}
    layers = {name: Layer(w, c, core, data, weights) for name, c in configs.items()}
    model = model_of(w, weights)
    compiled = tvm_blislike.compile(model, core, threads=1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    runs: dict[str, Run] = {name: layer.run for name, layer in layers.items()}
    runs["model"] = lambda: compiled.run({"x": data})
    runs["onnxruntime"] = lambda: session.run(None, {"x": data})
    peaks = [measure_peak_gflops(core, 1)]
    seconds = take_turns(runs, rounds)
    peaks.append(measure_peak_gflops(core, 1))
    results = {name: layer.result() for name, layer in layers.items()}
    results |= {"model": compiled.run({"x": data})["y"], "onnxruntime": runs["onnxruntime"]()[0]}
    wanted = in_float64(w, data, weights)
    largest = np.abs(wanted).max()
    sizes = {n: get_implementation(n).workspace_bytes(w, c, 1) for n, c in configs.items()}
    return Row(
        layer=title(network, w),
        network=network,
        size=(w.h, w.ci, w.co, w.kh),
        gflop=2 * w.macs / 1e9,
        seconds=seconds,
        errors={n: float(np.abs(r - wanted).max() / largest) for n, r in results.items()},
        workspace_bytes=sizes,
        configs={name: config.to_json() for name, config in configs.items()},
        peak_gflops=max(peaks),
    )


def append(
    file: Path, todo: Iterable[tuple[str, Conv2dWorkload]], limit: float, rounds: int
) -> None:
    """Measure layers until the time is over; a line of the file each."""
    core, started = native_core(), time.monotonic()
    use_threads(1)
    with file.open("a") as out:
        print(json.dumps(conditions(core, PACKAGES)), file=out)
        for network, workload in todo:
            if time.monotonic() - started > limit:
                return
            row = measure(network, workload, core, rounds)
            print(json.dumps(asdict(row)), file=out, flush=True)


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="results, one JSON object per line")
    parser.add_argument("--report", action="store_true", help="print the tables")
    parser.add_argument("--layers", default=":", metavar="A:B", help="slice of the 28 layers")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then stop")
    parser.add_argument("--repeat", type=int, default=9, metavar="ROUNDS")
    options = parser.parse_args()
    about, rows = read_lines(options.file)
    if options.report:
        report(about, list(rows.values()), SIDES)
        return
    first, last = (int(part) if part else None for part in options.layers.split(":"))
    todo = [(network, w) for network, w in workloads()[first:last] if title(network, w) not in rows]
    append(options.file, todo, options.seconds, options.repeat)


if __name__ == "__main__":
    main()
