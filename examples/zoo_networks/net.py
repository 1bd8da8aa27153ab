"""A tiny builder of convolutional networks in ONNX, with seeded random weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # the one that belongs to opset 17

Pair = int | tuple[int, int]
Padding = int | tuple[int, int] | str


@dataclass(frozen=True)
class Tensor:
    """One activation of shape (batch, channels, height, width).

    `power` is the expected mean square of its elements. Weights are drawn so that every convolution
    has output power 1: He initialisation where the input went through a ReLU, and the same
    reasoning carried on where it did not (linear bottlenecks, sums, concatenations).
    """

    name: str
    channels: int
    height: int
    width: int
    power: float = 1.0


def pair(value: Pair) -> tuple[int, int]:
    """Return `value` as (vertical, horizontal)."""
    return (value, value) if isinstance(value, int) else value


def resolve_padding(
    padding: Padding, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Return (top, left, bottom, right).

    `padding` is symmetric, (vertical, horizontal), or "same" as TensorFlow defines it: the output
    has ceil(size / stride) elements and an odd pad goes to the bottom and right.
    """
    if padding != "same":
        vertical, horizontal = pair(padding)
        return vertical, horizontal, vertical, horizontal
    total = [
        max((-(-s // st) - 1) * st + k - s, 0)
        for s, k, st in zip(size, kernel, stride, strict=True)
    ]
    return total[0] // 2, total[1] // 2, -(-total[0] // 2), -(-total[1] // 2)


def output_size(
    size: int, kernel: int, stride: int, before: int, after: int, ceil: bool = False
) -> int:
    """Return the length of a convolution or pooling along one axis, as ONNX defines it."""
    span = size + before + after - kernel
    length = -(-span // stride) + 1 if ceil else span // stride + 1
    # In ceil mode ONNX drops a window that would start in the padding after the input.
    return length - 1 if ceil and (length - 1) * stride >= size + before else length


class Net:
    """Collects nodes and weights; each method appends one operator and returns its output."""

    def __init__(self, name: str, batch: int | str, image: int, seed: int) -> None:
        self.name = name
        self.batch = batch
        self.image = image
        self.input = Tensor("input", 3, image, image)
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def _node(self, op: str, inputs: list[str], **attributes: object) -> str:
        name = f"{op.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _weight(self, values: np.ndarray) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def _normal(self, shape: tuple[int, ...], deviation: float) -> np.ndarray:
        return self._rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)

    def _uniform(self, channels: int, low: float, high: float) -> np.ndarray:
        return self._rng.uniform(low, high, channels).astype(np.float32)

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: Pair,
        stride: int = 1,
        padding: Padding = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> Tensor:
        """Append a convolution with weights (channels, x.channels / groups, kh, kw)."""
        (kh, kw), strides = pair(kernel), pair(stride)
        pads = resolve_padding(padding, (x.height, x.width), (kh, kw), strides)
        shape = (channels, x.channels // groups, kh, kw)
        deviation = (np.prod(shape[1:]) * x.power) ** -0.5
        inputs = [x.name, self._weight(self._normal(shape, deviation))]
        if bias:
            inputs.append(self._weight(self._normal((channels,), 0.1)))
        name = self._node(
            "Conv", inputs, kernel_shape=(kh, kw), strides=strides, pads=pads, group=groups
        )
        height = output_size(x.height, kh, stride, pads[0], pads[2])
        width = output_size(x.width, kw, stride, pads[1], pads[3])
        return Tensor(name, channels, height, width)

    def batch_norm(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Append a batch normalisation with statistics as training leaves them.

        `scale` is the mean of gamma; the last one of a residual branch is small, so that the sum
        over many blocks stays bounded.
        """
        n = x.channels
        gamma = self._uniform(n, 0.7 * scale, 1.3 * scale)
        beta, mean = self._normal((n,), 0.1 * scale), self._normal((n,), 0.1)
        variance = self._uniform(n, 0.6, 1.6)
        weights = [self._weight(values) for values in (gamma, beta, mean, variance)]
        name = self._node("BatchNormalization", [x.name, *weights], epsilon=1e-5)
        return replace(x, name=name, power=scale * scale)

    def conv_bn(self, x: Tensor, channels: int, kernel: Pair, **options: object) -> Tensor:
        """Append a convolution without bias and its batch normalisation."""
        return self.batch_norm(self.conv(x, channels, kernel, bias=False, **options))

    def _activation(self, op: str, x: Tensor, power: float, **attributes: object) -> Tensor:
        return replace(x, name=self._node(op, [x.name], **attributes), power=x.power * power)

    def relu(self, x: Tensor) -> Tensor:
        """Append max(x, 0)."""
        return self._activation("Relu", x, 0.5)

    def relu6(self, x: Tensor) -> Tensor:
        """Append min(max(x, 0), 6), which exporters write as Clip."""
        bounds = [self._weight(np.array(value, np.float32)) for value in (0.0, 6.0)]
        name = self._node("Clip", [x.name, *bounds])
        return replace(x, name=name, power=x.power * 0.5)

    def hard_swish(self, x: Tensor) -> Tensor:
        """Append x * clip(x / 6 + 1 / 2, 0, 1)."""
        return self._activation("HardSwish", x, 0.33)

    def hard_sigmoid(self, x: Tensor) -> Tensor:
        """Append clip(x / 6 + 1 / 2, 0, 1)."""
        return self._activation("HardSigmoid", x, 0.28, alpha=1 / 6, beta=0.5)

    def sigmoid(self, x: Tensor) -> Tensor:
        """Append 1 / (1 + exp(-x))."""
        return self._activation("Sigmoid", x, 0.29)

    def silu(self, x: Tensor) -> Tensor:
        """Append x * sigmoid(x), two nodes as in exported models."""
        return replace(self.multiply(x, self.sigmoid(x)), power=x.power * 0.36)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Append x + y."""
        return replace(x, name=self._node("Add", [x.name, y.name]), power=x.power + y.power)

    def relu_of_sum(self, x: Tensor, y: Tensor) -> Tensor:
        """Append max(x + y, 0) for an x that is not negative: the maximum loses no power."""
        return replace(self.relu(self.add(x, y)), power=x.power + y.power)

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        """Append x * y; y may have height and width 1."""
        return replace(x, name=self._node("Mul", [x.name, y.name]), power=x.power * y.power)

    def concat(self, parts: list[Tensor]) -> Tensor:
        """Append the concatenation over channels."""
        name = self._node("Concat", [part.name for part in parts], axis=1)
        channels = sum(part.channels for part in parts)
        power = sum(part.power * part.channels for part in parts) / channels
        return replace(parts[0], name=name, channels=channels, power=power)

    def _pool(
        self, op: str, x: Tensor, kernel: int, stride: int, padding: int, ceil: bool, **more: int
    ) -> Tensor:
        pads = (padding,) * 4
        strides = (stride, stride)
        attributes = {"kernel_shape": (kernel, kernel), "strides": strides, "pads": pads, **more}
        name = self._node(op, [x.name], ceil_mode=int(ceil), **attributes)
        height, width = (
            output_size(size, kernel, stride, padding, padding, ceil)
            for size in (x.height, x.width)
        )
        return replace(x, name=name, height=height, width=width)

    def max_pool(
        self, x: Tensor, kernel: int, stride: int, padding: int = 0, ceil: bool = False
    ) -> Tensor:
        """Append a maximum over kernel x kernel windows."""
        return self._pool("MaxPool", x, kernel, stride, padding, ceil)

    def average_pool(self, x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
        """Append a mean over windows; padding counts as zeros, PyTorch's default."""
        return self._pool("AveragePool", x, kernel, stride, padding, False, count_include_pad=1)

    def global_average_pool(self, x: Tensor) -> Tensor:
        """Append the mean over height and width."""
        name = self._node("GlobalAveragePool", [x.name])
        return replace(x, name=name, height=1, width=1, power=x.power * 0.32)

    def local_response_norm(self, x: Tensor) -> Tensor:
        """Append the normalisation across 5 channels of AlexNet and GoogLeNet."""
        return self._activation("LRN", x, 1.0, size=5, alpha=1e-4, beta=0.75, bias=1.0)

    def channel_shuffle(self, x: Tensor, groups: int) -> Tensor:
        """Append the channel permutation (groups, channels / groups) -> its transpose."""
        split = np.array([-1, groups, x.channels // groups, x.height, x.width], np.int64)
        joined = np.array([-1, x.channels, x.height, x.width], np.int64)
        name = self._node("Reshape", [x.name, self._weight(split)])
        name = self._node("Transpose", [name], perm=(0, 2, 1, 3, 4))
        return replace(x, name=self._node("Reshape", [name, self._weight(joined)]))

    def flatten(self, x: Tensor) -> Tensor:
        """Append the view (batch, channels * height * width)."""
        channels = x.channels * x.height * x.width
        return Tensor(self._node("Flatten", [x.name], axis=1), channels, 1, 1, x.power)

    def linear(self, x: Tensor, channels: int) -> Tensor:
        """Append x @ weights.T + bias on a flattened tensor; weights (channels, x.channels)."""
        weights = self._normal((channels, x.channels), (x.channels * x.power) ** -0.5)
        inputs = [x.name, self._weight(weights), self._weight(self._normal((channels,), 0.1))]
        return Tensor(self._node("Gemm", inputs, transB=1), channels, 1, 1)

    def classify(self, x: Tensor, classes: int = 1000) -> Tensor:
        """Append the usual head: global average pooling and one linear layer, giving logits."""
        return self.linear(self.flatten(self.global_average_pool(x)), classes)

    def model(self, logits: Tensor) -> onnx.ModelProto:
        """Return the model whose output, that of the last node, is "logits" (batch, classes)."""
        self._nodes[-1].output[0] = "logits"
        shape = [self.batch, 3, self.image, self.image]
        inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)]
        outputs = [
            helper.make_tensor_value_info(
                "logits", TensorProto.FLOAT, [self.batch, logits.channels]
            )
        ]
        graph = helper.make_graph(self._nodes, self.name, inputs, outputs, self._weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(
            graph, producer_name="tvm-blislike zoo", opset_imports=[opset], ir_version=IR_VERSION
        )
