"""Models of other people in other types than they come in: 8 bits, and fp16.

    python benchmarks/wild_types.py int8               the exports of `wild.py` that are there
    python benchmarks/wild_types.py dynamic -t 2 a.onnx b.onnx     models of yours
    python benchmarks/wild_types.py fp16 -m 'swin*'

`int8` is quantized by `tvm-blislike quantize` (ONNX Runtime's quantizer, a scale per channel) on
what the model runs on and copies of it with noise, `dynamic` by ONNX Runtime's dynamic quantizer,
`fp16` by its converter; results are kept beside the model. A model runs on the arrays of the .npz
beside it, or on random values. Each run is a process of its own in which this library with the
converted and with the given model, and the peers with the converted one, take turns on one pinned
CPU for each thread. A row has medians in milliseconds with, in brackets, the relative root mean
square of the difference from ONNX Runtime without optimizations on the converted model, the speed
relative to the faster peer and to our own of the given model, and the errors' ratio to that peer's
which is nearer. OpenVINO ends the process with some models: then those are compared without it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import integer_models
import numpy as np
import onnx
from wild import of_exports, printed

from tvm_blislike.onnx.graph_inputs import resolve_inputs
from tvm_blislike.onnx.inputs import random_inputs

_SECONDS = 600
_NOISE, _SAMPLES = 0.1, 3
Arrays = dict[str, np.ndarray]


def inputs_of(model: Path) -> Arrays:
    """Return what a model runs on."""
    path = model.with_suffix(".npz")
    proto = onnx.load(model, load_external_data=False)
    if not path.exists():
        return random_inputs(resolve_inputs(proto, {}), seed=0)
    read = {value.name for value in proto.graph.input}
    return {name: array for name, array in np.load(path).items() if name in read}


def noisy(inputs: Arrays, seed: int) -> Arrays:
    """Return inputs with noise on those of floats."""
    rng = np.random.default_rng(seed)
    return {
        name: (x + _NOISE * x.std() * rng.standard_normal(x.shape)).astype(x.dtype)
        if x.dtype.kind == "f" and x.size > 1
        else x
        for name, x in inputs.items()
    }


def to_int8(model: Path, result: Path) -> None:
    """Quantize weights and activations."""
    from tvm_blislike.quantize import quantize

    given = inputs_of(model)
    samples = [given, *(noisy(given, seed) for seed in range(1, _SAMPLES))]
    quantize(onnx.load(model), samples, result)


def to_dynamic(model: Path, result: Path) -> None:
    """Quantize weights, and activations when it runs."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(model, result, per_channel=True, weight_type=QuantType.QInt8)


def to_fp16(model: Path, result: Path) -> None:
    """Convert weights and arithmetic; inputs and outputs stay."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), result)


_TYPES: dict[str, Callable[[Path, Path], None]] = {
    "int8": to_int8,
    "dynamic": to_dynamic,
    "fp16": to_fp16,
}


def converted(kind: str, model: Path) -> Path:
    """Return the model in another type, made where it is missing."""
    path = model.with_name(f"{model.stem}.{kind}{model.suffix}")
    if not path.exists():
        _TYPES[kind](model, path)
    return path


def run(kind: str, model: Path, threads: int, peers: Sequence[str]) -> dict[str, Any]:
    """Return what this process measures."""
    path = converted(kind, model)
    return integer_models.measured(path, model, threads, inputs_of(model), peers=peers)


def nearness(found: Mapping[str, Mapping[str, float]]) -> float:
    """Return our error relative to that of the peer that is nearer to the simulation."""
    peers = [found[name]["error"] for name in integer_models.PEERS if name in found]
    return found[integer_models.OURS]["error"] / max(min(peers), 1e-12)


def main() -> None:
    """Go through the models; or, in a process of its own, measure one of them."""
    if sys.argv[1:2] == ["--run"]:
        kind, model, threads, peers = sys.argv[2:]
        print(json.dumps(run(kind, Path(model), int(threads), peers.split(","))))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=_TYPES)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("-m", "--model", default="*", metavar="PATTERN", help="of names")
    parser.add_argument("-t", "--threads", type=int, default=1, metavar="N")
    options = parser.parse_args()
    models = options.models or [case.path for case in of_exports() if case.path.exists()]
    rows = []
    for model in models:
        if not fnmatch(model.stem, options.model):
            continue
        words = [__file__, "--run", options.kind, str(model), str(options.threads)]
        found = printed(words, integer_models.PEERS, _SECONDS)
        if "reason" in found:
            print(f"{model.stem:32s} {found['reason'][:160]}", flush=True)
            continue
        row = integer_models.line(model.stem[:32], options.threads, found)
        print(f"{row}  error / peer's {nearness(found):.2f}", flush=True)
        rows.append(integer_models.speeds(found))
    if rows:
        integer_models.summary(options.threads, rows)


if __name__ == "__main__":
    main()
