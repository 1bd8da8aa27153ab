"""Fully connected layers of one image beside the bandwidth of reading their weights.

    python benchmarks/fully_connected.py
    python benchmarks/fully_connected.py --threads 2

A product of one row does two operations per weight: the time is that of reading the weights, from
memory or, where they fit, from a cache. "read" is what the probe's kernel reaches on a block of the
same size, measured in turns with the layer; "share" is what the layer keeps of it. Medians.
"""

from __future__ import annotations

import argparse
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_blislike
from tvm_blislike.probe import read_bandwidth

# (k, n) of VGG, ResNet-18 and -50, GoogLeNet and MobileNet, MobileNet-v2, and odd ones.
LAYERS = (
    (25088, 4096),
    (4096, 4096),
    (4096, 1000),
    (512, 1000),
    (2048, 1000),
    (1024, 1000),
    (1280, 1000),
    (3001, 997),
)


def fully_connected(k: int, n: int) -> onnx.ModelProto:
    """Return an ONNX model of one layer of `k` inputs and `n` results with a bias."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((k, n), dtype=np.float32)
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, size))
        for name, size in (("x", k), ("y", n))
    ]
    constants = [
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(rng.standard_normal(n, dtype=np.float32), "b"),
    ]
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    graph = helper.make_graph([node], "layer", values[:1], values[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def compare(k: int, n: int, threads: int, rounds: int) -> float:
    """Print one line; return the layer's share of the bandwidth."""
    compiled = tvm_blislike.compile(fully_connected(k, n), threads=threads)
    size = 4 * k * n
    bandwidth = read_bandwidth(tvm_blislike.native_core(), size)
    inputs = {"x": np.random.default_rng(1).standard_normal((1, k), dtype=np.float32)}
    names = {layer.name for layer in compiled.explain().layers if layer.macs}
    read, layer = [], []
    for _ in range(rounds):
        read.append(bandwidth(threads))
        times = compiled.profile(inputs, repeat=5)
        layer.append(1e-6 * size / sum(time.ms for time in times if time.name in names))
    share = median(layer) / median(read)
    print(
        f"{k:6d} {n:5d}  {size / 2**20:6.1f} MiB  read {median(read):6.1f} GB/s   "
        f"layer {median(layer):6.1f} GB/s   share {share:.2f}",
        flush=True,
    )
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print(f"threads {options.threads}")
    shares = [compare(k, n, options.threads, options.rounds) for k, n in LAYERS]
    print(f"lowest share {min(shares):.2f}, median {median(shares):.2f}")


if __name__ == "__main__":
    main()
