"""Where in the image the largest elements of `MaxPool` lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site
from tvm_blislike.onnx.rewrites.windows import Windows


def max_pool_indices(site: Site, axes: Sequence[Windows]) -> str:
    """Put nodes here that compute the second result of `MaxPool`, and return it.

    The elements of each window are gathered side by side; tables say where each of them lies.
    """
    batch, channels, *sizes = site.shape()
    positions = [_inside(windows) for windows in axes]
    gathered = site.node.input[0]
    for axis in reversed(range(len(axes))):  # each gather makes two axes of one
        gathered = site.add("Gather", gathered, site.constant(positions[axis]), axis=axis + 2)
    rank = 2 * len(axes) + 2
    order = [0, 1, *range(2, rank, 2), *range(3, rank, 2)]
    counts = [windows.count for windows in axes]
    taps = math.prod(windows.kernel for windows in axes)
    shape = site.constant(np.array([batch, channels, *counts, taps], np.int64))
    side_by_side = site.add("Reshape", site.add("Transpose", gathered, perm=order), shape)
    tap = site.add("ArgMax", side_by_side, axis=len(axes) + 2, keepdims=0)

    table = _table(positions, _strides(sizes, bool(site.attribute("storage_order", 0))))
    rows = np.arange(math.prod(counts), dtype=np.int64).reshape(counts) * taps
    entry = site.add("Add", tap, site.constant(rows))
    inside = site.add("Gather", site.constant(table), entry, axis=0)
    images = np.arange(batch * channels, dtype=np.int64) * math.prod(sizes)
    images = images.reshape(batch, channels, *[1] * len(axes))
    return site.add("Add", inside, site.constant(images))


def _inside(windows: Windows) -> np.ndarray:
    """Return where elements lie, in place of padding the first of the window that does not."""
    positions = windows.positions
    inside = (positions >= 0) & (positions < windows.size)
    first = np.take_along_axis(positions, inside.argmax(axis=1)[:, None], axis=1)
    return np.where(inside, positions, first)


def _strides(sizes: Sequence[int], column_major: bool) -> list[int]:
    if column_major:
        return [math.prod(sizes[:axis]) for axis in range(len(sizes))]
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _table(positions: Sequence[np.ndarray], strides: Sequence[int]) -> np.ndarray:
    """Return the index of each tap of each window, of shape (windows * taps,)."""
    rank = len(positions)
    table = np.zeros([1] * (2 * rank), np.int64)
    for axis, (where, stride) in enumerate(zip(positions, strides, strict=True)):
        shape = [1] * (2 * rank)
        shape[axis], shape[axis + rank] = where.shape
        table = table + where.reshape(shape) * stride
    return table.reshape(-1)
