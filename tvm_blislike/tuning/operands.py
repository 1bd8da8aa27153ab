"""Seeded operands of a workload, their layouts, and the result by a slow, plain definition."""

from __future__ import annotations

import functools
import math

import numpy as np

from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload

_SEED = 20


@functools.lru_cache(maxsize=1)
def operands(workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Return random operands: image NCHW and weights OIHW, or A and B; results are about 1.

    They are kept until `operands.cache_clear()`.
    """
    rng = np.random.default_rng(_SEED)
    data, weights = operand_shapes(workload)
    depth = math.prod(weights[1:]) if isinstance(workload, Conv2dWorkload) else workload.k
    scale = np.float32(1 / math.sqrt(depth))
    image = rng.standard_normal(data, dtype=np.float32)
    scaled = rng.standard_normal(weights, dtype=np.float32)
    scaled *= scale
    types = workload.types
    return image.astype(types.a, copy=False), scaled.astype(types.b, copy=False)


def operand_shapes(workload: Workload) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the image and the weights, or of A and B."""
    w = workload
    if isinstance(w, Conv2dWorkload):
        return (w.n, w.ci, w.h, w.w), (w.co, w.ci // w.groups, w.kh, w.kw)
    batch = (w.batch,) if w.batch > 1 else ()
    shared = w.constant_b or not batch
    return (*batch, w.m, w.k), (w.k, w.n) if shared else (*batch, w.k, w.n)


def result_shape(workload: Workload, config: Config) -> tuple[int, ...]:
    """Return the shape of the result as the configuration writes it."""
    w = workload
    if isinstance(w, Conv2dWorkload):
        return Layout(config.out_layout).shape(w.n, w.co, w.oh, w.ow)
    return (w.batch, w.m, w.n) if w.batch > 1 else (w.m, w.n)


def result(workload: Workload, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the convolution (NCHW) or the product in float64."""
    data, weights = data.astype(np.float64), weights.astype(np.float64)
    return data @ weights if isinstance(workload, GemmWorkload) else _conv(workload, data, weights)


def _conv(w: Conv2dWorkload, image: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """One matrix product for each element of the kernel."""
    top, left, bottom, right = w.padding
    image = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
    out = np.zeros((w.n, w.groups, w.co // w.groups, w.oh * w.ow))
    grouped = weights.reshape(w.groups, w.co // w.groups, w.ci // w.groups, w.kh, w.kw)
    for y, x in np.ndindex(w.kh, w.kw):
        rows = slice(y * w.dilation[0], y * w.dilation[0] + (w.oh - 1) * w.stride[0] + 1)
        columns = slice(x * w.dilation[1], x * w.dilation[1] + (w.ow - 1) * w.stride[1] + 1)
        seen = image[:, :, rows, columns][:, :, :: w.stride[0], :: w.stride[1]]
        out += grouped[..., y, x] @ seen.reshape(w.n, w.groups, w.ci // w.groups, -1)
    return out.reshape(w.n, w.co, w.oh, w.ow)


def in_layout(workload: Workload, layout: str, data: np.ndarray) -> np.ndarray:
    """Return the data operand as configurations with this `data_layout` read it."""
    if isinstance(workload, GemmWorkload):
        return data
    return np.ascontiguousarray(Layout(layout).packed(data))


def from_layout(workload: Workload, config: Config, out: np.ndarray) -> np.ndarray:
    """Return a result as `result` gives it."""
    if isinstance(workload, GemmWorkload):
        return out
    return Layout(config.out_layout).unpacked(out)
