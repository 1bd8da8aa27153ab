"""Reductions over no axes at all, and of infinities."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_blislike.onnx.rewrites.site import Site

_OF_ONE_ELEMENT = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log"}


def reduce_nothing(site: Site) -> Sequence[str] | None:
    """Write a reduction with `noop_with_empty_axes` and no axes as what it does to each element."""
    if not site.attribute("noop_with_empty_axes", 0) or _named_axes(site):
        return None
    data, operator = site.node.input[0], site.node.op_type
    if operator == "ReduceSumSquare":
        return [site.add("Mul", data, data)]
    return [site.add(_OF_ONE_ELEMENT.get(operator, "Identity"), data)]


def log_sum_exp(site: Site) -> Sequence[str]:
    """Write `ReduceLogSumExp` so that infinities do not become NaN.

    It subtracts the largest element, and inf - inf is no number: where that element is infinite, 1
    or -1 is subtracted instead.
    """
    nothing = reduce_nothing(site)
    if nothing is not None:
        return nothing
    data, shape = site.node.input[0], site.shape()
    axes = sorted(axis % len(shape) for axis in _named_axes(site)) or list(range(len(shape)))
    largest = site.reduced("ReduceMax", data, axes, keepdims=1) if axes else data
    infinite = site.add("IsInf", largest)
    shift = site.add("Where", infinite, site.add("Sign", largest), largest)
    powers = site.add("Exp", site.add("Sub", data, shift))
    total = site.reduced("ReduceSum", powers, axes, keepdims=1) if axes else powers
    result = site.add("Add", site.add("Log", total), shift)
    if site.attribute("keepdims", 1):
        return [result]
    return [site.reshaped(result, [size for i, size in enumerate(shape) if i not in axes])]


def _named_axes(site: Site) -> list[int]:
    """Return the axes that a reduction names, none where it reduces all of them."""
    given = site.value(1) if site.has_operand(1) else site.attribute("axes", ())
    return [int(axis) for axis in given]
