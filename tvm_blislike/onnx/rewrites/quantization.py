"""Quantization whose scale follows from the data."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_blislike.onnx.rewrites.site import Site


def dynamic_steps(site: Site) -> Sequence[str]:
    """Put `DynamicQuantizeLinear` of the first operand here: steps, scale and zero point."""
    return site.add_all("DynamicQuantizeLinear", [site.node.input[0]], results=3)
