"""Pooling over windows of x (n, c, h, w); the result is (n, c, oh, ow).

`kernel`, `stride` and `dilation` are (vertical, horizontal), `padding` is (top, left, bottom,
right). With `ceil` the last window may reach beyond the padded input and is cut there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def _length(size: int, before: int, after: int, reach: int, stride: int, ceil: bool) -> int:
    span = size + before + after - reach
    if not ceil:
        return span // stride + 1
    length = -(-span // stride) + 1
    # A window must start inside the input or the padding before it.
    return length - 1 if (length - 1) * stride >= size + before else length


def _pool(
    reduce: Callable[..., np.ndarray],
    fill: float,
    x: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    ceil: bool,
) -> np.ndarray:
    top, left, bottom, right = padding
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    oh = _length(x.shape[2], top, bottom, reach[0], stride[0], ceil)
    ow = _length(x.shape[3], left, right, reach[1], stride[1], ceil)
    edges = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(np.asarray(x, np.float64), edges, constant_values=fill)
    out = np.empty((*x.shape[:2], oh, ow))
    for row, column in np.ndindex(oh, ow):
        y, z = row * stride[0], column * stride[1]
        window = padded[:, :, y : y + reach[0] : dilation[0], z : z + reach[1] : dilation[1]]
        out[:, :, row, column] = reduce(window, axis=(2, 3))
    return out


def max_pool(
    x: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    ceil: bool = False,
) -> np.ndarray:
    """Return the largest element of each window; padding never wins."""
    return _pool(np.max, -np.inf, x, kernel, stride, padding, dilation, ceil)


def average_pool(
    x: np.ndarray,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    ceil: bool = False,
    count_include_pad: bool = False,
) -> np.ndarray:
    """Return the mean of each window, over the padding too (as zeros) or without it."""
    reduce, fill = (np.mean, 0.0) if count_include_pad else (np.nanmean, np.nan)
    return _pool(reduce, fill, x, kernel, stride, padding, (1, 1), ceil)


def global_average_pool(x: np.ndarray) -> np.ndarray:
    """Return the mean over height and width, shape (n, c, 1, 1)."""
    return np.asarray(x, np.float64).mean(axis=(2, 3), keepdims=True)
