"""Weights stored in fewer bytes, and models in half precision, beside fp32: one interleaved run.

    python benchmarks/storage.py layers              products of one row, weights from memory
    python benchmarks/storage.py models              whole models with --weights
    python benchmarks/storage.py half                float16 models beside the same ones in fp32
    python benchmarks/storage.py models -m vgg16     one of them

"read" is what the probe's kernel reads of a block as large as the weights, "share" what a layer's
weights keep of it. "rms" is the error of the outputs relative to those of fp32. Medians of rounds
in turns, one thread.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from fully_connected import fully_connected
from onnx import TensorProto, numpy_helper
from zoo_runs import zoo

import tvm_blislike
from tvm_blislike.probe import read_bandwidth
from tvm_blislike.runtime.compiled import CompiledModel

# (k, n): larger than any cache of the machines at hand, and VGG's second.
LAYERS = ((25088, 4096), (4096, 4096))
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "fp8": 1, "fp8_e5m2": 1}
MODELS = ("vgg16", "alexnet")
HALVES = ("resnet18", "mobilenet_v2", "vgg16")
ROUNDS = 9


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose inputs, weights and outputs are float16 instead of float32."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    for weight in half.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(weight).astype(np.float16)
            weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    del half.graph.value_info[:]
    for value in (*half.graph.input, *half.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return half


def inputs_of(compiled: CompiledModel) -> dict[str, np.ndarray]:
    """Return seeded values for the inputs of a model."""
    rng = np.random.default_rng(1)
    return {
        spec.name: rng.standard_normal(spec.shape, dtype=np.float32).astype(spec.dtype)
        for spec in compiled.inputs
    }


def outputs_of(compiled: CompiledModel) -> np.ndarray:
    """Return all outputs of a run as one vector."""
    found = compiled.run(inputs_of(compiled)).values()
    return np.concatenate([array.astype(np.float64).ravel() for array in found])


def rms(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the error relative to what is expected."""
    return float(np.sqrt(np.square(found - expected).sum() / np.square(expected).sum()))


def medians(models: Mapping[str, CompiledModel], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the milliseconds of models that run in turns."""
    inputs = {name: inputs_of(model) for name, model in models.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(rounds + 1):
        for name, model in models.items():
            started = time.perf_counter()
            model.run(inputs[name])
            if turn:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: median(found) for name, found in times.items()}


def layers(options: argparse.Namespace) -> None:
    """Print a line for each type of weights of each layer."""
    for k, n in LAYERS:
        model = fully_connected(k, n)
        compiled = {
            name: tvm_blislike.compile(model, threads=1, weights=name.replace("fp32", ""))
            for name in BYTES
        }
        del model
        gc.collect()
        expected = outputs_of(compiled["fp32"])
        speed = read_bandwidth(tvm_blislike.native_core(), 4 * k * n)
        read = median(speed(1) for _ in range(5))
        found = medians(compiled, 15)
        print(f"{n}x{k}: read {read:.1f} GB/s")
        for name, ms in found.items():
            rate = 1e-6 * BYTES[name] * k * n / ms
            error = rms(outputs_of(compiled[name]), expected)
            print(
                f"  {name:8s} {ms:7.2f} ms  {found['fp32'] / ms:5.2f}x fp32  {rate:5.1f} GB/s"
                f"  share {rate / read:.2f}  rms {error:.1e}",
                flush=True,
            )


def models(options: argparse.Namespace) -> None:
    """Print a line for each type of weights of each model."""
    for name in options.model or MODELS:
        model = zoo.build(name)
        compiled = {
            each: tvm_blislike.compile(model, threads=1, weights=each.replace("fp32", ""))
            for each in ("fp32", *options.weights)
        }
        del model
        compare(name, compiled, size_of)


def half(options: argparse.Namespace) -> None:
    """Print the time of each model in fp32 and in float16."""
    for name in options.model or HALVES:
        model = zoo.build(name)
        compiled = {
            "fp32": tvm_blislike.compile(model, threads=1),
            "float16": tvm_blislike.compile(in_half(model), threads=1),
        }
        del model
        compare(name, compiled, size_of)


def compare(
    name: str, compiled: Mapping[str, CompiledModel], size: Callable[[CompiledModel], int]
) -> None:
    """Print times, sizes of libraries and errors of the same model compiled in several ways."""
    expected = outputs_of(compiled["fp32"])
    found = medians(compiled)
    for each, ms in found.items():
        error = rms(outputs_of(compiled[each]), expected)
        stored = sum(layer.weights_error is not None for layer in compiled[each].explain().layers)
        print(
            f"{name:14s} {each:8s} {ms:8.2f} ms  {found['fp32'] / ms:5.2f}x fp32  "
            f"{size(compiled[each]) / 1e6:6.1f} MB  {stored:2d} layers stored  rms {error:.1e}",
            flush=True,
        )


def size_of(compiled: CompiledModel) -> int:
    """Return the bytes of the library of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.so"
        compiled.export(path)
        return os.path.getsize(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["layers", "models", "half"])
    parser.add_argument("-m", "--model", action="append", metavar="NAME")
    parser.add_argument("-w", "--weights", nargs="*", default=["bf16"], metavar="TYPE")
    options = parser.parse_args()
    {"layers": layers, "models": models, "half": half}[options.what](options)


if __name__ == "__main__":
    main()
