"""What ONNX's Resize takes of an axis: for each new element, which old ones, and how much of each.

Resize treats one axis after the other, so this is all there is to it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

# What ONNX Runtime takes for a half where halves are rounded up: distances up to 9.5e-7 are, of
# 1.9e-6 are not.
_ALMOST_HALF = 1e-6


@dataclass(frozen=True)
class Sampling:
    """How Resize samples, the same for all axes; the names are those of ONNX's attributes."""

    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    cubic_coeff_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class ResizedAxis:
    """One axis that Resize changes.

    Parameters
    ----------
    size, new_size : int
        Elements before and after.
    scale : float
        Their ratio as the model gives it; `new_size` may be rounded down.
    start, end : float
        The part of the axis that is looked at, relative to its length.
    is_single : bool
        Whether the model gives scale or part in single precision and not sizes, which are exact.
    """

    size: int
    new_size: int
    scale: float
    start: float = 0.0
    end: float = 1.0
    is_single: bool = False


@dataclass(frozen=True)
class Taps:
    """What each new element is made of.

    Parameters
    ----------
    indices : numpy.ndarray of int64, (new_size, taps)
        The old elements.
    weights : numpy.ndarray of float64, (new_size, taps)
        How much of each.
    outside : numpy.ndarray of bool, (new_size,)
        Which new elements lie outside of the old ones and have a value of their own.
    """

    indices: np.ndarray
    weights: np.ndarray
    outside: np.ndarray

    def matrix(self, size: int) -> np.ndarray:
        """Return the weights as a matrix of shape (size, new_size)."""
        matrix = np.zeros((size, len(self.indices)))
        columns = np.broadcast_to(np.arange(len(self.indices))[:, None], self.indices.shape)
        np.add.at(matrix, (self.indices, columns), self.weights)
        return matrix


def taps_of(axis: ResizedAxis, sampling: Sampling) -> Taps:
    """Return what the new elements of an axis are made of."""
    where = sampling.coordinate_transformation_mode
    steps = _where_steps_are(axis, where)
    outside = ((steps < 0) | (steps > axis.size - 1)) & (where == "tf_crop_and_resize")
    if sampling.mode == "nearest":
        indices = _nearest(steps, sampling.nearest_mode)[:, None]
        weights = np.ones(indices.shape)
    else:
        at = _snapped(_coordinates(axis, where, np.float64))
        indices, weights = _weighted(at, axis.scale, sampling)
    if sampling.exclude_outside:
        weights = np.where((indices < 0) | (indices >= axis.size), 0, weights)
        sums = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(sums == 0, 1, sums)
    return Taps(np.clip(indices, 0, axis.size - 1), weights, outside)


def _where_steps_are(axis: ResizedAxis, mode: str) -> np.ndarray:
    """Return the coordinates by which elements are taken or left out.

    A scale such as 0.6 is none that single precision has, so that what should be a whole number is
    one or not by rounding alone. ONNX Runtime rounds in single precision, and models are made to
    agree with it.
    """
    if axis.is_single:
        return _coordinates(axis, mode, np.float32).astype(np.float64)
    return _snapped(_coordinates(axis, mode, np.float64))


def _coordinates(given: ResizedAxis, mode: str, dtype: type[np.floating]) -> np.ndarray:
    """Return where the new elements lie among the old ones, of shape (new_size,)."""
    axis = dataclasses.replace(
        given, scale=dtype(given.scale), start=dtype(given.start), end=dtype(given.end)
    )
    new = np.arange(axis.new_size, dtype=dtype)
    last, new_last = axis.size - 1, axis.new_size - 1
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and axis.new_size > 1):
        return (new + 0.5) / axis.scale - 0.5
    if mode == "half_pixel_symmetric":
        moved = axis.size / 2 * (1 - axis.new_size / (axis.scale * axis.size))
        return moved + (new + 0.5) / axis.scale - 0.5
    if mode == "asymmetric":
        return new / axis.scale
    if mode == "tf_half_pixel_for_nn":
        return (new + 0.5) / axis.scale
    if mode == "align_corners" and axis.new_size > 1:
        return new * last / new_last
    if mode == "tf_crop_and_resize" and axis.new_size > 1:
        return axis.start * last + new * (axis.end - axis.start) * last / new_last
    if mode == "tf_crop_and_resize":
        return np.full(axis.new_size, 0.5 * (axis.start + axis.end) * last)
    if mode in ("pytorch_half_pixel", "align_corners"):
        return np.zeros(axis.new_size)
    raise ValueError(f"unknown coordinate_transformation_mode {mode}")


def _snapped(at: np.ndarray) -> np.ndarray:
    """Return the coordinates without rounding errors where they are whole numbers or halves.

    Rounding up or down depends on it there, and whether one lies outside.
    """
    halves = np.round(2 * at) / 2
    return np.where(np.abs(at - halves) < 1e-9, halves, at)


def _nearest(at: np.ndarray, mode: str) -> np.ndarray:
    rounded = {
        "round_prefer_floor": lambda: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda: np.floor(at + 0.5 + _ALMOST_HALF),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }
    if mode not in rounded:
        raise ValueError(f"unknown nearest_mode {mode}")
    return rounded[mode]().astype(np.int64)


def _weighted(at: np.ndarray, scale: float, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Return indices, which may lie outside, and weights that add up to 1."""
    radius = {"linear": 1, "cubic": 2}.get(sampling.mode)
    if radius is None:
        raise ValueError(f"unknown mode {sampling.mode}")
    # With antialias the kernel is as wide as what one new element stands for.
    stretch = min(scale, 1.0) if sampling.antialias else 1.0
    before = math.ceil(radius / stretch)
    floor = np.floor(at)
    indices = floor[:, None].astype(np.int64) + np.arange(1 - before, before + 1)
    distances = np.abs(indices - at[:, None]) * stretch
    if sampling.mode == "linear":
        weights = np.clip(1 - distances, 0, 1)
    else:
        weights = _cubic(distances, sampling.cubic_coeff_a)
    if sampling.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return indices, weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Return the weights of cubic interpolation at these distances (in elements)."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))
