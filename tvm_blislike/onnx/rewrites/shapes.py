"""Operators that give a tensor another shape, work on one of another shape, or on no elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site


def unsqueeze(site: Site) -> Sequence[str] | None:
    """Write `Unsqueeze` with its axes in order, in which the importer inserts them, and as a list.

    Functions of ONNX give a single axis without one.
    """
    axes = site.attribute("axes") if site.opset < 13 else site.known(1)
    if axes is None or np.shape(axes) == (1,):
        return None
    shape, axes = list(site.shape()), np.atleast_1d(axes)
    for axis in sorted(int(axis) % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return [site.reshaped(site.node.input[0], shape)]


def flatten(site: Site) -> Sequence[str] | None:
    """Write the `Flatten` of a tensor without elements with both sizes.

    The importer has it find the second one, which no number of elements tells.
    """
    if not site.is_empty():
        return None
    shape, axis = site.shape(), site.attribute("axis", 1)
    axis += len(shape) * (axis < 0)
    sizes = [math.prod(shape[:axis]), math.prod(shape[axis:])]
    return [site.reshaped(site.node.input[0], sizes)]


def cum_sum(site: Site) -> Sequence[str] | None:
    """Write the `CumSum` of a tensor without elements as that tensor.

    TVM turns the axes around by dividing by their sizes.
    """
    if not site.is_empty():
        return None
    return [site.add("Identity", site.node.input[0])]


def hardmax(site: Site) -> Sequence[str] | None:
    """Write the `Hardmax` before opset 13, which looks at all axes from its own on as one."""
    if site.opset >= 13:
        return None
    axis, shape = site.attribute("axis", 1), site.shape()
    rows = site.add("Flatten", site.node.input[0], axis=axis % max(len(shape), 1))
    return [site.reshaped(site.add("Hardmax", rows, axis=-1), shape)]
