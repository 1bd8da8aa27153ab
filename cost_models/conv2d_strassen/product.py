"""The product that a 1x1 convolution of one image is."""

from __future__ import annotations

from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload


def product_of(workload: Conv2dWorkload) -> GemmWorkload:
    """Return the product of outputs' pixels (oh * ow, ci) by weights (ci, co)."""
    w = workload
    return GemmWorkload(w.oh * w.ow, w.co, w.ci, types=w.types)
