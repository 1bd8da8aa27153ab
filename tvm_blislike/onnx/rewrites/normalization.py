"""Normalizations that TVM has in part only, written out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site

# What `MeanVarianceNormalization` adds to a deviation before it divides by it.
_LEAST_DEVIATION = 1e-9


def layer_norm(site: Site) -> Sequence[str] | None:
    """Write `LayerNormalization` out where its mean or deviation is read, or its type is fp64."""
    if site.results() == 1 and not site.is_of(np.float64):
        return None
    data = site.node.input[0]
    axes = _axes(site)
    mean = site.reduced("ReduceMean", data, axes, keepdims=1)
    centred = site.add("Sub", data, mean)
    variance = site.reduced("ReduceMean", site.add("Mul", centred, centred), axes, keepdims=1)
    inverse = _inverse_root(site, variance)
    result = site.add("Mul", site.add("Mul", centred, inverse), site.node.input[1])
    if site.has_operand(2):
        result = site.add("Add", result, site.node.input[2])
    return [result, mean, inverse]


def rms_norm(site: Site) -> Sequence[str] | None:
    """Write `RMSNormalization` out over all axes, for which TVM has no schedule, and for fp64."""
    axes = _axes(site)
    if axes[0] > 0 and not site.is_of(np.float64):
        return None
    data = site.node.input[0]
    squares = site.reduced("ReduceMean", site.add("Mul", data, data), axes, keepdims=1)
    scaled = site.add("Mul", data, _inverse_root(site, squares))
    return [site.add("Mul", scaled, site.node.input[1])]


def mean_variance_norm(site: Site) -> Sequence[str] | None:
    """Write `MeanVarianceNormalization` by squares of differences.

    TVM subtracts the square of the mean from the mean of squares, which leaves nothing of small
    variances, and divides by 0 where all elements are the same.
    """
    if site.known_dtype() is None:
        return None
    data, narrow = site.node.input[0], site.is_of(np.float16)
    if narrow:
        data = site.cast(data, np.float32)
    axes = site.attribute("axes", [0, 2, 3])
    centred = site.add("Sub", data, site.reduced("ReduceMean", data, axes, keepdims=1))
    variance = site.reduced("ReduceMean", site.add("Mul", centred, centred), axes, keepdims=1)
    wide = np.dtype(np.float32) if narrow else site.dtype()
    tiny = site.constant(np.array(_LEAST_DEVIATION, wide))
    result = site.add("Div", centred, site.add("Add", site.add("Sqrt", variance), tiny))
    return [site.cast(result, np.float16) if narrow else result]


def lp_norm(site: Site) -> Sequence[str]:
    """Write `LpNormalization` as a quotient; where all elements are 0 they stay so."""
    power, axis = site.attribute("p", 2), site.attribute("axis", -1)
    if power not in (1, 2):
        site.refuse(f"its p is {power}; ONNX knows 1 and 2")
    data = site.node.input[0]
    norm = site.reduced(f"ReduceL{power}", data, [axis % len(site.shape())], keepdims=1)
    zero, one = (site.constant(np.array(value, site.dtype())) for value in (0, 1))
    divisor = site.add("Where", site.add("Equal", norm, zero), one, norm)
    return [site.add("Div", data, divisor)]


def _axes(site: Site) -> list[int]:
    rank = len(site.shape())
    return list(range(site.attribute("axis", -1) % rank, rank))


def _inverse_root(site: Site, squares: str) -> str:
    epsilon = site.constant(np.array(site.attribute("epsilon", 1e-5), site.dtype()))
    return site.add("Reciprocal", site.add("Sqrt", site.add("Add", squares, epsilon)))
