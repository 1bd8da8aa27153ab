"""Reductions over no axes at all."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_blislike.onnx_rewrites.site import Site

_OF_ONE_ELEMENT = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log"}


def reduce_nothing(site: Site) -> Sequence[str] | None:
    """Write a reduction with `noop_with_empty_axes` and no axes as what it does to each element."""
    if not site.attribute("noop_with_empty_axes", 0) or site.attribute("axes"):
        return None
    if site.has_operand(1) and site.value(1).size:
        return None
    data, operator = site.node.input[0], site.node.op_type
    if operator == "ReduceSumSquare":
        return [site.add("Mul", data, data)]
    return [site.add(_OF_ONE_ELEMENT.get(operator, "Identity"), data)]
