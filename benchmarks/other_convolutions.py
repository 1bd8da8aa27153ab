"""One-, three-dimensional, transposed and grouped convolutions beside ONNX Runtime.

    python benchmarks/other_convolutions.py                     every layer, one thread
    python benchmarks/other_convolutions.py --only transposed --threads 2
    python benchmarks/other_convolutions.py --json results.json

Each layer is an ONNX model of one node with bias, measured by `tvm_blislike.bench`: the engines
take turns in every round, and so does the FMA peak. GFLOPS count the multiplications that the
operator needs: none with the zeros that a transposed convolution puts between its inputs. A model
takes and returns NCHW, so the time includes layout changes that a layer inside a network would
not need; "conv ms" is the part of our time that the convolutions themselves take.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tvm_blislike.bench import bench
from tvm_blislike.bench.result import BenchResult


@dataclass(frozen=True)
class Layer:
    """One convolution of any number of dimensions, batch 1.

    Parameters
    ----------
    set : str
        What `--only` selects.
    origin : str
        A network that has it.
    ci, co : int
        Channels.
    size, kernel : tuple of int
        Input and kernel, per dimension.
    stride, pad, dilation, out_pad : int or tuple of int
        The same in every dimension where it is one number.
    groups : int
        Channel groups.
    """

    set: str
    origin: str
    ci: int
    co: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int | tuple[int, ...] = 1
    pad: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] = 1
    out_pad: int | tuple[int, ...] = 0
    groups: int = 1

    def each(self, value: int | tuple[int, ...]) -> list[int]:
        """Return one number per dimension."""
        return [value] * len(self.size) if isinstance(value, int) else list(value)

    @property
    def transposed(self) -> bool:
        """Whether it is a ConvTranspose."""
        return self.set == "transposed"

    def __str__(self) -> str:
        kernel, size = ("x".join(map(str, sizes)) for sizes in (self.kernel, self.size))
        strides = self.each(self.stride)
        stride = "" if max(strides) == 1 else f" s{'x'.join(map(str, dict.fromkeys(strides)))}"
        groups = "" if self.groups == 1 else f" g{self.groups}"
        return f"{self.ci}-{self.co} {kernel}{stride}{groups} on {size}"


LAYERS = (
    Layer("1d", "Whisper", 80, 384, (3000,), (3,), pad=1),
    Layer("1d", "Whisper", 384, 384, (3000,), (3,), stride=2, pad=1),
    Layer("1d", "wav2vec 2", 512, 512, (3199,), (3,), stride=2),
    Layer("1d", "TCN", 64, 64, (4000,), (3,), pad=4, dilation=4),
    Layer("1d", "HiFi-GAN", 128, 128, (6400,), (7,), pad=9, dilation=3),
    Layer("1d", "Conformer", 256, 256, (1000,), (31,), pad=15, groups=256),
    Layer("transposed", "U-Net", 256, 128, (32, 32), (2, 2), stride=2),
    Layer("transposed", "U-Net", 128, 64, (64, 64), (2, 2), stride=2),
    Layer("transposed", "DCGAN", 512, 256, (8, 8), (4, 4), stride=2, pad=1),
    Layer("transposed", "DCGAN", 128, 64, (32, 32), (4, 4), stride=2, pad=1),
    Layer("transposed", "DCGAN", 64, 3, (64, 64), (4, 4), stride=2, pad=1),
    Layer("transposed", "CycleGAN", 128, 64, (64, 64), (3, 3), stride=2, pad=1, out_pad=1),
    Layer("transposed", "autoencoder", 64, 64, (56, 56), (3, 3), pad=1),
    Layer("transposed", "FCN-8s", 21, 21, (34, 34), (16, 16), stride=8, pad=4),
    Layer("transposed", "HiFi-GAN", 512, 256, (200,), (16,), stride=8, pad=4),
    Layer("transposed", "V-Net", 64, 32, (8, 16, 16), (2, 2, 2), stride=2),
    Layer("3d", "ResNet-3D", 3, 64, (8, 112, 112), (3, 7, 7), stride=(1, 2, 2), pad=(1, 3, 3)),
    Layer("3d", "ResNet-3D", 64, 64, (8, 56, 56), (3, 3, 3), pad=1),
    Layer("3d", "ResNet-3D", 64, 128, (8, 56, 56), (3, 3, 3), stride=2, pad=1),
    Layer("3d", "ResNet-3D", 256, 256, (4, 14, 14), (3, 3, 3), pad=1),
    Layer("3d", "R(2+1)D", 64, 144, (8, 56, 56), (1, 3, 3), pad=(0, 1, 1)),
    Layer("3d", "R(2+1)D", 144, 64, (8, 56, 56), (3, 1, 1), pad=(1, 0, 0)),
    Layer("3d", "I3D", 64, 64, (8, 56, 56), (1, 1, 1)),
    Layer("3d", "X3D", 54, 54, (8, 56, 56), (3, 3, 3), pad=1, groups=54),
    Layer("grouped", "ResNeXt-50", 128, 128, (56, 56), (3, 3), pad=1, groups=32),
    Layer("grouped", "ResNeXt-50", 256, 256, (28, 28), (3, 3), pad=1, groups=32),
    Layer("grouped", "ResNeXt-50", 512, 512, (14, 14), (3, 3), pad=1, groups=32),
    Layer("grouped", "ResNeXt-50", 1024, 1024, (7, 7), (3, 3), pad=1, groups=32),
    Layer("grouped", "ResNeXt-50", 256, 256, (56, 56), (3, 3), stride=2, pad=1, groups=32),
    Layer("grouped", "RegNetX", 168, 168, (28, 28), (3, 3), pad=1, groups=7),
    Layer("grouped", "ShuffleNet", 60, 240, (28, 28), (1, 1), groups=3),
    Layer("grouped", "ShuffleNet", 240, 60, (28, 28), (1, 1), groups=3),
    Layer("grouped", "ShuffleNet", 120, 480, (14, 14), (1, 1), groups=3),
    Layer("grouped", "ShuffleNet", 480, 120, (14, 14), (1, 1), groups=3),
    Layer("grouped", "3 x 57", 171, 171, (14, 14), (3, 3), pad=1, groups=3),
    Layer("grouped", "AlexNet", 96, 256, (27, 27), (5, 5), pad=2, groups=2),
)
HEADER = (
    f"{'layer':44s} {'from':12s} {'ours ms':>9s} {'conv ms':>9s} {'ORT ms':>9s} {'ratio':>6s} "
    f"{'GFLOPS':>7s}"
)


def model(layer: Layer) -> onnx.ModelProto:
    """Return the ONNX model: the layer with random constant weights and a bias."""
    rng = np.random.default_rng(0)
    inner = layer.co if layer.transposed else layer.ci
    outer = layer.ci if layer.transposed else layer.co
    shape = (outer, inner // layer.groups, *layer.kernel)
    weights = rng.standard_normal(shape, dtype=np.float32)
    weights /= np.float32(math.sqrt(math.prod(shape[1:])))
    bias = rng.standard_normal(layer.co, dtype=np.float32)
    attributes = {"group": layer.groups, "pads": layer.each(layer.pad) * 2}
    attributes |= {"strides": layer.each(layer.stride), "dilations": layer.each(layer.dilation)}
    if layer.transposed:
        attributes["output_padding"] = layer.each(layer.out_pad)
    operator = "ConvTranspose" if layer.transposed else "Conv"
    node = helper.make_node(operator, ["x", "weights", "bias"], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, layer.ci, *layer.size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")],
    )
    opsets = [helper.make_opsetid("", 17)]
    plain = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(plain)


def macs(layer: Layer, proto: onnx.ModelProto) -> int:
    """Return the multiplications of the operator; at the borders those with padding count too."""
    dims = [dim.dim_value for dim in proto.graph.output[0].type.tensor_type.shape.dim]
    pixels = math.prod(layer.size) if layer.transposed else math.prod(dims[2:])
    return pixels * math.prod(layer.kernel) * layer.ci * layer.co // layer.groups


def measure(layer: Layer, folder: Path, threads: int, rounds: int) -> tuple[BenchResult, int]:
    """Return the interleaved run of one layer, and its multiplications."""
    proto = model(layer)
    path = folder / "layer.onnx"
    onnx.save(proto, path)
    result = bench(path, ("blislike", "onnxruntime"), threads, rounds, profile=True)
    return result, macs(layer, proto)


def convolving_ms(result: BenchResult) -> float:
    """Return our time without layout changes, interleaving and copies."""
    ours = {layer.name for layer in result.report.layers if layer.kind == "conv2d"}
    return sum(layer.ms for layer in result.layers if layer.name in ours)


def main() -> None:
    """Measure the layers, print the table, save it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted({layer.set for layer in LAYERS}))
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--repeat", type=int, default=5, metavar="ROUNDS")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        for layer in LAYERS:
            if options.only not in (None, layer.set):
                continue
            result, count = measure(layer, Path(folder), options.threads, options.repeat)
            ours, theirs = (result.engines[e].median_ms for e in ("blislike", "onnxruntime"))
            error = result.engines["blislike"].max_rel_error
            ratios.append(theirs / ours)
            gflops = 2e-6 * count / ours
            if not rows:
                print(f"{result.core}, {result.machine}, {result.versions}\n{HEADER}")
            print(
                f"{layer!s:44s} {layer.origin:12s} {ours:9.3f} {convolving_ms(result):9.3f} "
                f"{theirs:9.3f} {ratios[-1]:6.2f} "
                f"{gflops:7.1f}  {gflops / result.peak_gflops:5.2f} of {result.peak_gflops:.0f}"
                f"  error {error:.0e}",
                flush=True,
            )
            entry = {"layer": asdict(layer), "gflops": gflops, **result.to_dict()}
            rows.append(entry)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    faster = sum(ratio >= 1 for ratio in ratios)
    print(f"faster on {faster} of {len(ratios)}; geometric mean of the ratios {mean:.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
