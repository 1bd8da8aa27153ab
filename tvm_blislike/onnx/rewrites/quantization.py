"""Quantization whose scale follows from the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def dynamic_quantize(site: Site) -> Sequence[str]:
    """Write `DynamicQuantizeLinear` so that zeros alone have a scale: 1, as in ONNX Runtime.

    ONNX, DynamicQuantizeLinear: scale = (max(x, 0) - min(x, 0)) / 255, zero point = the rounded
    -min(x, 0) / scale.
    """
    data, axes = site.node.input[0], range(len(site.shape()))
    zero, one, steps = (site.constant(np.array(v, np.float32)) for v in (0, 1, 255))
    least = site.add("Min", site.reduced("ReduceMin", data, axes), zero)
    largest = site.add("Max", site.reduced("ReduceMax", data, axes), zero)
    span = site.add("Div", site.add("Sub", largest, least), steps)
    scale = site.add("Where", site.add("Equal", span, zero), one, span)
    place = site.add("Round", site.add("Div", site.add("Sub", zero, least), scale))
    inside = site.add("Min", site.add("Max", place, zero), steps)
    zero_point = site.cast(inside, np.uint8)
    return [site.add("QuantizeLinear", data, scale, zero_point), scale, zero_point]
