"""A binary ResNet-18 (Bi-Real Net: each layer reads signs, and adds what it read) against fp32.

    python benchmarks/binary_models.py --size 224

The first convolution and the classifier are in fp32. The model is compiled twice: for this core,
and for one that is told not to count bits (no `vpopcntdq`), which computes all of it in fp32. Both
run by turns in one process. All numbers up to the pool at the end are small multiples of powers of
two, exact in fp32, and the result must be ONNX Runtime's; fp32 of ours, with Winograd's roundings,
takes some signs for others. Signs are written as larq's, `Sign(Sign(x) + 0.1)`, or as
`Where(x >= 0, 1, -1)`, or as `Sign`, which keeps zeros.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from zoo_runs import in_turns, timed

import tvm_blislike
from tvm_blislike.hardware import native_core
from tvm_blislike.runtime.threads import use_threads

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
SECONDS, ROUNDS, RUNS = 8.0, 7, 3


class Builder:
    """Nodes and constants of a network while it grows."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def put(self, operator: str, *operands: str, **attributes: object) -> str:
        """Add a node, return its result."""
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, operands, [result], **attributes))
        return result

    def constant(self, value: np.ndarray) -> str:
        """Add a constant, return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    def norm(self, value: str, channels: int) -> str:
        """Add a batch norm with random parameters, exact in fp32."""
        scale, mean = self.rng.choice([0.5, 1.0], channels), self.rng.integers(-9, 10, channels)
        shift, spread = self.rng.integers(-9, 10, channels) / 2, np.ones(channels)
        parts = map(self.constant, (scale, shift, mean, spread))
        return self.put("BatchNormalization", value, *parts, epsilon=0.0)

    def signs(self, value: str) -> str:
        """Add the signs of a tensor."""
        if self.form == "where":
            held = self.put("GreaterOrEqual", value, self.constant(0))
            return self.put("Where", held, self.constant(1), self.constant(-1))
        signs = self.put("Sign", value)
        if self.form == "sign":
            return signs
        return self.put("Sign", self.put("Add", signs, self.constant(0.1)))

    def layer(self, value: str, channels: int, wanted: int, stride: int) -> str:
        """Add a binary convolution and the shortcut around it."""
        weights = self.constant(self.rng.choice([-1.0, 1.0], (wanted, channels, 3, 3)))
        options = {"pads": [1, 1, 1, 1], "strides": [stride, stride]}
        made = self.norm(self.put("Conv", self.signs(value), weights, **options), wanted)
        if stride > 1:
            value = self.put("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])
            value = self.put("Concat", value, value, axis=1)
        return self.put("Add", made, value)


def network(form: str, size: int) -> onnx.ModelProto:
    """Return a binary ResNet-18 for images of a size."""
    b = Builder(form)
    first = b.constant(b.rng.integers(-1, 2, (64, 3, 7, 7)))
    value = b.norm(b.put("Conv", "x", first, pads=[3, 3, 3, 3], strides=[2, 2]), 64)
    value = b.put("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for wanted, stride in STAGES:
        for number in range(4):
            value = b.layer(value, channels, wanted, stride if number == 0 else 1)
            channels = wanted
    flat = b.put("Flatten", b.put("GlobalAveragePool", value))
    b.put("Gemm", flat, b.constant(b.rng.normal(0, 0.05, (512, 1000))), b.constant([0] * 1000))
    float32 = onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", float32, [1, 3, size, size])]
    outputs = [helper.make_tensor_value_info(b.nodes[-1].output[0], float32, [1, 1000])]
    graph = helper.make_graph(b.nodes, "binary", inputs, outputs, b.constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def turn(run: Callable[[], object]) -> float:
    """Return the median of some runs."""
    return median(timed(run) for _ in range(RUNS))


def main() -> None:
    """Compare one form of signs, print a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", choices=("larq", "where", "sign"), default="larq")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    options = parser.parse_args()
    core, model = native_core(), network(options.form, options.size)
    floats = replace(core, features=tuple(f for f in core.features if f != "vpopcntdq"))
    use_threads(options.threads)
    compiled = [
        tvm_blislike.compile(model, target=target, threads=options.threads)
        for target in (core, floats)
    ]
    shape = (1, 3, options.size, options.size)
    x = np.random.default_rng(1).integers(-3, 4, shape).astype("float32")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (ours,) = compiled[0].run({"x": x}).values()
    np.testing.assert_allclose(ours, session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-3)
    turns = [partial(turn, partial(each.run, {"x": x})) for each in compiled]
    ms = [1e3 * median(times) for times in in_turns(turns, SECONDS, ROUNDS)]
    print(
        f"{options.form} {options.size}: bits {ms[0]:.2f} ms, fp32 {ms[1]:.2f} ms, "
        f"{ms[1] / ms[0]:.2f}x"
    )


if __name__ == "__main__":
    main()
