"""Quantization whose scale follows from the data, and of halves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def dynamic_steps(site: Site) -> Sequence[str]:
    """Put `DynamicQuantizeLinear` of the first operand here: steps, scale and zero point."""
    return site.add_all("DynamicQuantizeLinear", [site.node.input[0]], results=3)


def quantize(site: Site) -> Sequence[str] | None:
    """Divide fp16 by its scale in fp32, as ONNX Runtime does.

    A quotient that is rounded to fp16 lies between two steps where the true one does not.
    """
    if not site.is_of(np.float16):
        return None
    data, scale, *zero = site.node.input
    return [site.again(site.cast(data, np.float32), site.cast(scale, np.float32), *zero)]
