"""Matrix multiplication and convolution."""

from __future__ import annotations

import numpy as np


def gemm(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> np.ndarray:
    """Return alpha * A x B + beta * C.

    A is (..., m, k), or (..., k, m) with `trans_a`; B is (..., k, n), or (..., n, k) with
    `trans_b`; C broadcasts to the result (..., m, n).
    """
    a, b, c = (np.asarray(operand, np.float64) for operand in (a, b, c))
    a = a.swapaxes(-1, -2) if trans_a else a
    b = b.swapaxes(-1, -2) if trans_b else b
    return alpha * np.einsum("...mk,...kn->...mn", a, b) + beta * c


def conv2d(
    x: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray | None = None,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """Return the cross-correlation of x (n, ci, h, w) with kernel (co, ci / groups, kh, kw).

    `padding` is (top, left, bottom, right), bias is (co,), the result (n, co, oh, ow). With
    groups = ci it is a depthwise convolution of multiplier co / ci.
    """
    top, left, bottom, right = padding
    x = np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, ci, h, w = x.shape
    co, _, kh, kw = kernel.shape
    oh = (h - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (w - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    x = x.reshape(n, groups, ci // groups, h, w)
    kernel = np.asarray(kernel, np.float64).reshape(groups, co // groups, ci // groups, kh, kw)
    out = np.zeros((n, groups, co // groups, oh, ow))
    for i, j in np.ndindex(kh, kw):
        rows = i * dilation[0] + stride[0] * np.arange(oh)
        columns = j * dilation[1] + stride[1] * np.arange(ow)
        seen = x[:, :, :, rows][..., columns]
        out += np.einsum("ngchw,goc->ngohw", seen, kernel[..., i, j])
    out = out.reshape(n, co, oh, ow)
    return out if bias is None else out + np.asarray(bias, np.float64).reshape(1, co, 1, 1)
