"""Pooling with padding as it is needed, rather than rules that lead to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from tvm_blislike.onnx.rewrites.pool_indices import max_pool_indices
from tvm_blislike.onnx.rewrites.site import Site
from tvm_blislike.onnx.rewrites.windows import Windows, windows_of


def max_pool(site: Site) -> Sequence[str] | None:
    """Write `MaxPool` with plain padding; the importer does not know its second result."""
    wants_indices = site.results() > 1
    plain = _is_plain(site) and not wants_indices
    if plain and not site.is_known():
        return None
    axes = windows_of(site)
    if plain:
        return None
    largest = _pool(site, "MaxPool", site.node.input[0], axes)
    return [largest, max_pool_indices(site, axes)] if wants_indices else [largest]


def average_pool(site: Site) -> Sequence[str] | None:
    """Write `AveragePool` with plain padding, and divide by what its windows really hold."""
    plain = _is_plain(site)
    if plain and not site.is_known():
        return None
    axes = windows_of(site)
    if plain:
        return None
    image = site.node.input[0]
    if not site.attribute("count_include_pad", 0):
        return [_pool(site, "AveragePool", image, axes, count_include_pad=0)]
    mean = _pool(site, "AveragePool", image, axes, count_include_pad=1)
    elements = [windows.elements(padding=True) for windows in axes]
    if all((e == w.kernel).all() for e, w in zip(elements, axes, strict=True)):
        return [mean]
    ratios = [w.kernel / e for e, w in zip(elements, axes, strict=True)]
    factors = reduce(np.multiply.outer, ratios).astype(site.dtype())
    return [site.add("Mul", mean, site.constant(factors))]


def lp_pool(site: Site) -> Sequence[str]:
    """Write `LpPool` as a root of a sum of powers, padding being zeros that do not count."""
    axes = windows_of(site)
    power = float(site.attribute("p", 2))
    magnitude = site.add("Abs", site.node.input[0])
    mean = _pool(site, "AveragePool", _power(site, magnitude, power), axes, count_include_pad=1)
    size = site.constant(np.array(math.prod(w.kernel for w in axes), site.dtype()))
    return [_power(site, site.add("Mul", mean, size), 1 / power)]


def _power(site: Site, base: str, exponent: float) -> str:
    """Put base ** exponent here, by exact operators where there are such."""
    if exponent == 1:
        return base
    if exponent == 2:
        return site.add("Mul", base, base)
    if exponent == 0.5:
        return site.add("Sqrt", base)
    return site.add("Pow", base, site.constant(np.array(exponent, site.dtype())))


def _is_plain(site: Site) -> bool:
    """Whether a node says by itself which padding it needs."""
    rules = site.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return not rules and not site.attribute("ceil_mode", 0)


def _pool(
    site: Site, operator: str, image: str, axes: Sequence[Windows], **attributes: object
) -> str:
    begins, ends = [w.begin for w in axes], [w.needed_end for w in axes]
    return site.add(
        operator,
        image,
        kernel_shape=[w.kernel for w in axes],
        strides=[w.stride for w in axes],
        dilations=[w.dilation for w in axes],
        pads=begins + ends,
        **attributes,
    )
