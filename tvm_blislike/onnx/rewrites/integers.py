"""Operators on integers of 8 bits whose sums are in 32 bits, exactly.

Data and weights are widened to 32 bits without their zero points; so padding is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.quantization import dynamic_steps
from tvm_blislike.onnx.rewrites.site import Site


def conv(site: Site) -> Sequence[str]:
    """Write `ConvInteger`: x, w and their zero points, those of w by output."""
    data = _widened(site, site.node.input[0], _zero(site, 2, None))
    by_output = [-1, *[1] * (len(site.shape(1)) - 1)]
    weights = _widened(site, site.node.input[1], _zero(site, 3, by_output))
    result = site.add("Conv", data, weights)
    site.nodes[-1].attribute.extend(site.node.attribute)
    return [result]


def matmul_to_float(site: Site) -> Sequence[str]:
    """Write `MatMulIntegerToFloat`: a, b, their scales, their zero points and a bias.

    What belongs to b is by column.
    """
    a, b, a_scale, b_scale = site.node.input[:4]
    if math.prod(site.shape(2)) != 1:
        site.refuse("its data have several scales")
    data = _widened(site, a, _zero(site, 4, None))
    weights = _widened(site, b, _zero(site, 5, [-1]))
    return [_to_float(site, data, weights, site.add("Mul", a_scale, b_scale), 6)]


def dynamic_matmul(site: Site) -> Sequence[str]:
    """Write `DynamicQuantizeMatMul`: a in floats, b, its scale and zero point, and a bias."""
    steps, scale, zero = dynamic_steps(site)
    _, b, b_scale = site.node.input[:3]
    data = _widened(site, steps, site.cast(zero, np.int32))
    weights = _widened(site, b, _zero(site, 3, [-1]))
    return [_to_float(site, data, weights, site.add("Mul", scale, b_scale), 4)]


def _to_float(site: Site, data: str, weights: str, scale: str, bias: int) -> str:
    """Put a product of integers here in floats, with a bias if there is one."""
    total = site.cast(site.add("MatMul", data, weights), np.float32)
    result = site.add("Mul", total, scale)
    return site.add("Add", result, site.node.input[bias]) if site.has_operand(bias) else result


def _widened(site: Site, tensor: str, zero: str | None) -> str:
    """Put a tensor less its zero point here, in 32 bits."""
    wide = site.cast(tensor, np.int32)
    return wide if zero is None else site.add("Sub", wide, zero)


def _zero(site: Site, index: int, shape: Sequence[int] | None) -> str | None:
    """Return zero points in 32 bits, a single one as a scalar; None where they are left out.

    Several along one axis get `shape`; where that is None they are refused.
    """
    if not site.has_operand(index):
        return None
    wide = site.cast(site.node.input[index], np.int32)
    given = site.shape(index)
    if math.prod(given) == 1:
        return site.reshaped(wide, [])
    if shape is None:
        site.refuse("its data have several zero points")
    return site.reshaped(wide, shape) if len(given) == 1 else wide
