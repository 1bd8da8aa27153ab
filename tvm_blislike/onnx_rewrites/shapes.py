"""Operators that only give a tensor another shape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx_rewrites.site import Site


def unsqueeze(site: Site) -> Sequence[str] | None:
    """Write `Unsqueeze` with its axes in order, in which the importer inserts them."""
    axes = site.attribute("axes") if site.opset < 13 else site.known(1)
    if axes is None or np.size(axes) < 2:  # functions of ONNX give a single axis without a list
        return None
    shape = list(site.shape())
    for axis in sorted(int(axis) % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return [site.reshaped(site.node.input[0], shape)]
