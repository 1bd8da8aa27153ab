"""How far two results of the same computation lie apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def max_rel_error(
    outputs: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray], least: float = 0.0
) -> float:
    """Return the largest difference relative to the largest absolute value of the same output.

    That value counts as `least` when it is smaller. NaN when any value is, or when a shape differs.
    """
    errors = [_rel_error(outputs[name], reference[name], least) for name in reference]
    return float(np.max(errors))


def _rel_error(values: np.ndarray, expected: np.ndarray, least: float) -> float:
    if values.shape != expected.shape:
        return float("nan")
    if not expected.size:
        return 0.0
    largest = np.maximum(np.abs(expected.astype("float64")).max(), least)  # NaN stays NaN
    difference = float(np.abs(values.astype("float64") - expected.astype("float64")).max())
    return float(difference / largest) if largest else difference
