"""Operators that look at regions of an image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def roi_align(site: Site) -> Sequence[str] | None:
    """Write `RoiAlign` with regions in pixels; TVM moves them before it scales them.

    What it computes is fp32.
    """
    scale = site.attribute("spatial_scale", 1.0)
    dtype = site.known_dtype()
    if dtype is None or (scale == 1 and dtype == np.float32):
        return None
    data, regions, batches = site.node.input
    regions = site.add("Mul", regions, site.constant(np.array(scale, dtype)))
    wide = np.dtype(np.float32)
    if dtype != wide:
        data, regions = (site.cast(tensor, wide) for tensor in (data, regions))
    pooled = site.again(data, regions, batches, without=("spatial_scale",))
    return [pooled if dtype == wide else site.cast(pooled, dtype)]
