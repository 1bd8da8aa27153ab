"""Attention alone and transformers in fp32, beside other engines in one interleaved run each.

    python benchmarks/attention.py                        attention of 128 to 4096 tokens, 12 x 64
    python benchmarks/attention.py -n 512 -t 1            one of them
    python benchmarks/attention.py --models               whole models (`transformer_models.py`)
    python benchmarks/attention.py --models -m bert_base_128 -t 2

Each run is a process of its own in which the engines take turns on the same pinned CPUs. Printed
are medians in milliseconds, the largest difference from ONNX Runtime relative to its largest
result, and the speed relative to the faster peer; of attention alone also the share of the peak of
multiply-adds measured in the same run that its kernel reaches, without the copies of inputs and
result around it, and the memory of a thread beside operands and result.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import onnx
from integer_models import PEERS, in_a_process, turn
from onnx import TensorProto, helper, numpy_helper
from transformer_models import MODELS, inputs_of, saved
from zoo_runs import in_turns

from tvm_blislike.bench.engines import EngineUnavailableError, Job, load_engine
from tvm_blislike.cost_models.attention.blocks import blocks_of, workspace_bytes
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.model.attention import Attention
from tvm_blislike.model.views import View
from tvm_blislike.probe.measure import measure_peak_gops
from tvm_blislike.runtime.threads import cpus_by_use, use_threads

FOLDER = Path(__file__).parents[1] / "build" / "attention"
OURS = "blislike"
HEADS, DEPTH, LENGTHS = 12, 64, (128, 256, 512, 1024, 2048, 4096)
SECONDS, ROUNDS = 4.0, 7


def attention_model(length: int) -> Path:
    """Return the file of softmax(Q K^T / 8) V, heads split and merged as exporters write it."""
    path = FOLDER / f"attention_{length}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (1, length, HEADS * DEPTH)
    split = numpy_helper.from_array(np.array([1, length, HEADS, DEPTH]), "split")
    merged = numpy_helper.from_array(np.array(shape), "merged")
    root = numpy_helper.from_array(np.float32(math.sqrt(DEPTH)), "root")
    nodes = []
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(helper.make_node("Reshape", [name, "split"], [f"{name}s"]))
        nodes.append(helper.make_node("Transpose", [f"{name}s"], [f"{name}h"], perm=order))
    nodes += [
        helper.make_node("MatMul", ["qh", "kh"], ["product"]),
        helper.make_node("Div", ["product", "root"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "vh"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "merged"], ["y"]),
    ]
    q, k, v, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "qkvy")
    graph = helper.make_graph(nodes, "attention", [q, k, v], [y], [split, merged, root])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
    return path


def alone(length: int, core: Core, threads: int) -> tuple[int, int]:
    """Return the operations of an attention, and the memory that a thread needs for it."""
    lies = View.of((length, HEADS, DEPTH)).permuted((1, 0, 2))
    attention = Attention(lies, lies, lies, lies, scale=1 / math.sqrt(DEPTH))
    return 2 * attention.macs, workspace_bytes(attention, blocks_of(attention, core, threads))


def measured(path: Path, inputs: Mapping[str, np.ndarray], threads: int) -> dict[str, Any]:
    """Return milliseconds of each engine that takes the model, and our difference."""
    names = [value.name for value in onnx.load(path).graph.output]
    core = native_core()
    use_threads(threads)
    os.sched_setaffinity(0, cpus_by_use()[:threads])
    engines, outputs = {}, {}
    for name in (OURS, *PEERS):
        job = Job(str(path), inputs, names, threads, core, records="none")
        try:
            engines[name], outputs[name] = load_engine(name, job)
        except EngineUnavailableError as reason:
            print(f"skipped {name}: {reason}", file=sys.stderr)
    samples = in_turns([partial(turn, engine) for engine in engines.values()], SECONDS, ROUNDS)
    times = {n: 1e3 * median(s) for n, s in zip(engines, samples, strict=True)}
    wanted = outputs.get(PEERS[0], outputs[OURS])
    error = max(np.abs(outputs[OURS][n] - wanted[n]).max() / np.abs(wanted[n]).max() for n in names)
    kernels = engines[OURS].compiled.profile(inputs, 20)
    return {
        "ms": times,
        "error": float(error),
        "peak": measure_peak_gops(core, threads=threads),
        "kernels": sum(kernel.ms for kernel in kernels),
    }


def line(name: str, threads: int, result: Mapping[str, Any], more: str = "") -> str:
    """Return a row of the table."""
    cells = "  ".join(f"{engine} {ms:8.3f}" for engine, ms in result["ms"].items())
    return (
        f"{name:20s} {threads}t  {cells}  /best peer {speed(result):.2f}x"
        f"  difference {result['error']:.0e}{more}"
    )


def speed(result: Mapping[str, Any]) -> float:
    """Return the speed relative to the faster peer."""
    peers = [ms for engine, ms in result["ms"].items() if engine != OURS]
    return min(peers, default=math.nan) / result["ms"][OURS]


def share(length: int, threads: int, result: Mapping[str, Any]) -> str:
    """Return what is said of attention alone."""
    operations, size = alone(length, native_core(), threads)
    reached = operations / (1e6 * result["kernels"] * result["peak"])
    return f"  {reached:.2f} of the peak, {size / 1024:.0f} KiB a thread"


def main() -> None:
    """Compare, or, in a process of its own, measure one model."""
    if sys.argv[1:2] == ["--times"]:
        what, threads = sys.argv[2], int(sys.argv[3])
        if what in MODELS:
            print(json.dumps(measured(saved(what, FOLDER), inputs_of(what), threads)))
            return
        rng = np.random.default_rng(0)
        shape = (1, int(what), HEADS * DEPTH)
        inputs = {name: rng.standard_normal(shape).astype("float32") for name in "qkv"}
        print(json.dumps(measured(attention_model(int(what)), inputs, threads)))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", "--length", action="append", type=int, metavar="TOKENS")
    parser.add_argument("-t", "--threads", action="append", type=int, metavar="N")
    parser.add_argument("--models", action="store_true", help="whole models")
    parser.add_argument("-m", "--model", action="append", choices=list(MODELS), metavar="NAME")
    options = parser.parse_args()
    named = options.model or list(MODELS) if options.models else options.length or LENGTHS
    for threads in options.threads or (1, 2):
        found = []
        for what in named:
            result = in_a_process(__file__, what, threads)
            more = "" if options.models else share(what, threads, result)
            print(line(str(what), threads, result, more), flush=True)
            found.append(speed(result))
        print(f"{threads}t: geometric mean {geometric_mean(found):.3f}x, lowest {min(found):.3f}x")


if __name__ == "__main__":
    main()
