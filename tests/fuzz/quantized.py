"""Random nodes of quantized models."""

from __future__ import annotations

import numpy as np
from graphs import Graph, RejectedError, Tensor


def quantize(g: Graph) -> None:
    """QuantizeLinear and back, per tensor or per channel."""
    x = g.tensor(("float32",), rank=(1, 2, 3, 4))
    per_channel = g.opset >= 13 and g.chance(0.3)
    axis = g.integer(-x.rank, x.rank - 1)
    shape = (x.shape[axis],) if per_channel else ()
    scale, zero = _scale(g, shape), _zero_point(g, shape)
    attributes = {"axis": axis} if per_channel else {}
    q = g.node("QuantizeLinear", [x, scale, zero], **attributes)[0]
    g.node("DequantizeLinear", [q, scale, zero], **attributes)


def dequantize(g: Graph) -> None:
    """DequantizeLinear of integers, also of int32 without a zero point."""
    x = g.tensor(("uint8", "int8", "int32"), rank=(1, 2, 3, 4))
    zero = None if x.dtype == "int32" or g.chance(0.3) else g.constant(g.integer(0, 5), x.dtype)
    g.node("DequantizeLinear", [x, _scale(g, ()), zero])


def dynamic(g: Graph) -> None:
    """DynamicQuantizeLinear."""
    if g.opset < 11:
        raise RejectedError("too early")
    g.node("DynamicQuantizeLinear", [g.tensor(("float32",), rank=(1, 2, 3))], 3)


def matmul_integer(g: Graph) -> None:
    """MatMulInteger with and without zero points."""
    if g.opset < 10:
        raise RejectedError("too early")
    a = g.tensor(("uint8", "int8"), rank=(2, 3))
    b = g.weights((a.shape[-1], g.size(24)), g.pick(["uint8", "int8"]))
    zeros = [g.constant(g.integer(0, 4), t.dtype) if g.chance(0.5) else None for t in (a, b)]
    g.node("MatMulInteger", [a, b, *zeros])


def qdq_layer(g: Graph) -> None:
    """A convolution or matrix product between Q and DQ, as quantizers write it."""
    x = g.tensor(("float32",), rank=(2, 4), fits=lambda v: v.size > 0)
    if x.rank == 4:
        w = g.values((g.pick([4, 8]), x.shape[1], 1, 1), "int8")
    else:
        w = g.values((x.shape[1], g.pick([4, 8])), "int8")
    first = _there_and_back(g, x)
    axis = 0 if x.rank == 4 else 1
    scale = _scale(g, (w.shape[axis],)) if g.opset >= 13 else _scale(g, ())
    zero = g.constant(np.zeros(scale.shape, "int8"))
    along = {"axis": axis} if scale.rank else {}
    weights = g.node("DequantizeLinear", [g.constant(w), scale, zero], **along)[0]
    y = g.node("Conv" if x.rank == 4 else "MatMul", [first, weights])[0]
    if g.chance(0.5):
        y = g.node("Relu", [y])[0]
    _there_and_back(g, y)


def qdq_network(g: Graph) -> None:
    """A few layers between Q and DQ, each on what the one before left, as quantizers write them."""
    if g.opset < 13:
        raise RejectedError("too early")
    x = g.tensor(("float32",), rank=4, fits=lambda v: v.size > 0)
    x = before = _finely(g, x)
    for _ in range(g.integer(1, 4)):
        layer = g.pick([_convolution, _convolution, _pool, _activation, _residual, _joined])
        x, before = _finely(g, layer(g, x, before)), x


def _convolution(g: Graph, x: Tensor, _before: Tensor) -> Tensor:
    """A convolution with weights by channel, most often a bias of 32 bits, and an activation."""
    channels = x.shape[1]
    depthwise = g.chance(0.3)
    out = channels if depthwise else g.pick([4, 8, 17, 32])
    kernel = [min(g.pick([1, 3, 5]), size + 2) for size in x.shape[2:]]
    inner = (out, 1 if depthwise else channels, *kernel)
    scale = g.rng.choice([0.004, 0.0123, 0.031], out).astype("float32")
    weights = g.rng.integers(-127, 128, inner).astype("int8")
    operands = [x, _dequantized(g, weights, scale)]
    if g.chance(0.7):
        bias = g.rng.integers(-300, 300, out).astype("int32")
        operands.append(_dequantized(g, bias, scale * np.float32(0.02)))
    pads = [g.integer(0, k // 2) for k in kernel] * 2
    attributes = g.maybe(0.5, strides=g.ints(2, 1, 2)) | g.maybe(0.8, pads=pads)
    y = g.node("Conv", operands, group=channels if depthwise else 1, **attributes)[0]
    return _activation(g, y, y) if g.chance(0.6) else y


def _dequantized(g: Graph, values: np.ndarray, scale: np.ndarray) -> Tensor:
    zero = g.constant(np.zeros(scale.shape, values.dtype))
    return g.node("DequantizeLinear", [g.constant(values), g.constant(scale), zero], axis=0)[0]


def _pool(g: Graph, x: Tensor, _before: Tensor) -> Tensor:
    if g.chance(0.3):
        return g.node("GlobalAveragePool", [x])[0]
    kernel = [min(3, size) for size in x.shape[2:]]
    operator = g.pick(["MaxPool", "AveragePool"])
    return g.node(operator, [x], kernel_shape=kernel, strides=g.ints(2, 1, 2))[0]


def _activation(g: Graph, x: Tensor, _before: Tensor) -> Tensor:
    return g.node(g.pick(["Relu", "Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Tanh"]), [x])[0]


def _residual(g: Graph, x: Tensor, before: Tensor) -> Tensor:
    return g.node(g.pick(["Add", "Add", "Mul"]), [x, before if before.shape == x.shape else x])[0]


def _joined(g: Graph, x: Tensor, before: Tensor) -> Tensor:
    both = before.shape[0] == x.shape[0] and before.shape[2:] == x.shape[2:]
    return g.node("Concat", [x, before if both else x], axis=1)[0]


def _finely(g: Graph, x: Tensor) -> Tensor:
    """Q and DQ by a scale of many digits, which seldom makes ties."""
    largest = max(0.05, float(np.abs(x.value).max()))
    return _there_and_back(g, x, g.constant(largest * g.rng.uniform(0.004, 0.02), "float32"))


def _there_and_back(g: Graph, x: Tensor, scale: Tensor | None = None) -> Tensor:
    scale, zero = scale or _scale(g, ()), _zero_point(g, ())
    steps = x.value / scale.value
    # Sums of floats are on one or the other side of a half by their order alone.
    if np.any(np.abs(steps - np.floor(steps) - 0.5) < 1e-4):
        raise RejectedError("as near to one step as to the next")
    return g.node("DequantizeLinear", [g.node("QuantizeLinear", [x, scale, zero])[0], scale, zero])[
        0
    ]


def _scale(g: Graph, shape: tuple[int, ...]) -> Tensor:
    scales = g.rng.choice([0.03125, 0.0625, 0.02, 0.037, 0.11], shape or None)
    return g.constant(scales, "float32")


def _zero_point(g: Graph, shape: tuple[int, ...]) -> Tensor:
    if g.chance(0.5):
        return g.constant(g.rng.integers(-10, 11, shape), "int8")
    return g.constant(g.rng.integers(100, 140, shape), "uint8")


NODES = {
    quantize: 2,
    dequantize: 1,
    dynamic: 1,
    matmul_integer: 1,
    qdq_layer: 2,
    qdq_network: 3,
}
