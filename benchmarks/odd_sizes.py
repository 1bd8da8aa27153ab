"""Speed of odd image sizes beside that of the neighbouring multiple of the tile.

    python benchmarks/odd_sizes.py                  the model's choice, then direct convolution
    python benchmarks/odd_sizes.py --threads 2

Convolutions on square images of odd size, and the same on images whose width is the nearest
multiple of 14, the height of the tallest micro-kernel with two vectors; small images have more
channels, as in real networks. The figures are
effective GFLOPS of the convolution's kernel alone (no layout transforms), medians of the turns of
one interleaved run; "ratio" is what an odd size keeps of the speed per FLOP.
"""

from __future__ import annotations

import argparse
import math
from statistics import median

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tvm_blislike
from tvm_blislike import Constraints
from tvm_blislike.probe import measure_peak_gflops

# Size and channels.
SIZES = ((149, 64), (73, 64), (57, 128), (17, 256), (7, 512))
KERNELS = (3, 1)
TILE = 14


def convolution(size: int, channels: int, kernel: int) -> object:
    """Return an ONNX model of one convolution of an image of `size` x `size`."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((channels, channels, kernel, kernel), dtype=np.float32)
    shape = (1, channels, size, size)
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4)
    graph = helper.make_graph(
        [node], "conv", [image], [result], [numpy_helper.from_array(weights, "w")]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


class Layer:
    """A compiled convolution and the speeds measured so far."""

    def __init__(
        self, size: int, channels: int, kernel: int, threads: int, limits: Constraints
    ) -> None:
        model = convolution(size, channels, kernel)
        self.compiled = tvm_blislike.compile(model, threads=threads, constraints=limits)
        (self.kernel,) = (layer for layer in self.compiled.explain().layers if layer.macs)
        shape = (1, channels, size, size)
        self.inputs = {"x": np.random.default_rng(1).standard_normal(shape).astype("float32")}
        self.gflops: list[float] = []

    def turn(self) -> None:
        """Measure a few runs."""
        times = self.compiled.profile(self.inputs, repeat=5)
        (ms,) = (time.ms for time in times if time.name == self.kernel.name)
        self.gflops.append(2e-6 * self.kernel.macs / ms)


def compare(
    size: int, channels: int, kernel: int, threads: int, limits: Constraints, rounds: int
) -> float:
    """Print one line and return the ratio."""
    even = max(1, round(size / TILE)) * TILE
    odd_layer, even_layer = (Layer(s, channels, kernel, threads, limits) for s in (size, even))
    peaks = []
    for _ in range(rounds):
        peaks.append(measure_peak_gflops(tvm_blislike.native_core(), threads))
        odd_layer.turn()
        even_layer.turn()
    odd, other, peak = map(median, (odd_layer.gflops, even_layer.gflops, peaks))
    name = odd_layer.kernel.implementation
    print(
        f"{kernel}x{kernel}  {size:4d} {odd:7.0f} GFLOPS   {even:4d} {other:7.0f} GFLOPS   "
        f"ratio {odd / other:5.2f}   {name}, peak {peak:.0f}",
        flush=True,
    )
    return odd / other


def main() -> None:
    """Compare every size and kernel, chosen by the model and by direct convolution."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--repeat", type=int, default=15, metavar="ROUNDS")
    options = parser.parse_args()
    ratios = []
    for limits in (Constraints(), Constraints(only=("conv2d_direct",))):
        for kernel in KERNELS:
            for size, channels in SIZES:
                ratios.append(
                    compare(size, channels, kernel, options.threads, limits, options.repeat)
                )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.2f}, lowest {min(ratios):.2f}")


if __name__ == "__main__":
    main()
