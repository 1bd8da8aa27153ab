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


def _there_and_back(g: Graph, x: Tensor) -> Tensor:
    scale, zero = _scale(g, ()), _zero_point(g, ())
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


NODES = {quantize: 2, dequantize: 1, dynamic: 1, matmul_integer: 1, qdq_layer: 2}
