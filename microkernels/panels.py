"""Panels of B as micro-kernels of some types read them: not all read elements as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te

from tvm_blislike.microkernels.byte_codes import coded, coded_te, is_coded
from tvm_blislike.microkernels.masks import masked_panels, masked_panels_te
from tvm_blislike.model.types import Types


def as_read(panels: np.ndarray, groups: int, types: Types) -> np.ndarray:
    """Return panels as micro-kernels read them, with what belongs behind a call.

    Parameters
    ----------
    panels : numpy.ndarray
        (..., groups of k, nr * ks), as `products.panels_of_b` packs them.
    groups : int
        Those of a micro-kernel call; the last one may have fewer.
    """
    if is_coded(types):
        return coded(panels)
    return masked_panels(panels, groups) if types.is_masked else panels


def as_read_te(
    shape: Sequence[int], value: Callable[..., Any], groups: int, types: Types, **marks: Any
) -> te.Tensor:
    """`as_read` as TE stages, of panels whose elements are `value` of their places.

    Parameters
    ----------
    shape : sequence of int
        Of the result, (..., groups of k and closing rows, nr * ks).
    value : callable
        Element of the panels without their closing rows, of its place.
    marks : dict
        Name and attributes of the last stage.
    """
    if is_coded(types):
        return te.compute(shape, lambda *at: coded_te(types.b, value(*at)), **marks)
    if not types.is_masked:
        return te.compute(shape, value, **marks)
    *outer, rows, width = shape
    calls = -(-rows // (groups + 1))
    panels = te.compute((*outer, rows - calls, width), value, name="panels")
    return masked_panels_te(panels, groups, **marks)
