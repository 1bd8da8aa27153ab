"""`Pad` with constants: the operator of Relax, of which passes know more than of TVM's function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from tvm_blislike.tvm_seams import constant_array, dtype_name, is_constant, static_shape

_FLOATS = ("float32", "float16")


def pad(
    builder: relax.BlockBuilder, operands: Sequence[relax.Expr | None], settings: Mapping[str, Any]
) -> relax.Expr | None:
    """Convert `Pad` of floats by a number; None for any other, which is left to TVM."""
    data, *rest = operands
    pads, value, axes = _known(rest, settings)
    shape = static_shape(data)
    mode = settings.get("mode", b"constant")
    if shape is None or pads is None or mode != b"constant" or dtype_name(data) not in _FLOATS:
        return None
    places = range(len(shape)) if axes is None else [int(axis) % len(shape) for axis in axes]
    before, behind = np.split(pads.reshape(-1), 2)
    if len(before) != len(places) or np.any(pads < 0):
        return None
    widths = np.zeros((len(shape), 2), np.int64)
    widths[list(places)] = np.stack([before, behind], axis=1)
    number = 0.0 if value is None or not value.size else float(value.item())
    return builder.emit(relax.op.nn.pad(data, widths.reshape(-1).tolist(), "constant", number))


def _known(
    rest: Sequence[relax.Expr | None], settings: Mapping[str, Any]
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Return widths, number and axes; widths are None where something waits for run time."""
    if "pads" in settings:  # before opset 11
        return np.asarray(settings["pads"]), np.asarray(settings.get("value", 0.0)), None
    given = [*rest, None, None, None][:3]
    if any(each is not None and not is_constant(each) for each in given):
        return None, None, None
    pads, value, axes = (None if each is None else constant_array(each) for each in given)
    return pads, value, axes
