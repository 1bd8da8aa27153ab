"""Operators on quantized tensors, written as those on real numbers between (de)quantizations.

`passes/quantized` computes them with integers again, wherever that is possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_blislike.onnx.rewrites.pooling import average_pool
from tvm_blislike.onnx.rewrites.site import Site


def conv(site: Site) -> Sequence[str]:
    """Write `QLinearConv`: x, w and y, each with its scale and zero point, and a bias in int32."""
    image, weights = dequantized(site, 0), dequantized(site, 3, axis=0)
    operands = [image, weights]
    if site.has_operand(8):
        operands.append(_bias(site, 8))
    return [_quantized(site, _with_attributes(site, "Conv", *operands), 6)]


def matmul(site: Site) -> Sequence[str]:
    """Write `QLinearMatMul`: a, b and y, each with its scale and zero point."""
    return [_quantized(site, site.add("MatMul", dequantized(site, 0), _columns(site, 3)), 6)]


def gemm(site: Site) -> Sequence[str]:
    """Write `QGemm`: a and b with their steps, c in int32, and the steps of y, if it has any.

    ONNX Runtime, QGemm: c is in steps of alpha * a_scale * b_scale.
    """
    alpha = site.attribute("alpha", 1.0)
    turned = {name: site.attribute(name, 0) for name in ("transA", "transB")}
    operands = [
        dequantized(site, 0, factor=alpha),
        dequantized(site, 3, axis=0 if turned["transB"] else 1),
    ]
    if site.has_operand(6):
        operands.append(_bias(site, 6, alpha))
    product = site.add("Gemm", *operands, **turned)
    return [_quantized(site, product, 7) if site.has_operand(7) else product]


def of_two(site: Site) -> Sequence[str]:
    """Write `QLinearAdd` and `QLinearMul`."""
    operator = site.node.op_type.removeprefix("QLinear")
    return [_quantized(site, site.add(operator, dequantized(site, 0), dequantized(site, 3)), 6)]


def of_one(site: Site) -> Sequence[str]:
    """Write `QLinearSigmoid`, `QLinearLeakyRelu` and `QLinearGlobalAveragePool`."""
    _require_channels_first(site)
    operator = site.node.op_type.removeprefix("QLinear")
    result = _with_attributes(site, operator, dequantized(site, 0))
    return [_quantized(site, result, 3)]


def softmax(site: Site) -> Sequence[str]:
    """Write `QLinearSoftmax`, which before opset 13 took all axes behind one together."""
    axis = site.attribute("axis", -1) % len(site.shape())
    if site.attribute("opset", 13) < 13 and axis != len(site.shape()) - 1:
        site.refuse(f"its axis {axis} is not the last one, in the manner before opset 13")
    return [_quantized(site, site.add("Softmax", dequantized(site, 0), axis=axis), 3)]


def pool(site: Site) -> Sequence[str]:
    """Write `QLinearAveragePool`, whose padding is the number 0 rather than the zero point."""
    _require_channels_first(site)
    image = dequantized(site, 0)
    inner = site.instead("AveragePool", image, np.float32, without=["channels_last"])
    results = average_pool(inner) or [_with_attributes(inner, "AveragePool", image)]
    return [_quantized(site, results[0], 3)]


def concat(site: Site) -> Sequence[str]:
    """Write `QLinearConcat`: the steps of the result, then each operand with its own."""
    parts = [dequantized(site, i) for i in range(2, len(site.node.input), 3)]
    return [_quantized(site, _with_attributes(site, "Concat", *parts), 0)]


def dequantized(site: Site, index: int, axis: int = 0, factor: float = 1) -> str:
    """Put the real numbers of an operand here, behind which stand its scale and zero point.

    Parameters
    ----------
    site : Site
        The node.
    index : int
        The operand.
    axis : int
        Of several scales.
    factor : float
        What the numbers are multiplied by.
    """
    scale = _scale(site, index + 1)
    if factor != 1:
        scale = _product(site, scale, _known(site, np.float32(factor)))
    operands = [site.node.input[index], scale.name]
    if site.has_operand(index + 2):
        operands.append(_zero(site, index + 2, scale))
    return site.add("DequantizeLinear", *operands, **_along(scale, axis))


@dataclass(frozen=True)
class _Scale:
    """The size of steps: a tensor, its shape, and its values where they are known."""

    name: str
    shape: tuple[int, ...]
    values: np.ndarray | None


def _known(site: Site, values: np.ndarray) -> _Scale:
    return _Scale(site.constant(values), values.shape, values)


def _scale(site: Site, index: int) -> _Scale:
    """Return a scale in single precision, one of one element as a scalar."""
    shape, values = site.shape(index), site.known(index)
    if math.prod(shape) == 1:
        shape = ()
    if len(shape) > 1:
        site.refuse("it has scales along several axes")
    if values is not None:
        return _known(site, values.astype(np.float32).reshape(shape))
    single = site.cast(site.node.input[index], np.float32)
    return _Scale(site.reshaped(single, shape), shape, None)


def _product(site: Site, one: _Scale, other: _Scale) -> _Scale:
    if one.values is not None and other.values is not None:
        return _known(site, np.asarray(one.values * other.values))
    shape = np.broadcast_shapes(one.shape, other.shape)
    return _Scale(site.add("Mul", one.name, other.name), shape, None)


def _zero(site: Site, index: int, scale: _Scale) -> str:
    """Return a zero point of the shape of its scale."""
    values, shape = site.known(index), site.shape(index)
    if values is None and math.prod(shape) == math.prod(scale.shape):
        return site.reshaped(site.node.input[index], scale.shape)
    if values is None:
        site.refuse("it has another number of zero points than of scales, at run time")
    if values.size > 1 and (values == values.flat[0]).all():
        values = values.flat[0]
    if values.size > math.prod(scale.shape):
        site.refuse("it has more zero points than scales")
    return site.constant(np.broadcast_to(values.reshape(-1 if scale.shape else ()), scale.shape))


def _along(scale: _Scale, axis: int) -> dict[str, int]:
    return {"axis": axis} if scale.shape else {}


def _columns(site: Site, index: int) -> str:
    """Put a matrix here whose columns may have a scale each."""
    return dequantized(site, index, axis=len(site.shape(index)) - 1)


def _quantized(site: Site, real: str, index: int) -> str:
    """Put the steps of a result here, whose scale is an operand, and the zero point behind it."""
    scale = _scale(site, index)
    if scale.shape:
        site.refuse("its result has several scales")
    if site.has_operand(index + 1):
        zero = _zero(site, index + 1, scale)
    else:
        zero = site.constant(np.zeros((), site.dtype()))
    return site.add("QuantizeLinear", real, scale.name, zero)


def _bias(site: Site, index: int, factor: float = 1) -> str:
    """Put a bias in int32 here: its steps are the product of those of operands 0 and 3."""
    scale = _product(site, _scale(site, 1), _scale(site, 4))
    if factor != 1:
        scale = _product(site, scale, _known(site, np.float32(factor)))
    along = _along(scale, len(site.shape(index)) - 1)
    return site.add("DequantizeLinear", site.node.input[index], scale.name, **along)


def _with_attributes(site: Site, operator: str, *operands: str) -> str:
    """Put another operator here that has the node's attributes."""
    result = site.add(operator, *operands)
    kept = [item for item in site.node.attribute if item.name != "channels_last"]
    site.nodes[-1].attribute.extend(kept)
    return result


def _require_channels_first(site: Site) -> None:
    if site.attribute("channels_last", 0):
        site.refuse("channels_last is set; export it with the channels in axis 1")
