"""What SConv is compared with: im2col and a BLAS library's matrix product.

Padded image, matrix of windows and result are allocated once, so that a call costs what its copies
and its product cost. Convolutions of stride 1 whose kernel is one pixel have the image for a matrix
(section 7.5 of the paper): there a call is the product alone.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tvm_blislike.model.workload import Conv2dWorkload

# C = A B of row-major float32 matrices, any of them contiguous: (A, B, C).
Sgemm = Callable[[np.ndarray, np.ndarray, np.ndarray], object]
_ROW_MAJOR, _NO_TRANSPOSE = 101, 111


def openblas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Multiply by numpy's BLAS library, OpenBLAS in the wheels of PyPI."""
    np.matmul(a, b, out=c)


def load_mkl(path: Path) -> Sgemm:
    """Return MKL's product, on one thread.

    Parameters
    ----------
    path : Path
        The library `libmkl_rt`.

    Raises
    ------
    OSError
        When there is no such library.
    """
    os.environ.setdefault("MKL_THREADING_LAYER", "SEQUENTIAL")
    function = ctypes.CDLL(str(path)).cblas_sgemm
    number, one, zero = ctypes.c_int, ctypes.c_float(1.0), ctypes.c_float(0.0)
    pointer = ctypes.c_void_p
    modes, sizes = [number] * 3, [number] * 3
    matrices = [pointer, number, pointer, number, ctypes.c_float, pointer, number]
    function.argtypes = [*modes, *sizes, ctypes.c_float, *matrices]
    function.restype = None

    def sgemm(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
        (m, k), n = a.shape, b.shape[1]
        modes = (_ROW_MAJOR, _NO_TRANSPOSE, _NO_TRANSPOSE)
        # Looking the address up through `ndarray.ctypes` would take longer than a small product.
        at = [x.__array_interface__["data"][0] for x in (a, b, c)]
        function(*modes, m, n, k, one, at[0], k, at[1], n, zero, at[2], n)

    return sgemm


def is_pointwise(workload: Conv2dWorkload) -> bool:
    """Whether the image is the matrix: 1x1 windows of stride 1."""
    w = workload
    return w.kh == w.kw == 1 and w.stride == (1, 1) and not any(w.padding)


class Im2colGemm:
    """One convolution of one image by copying every window into a matrix and multiplying.

    Parameters
    ----------
    workload : Conv2dWorkload
        Of one image and one group.
    data, weights : numpy.ndarray
        (1, ci, h, w) and (co, ci, kh, kw).
    """

    def __init__(self, workload: Conv2dWorkload, data: np.ndarray, weights: np.ndarray) -> None:
        w = workload
        top, left, bottom, right = w.padding
        self.data = data[0]
        self.padded = np.zeros((w.ci, w.h + top + bottom, w.w + left + right), np.float32)
        self.inside = self.padded[:, top : top + w.h, left : left + w.w]
        self.weights = np.ascontiguousarray(weights.reshape(w.co, -1))
        self.is_pointwise, self.has_padding = is_pointwise(w), any(w.padding)
        shape = (w.ci, w.kh, w.kw, w.oh, w.ow)
        self.windows = np.empty((0,) if self.is_pointwise else shape, np.float32)
        depth = w.ci * w.kh * w.kw
        matrix = self.data if self.is_pointwise else self.windows
        self.matrix = matrix.reshape(depth, w.oh * w.ow)
        self.source = _windows(self.padded if self.has_padding else self.data, w)
        self.out = np.empty((w.co, w.oh * w.ow), np.float32)

    def run(self, sgemm: Sgemm) -> np.ndarray:
        """Return the result, (co, oh * ow)."""
        if self.has_padding:
            np.copyto(self.inside, self.data)
        if not self.is_pointwise:
            np.copyto(self.windows, self.source)
        sgemm(self.weights, self.matrix, self.out)
        return self.out


def _windows(data: np.ndarray, w: Conv2dWorkload) -> np.ndarray:
    """Return the view (ci, kh, kw, oh, ow) of a padded image."""
    c, y, x = data.strides
    strides = (c, y * w.dilation[0], x * w.dilation[1], y * w.stride[0], x * w.stride[1])
    shape = (w.ci, w.kh, w.kw, w.oh, w.ow)
    return np.lib.stride_tricks.as_strided(data, shape, strides, writeable=False)
