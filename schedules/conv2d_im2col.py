"""Convolution of NCHW images as a matrix product whose right-hand side never exists: SConv.

    out[n, co, y, x] = sum_{ci, ry, rx} w[co, ci, ry, rx] * in[n, ci, y * sh + ry * dh - top, ...]

Seen as a GEMM, filters are the rows (mr of a block, the paper's N_f), output pixels the columns
(nr, N_win: vectors run along the width, and on into the next row), and k runs over channels, kernel
rows and columns. Filters are packed at compile time into panels [tile of mr][k][mr]. The im2col
matrix exists tile by tile, when it is needed: panels [tile of nr][k][nr] for the pixels of a few
output rows and for one set of channels (Ferrari et al., TACO 2023, section 6). NCHW in and out: no
layout changes.

Loops (the macro-kernel of figure 5, sets of channels inside, so that partial sums stay in L2):

    for n, yb                      a block of output rows, perhaps parallel
      for pc                       sets of channels: partial sums in memory if there are several
        for c                      pack: pad a channel's rows, copy the windows
        for ic                     sets of filters
          for jt, it  ("IS")       a panel of windows stays in L1, filters pass by
          for it, jt  ("WS")       a panel of filters stays, windows pass by
            micro-kernel; with one set of channels: epilogue; store
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.config import Config
from tvm_blislike.cost_models import im2col as model
from tvm_blislike.cost_models.im2col_geometry import Im2colGeometry
from tvm_blislike.cost_models.im2col_space import space
from tvm_blislike.registry import Template
from tvm_blislike.schedules.common import stage
from tvm_blislike.schedules.im2col_schedule import schedule
from tvm_blislike.workload import Conv2dWorkload


def pack_weights(workload: Conv2dWorkload, config: Config, weights: np.ndarray) -> np.ndarray:
    """Pack OIHW weights into panels [tile of mr][k][mr]; rows without a filter hold zeros."""
    geo = Im2colGeometry(workload, config)
    tiles, k, mr = geo.packed_shape
    rows = np.zeros((tiles * mr, k), weights.dtype)
    rows[: workload.co] = weights.reshape(workload.co, k)
    return np.ascontiguousarray(rows.reshape(tiles, mr, k).transpose(0, 2, 1))


def pack_weights_te(workload: Conv2dWorkload, config: Config, weights: te.Tensor) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = Im2colGeometry(workload, config)
    kw, taps = workload.kw, geo.taps

    def value(tile: Any, k: Any, i: Any) -> Any:
        filter_ = tile * config.mr + i
        loaded = weights[filter_, k // taps, k % taps // kw, k % kw]
        return tirx.if_then_else(filter_ < workload.co, loaded, 0.0)

    return te.compute(geo.packed_shape, value, name="packed_weights")


def compute(
    workload: Conv2dWorkload, config: Config, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the convolution.

    Parameters
    ----------
    data : te.Tensor
        The image batch, (n, ci, h, w).
    packed : te.Tensor
        Weights as `pack_weights` makes them.

    Returns
    -------
    te.Tensor
        The result, (n, co, oh, ow).
    """
    geo = Im2colGeometry(workload, config)
    mr, nr, ow = config.mr, config.nr, workload.ow
    panels = _panels(geo, data)
    steps = geo.channels * geo.taps
    pc = te.reduce_axis((0, geo.sets), "pc")
    p = te.reduce_axis((0, steps), "p")

    def product(n: Any, yb: Any, it: Any, jt: Any, i: Any, j: Any) -> Any:
        k = pc * steps + p
        return te.sum(packed[it, k, i] * panels[n, yb, jt, k, j], axis=[pc, p])

    # Whole sets of tiles: a predicate on their number would reach the micro-kernel's block.
    tiles = (geo.blocks_m * geo.block_m, geo.tiles_n)
    shape = (workload.n, geo.blocks_h, *tiles, mr, nr)
    acc = te.compute(shape, product, name="acc", attrs=stage("acc"))

    def from_tiles(n: Any, channel: Any, yb: Any, pixel: Any) -> Any:
        at = (n, yb, channel // mr, pixel // nr, channel % mr)
        value = acc[(*at, pixel % nr)]
        if geo.tiles_n > 1 or geo.pixels == nr:
            return value
        # Always true and simplified away later; naming the last column keeps `compute_at` from
        # cutting the block of C, whose lanes beyond the pixels only the micro-kernel sees.
        return tirx.if_then_else(pixel < geo.pixels, value, acc[(*at, nr - 1)])

    # A stage of its own: tiles of pixels end anywhere in a row.
    blocks = (workload.n, workload.co, geo.blocks_h, geo.pixels)
    pixels = te.compute(blocks, from_tiles, name="pixels", attrs=stage("pixels"))

    def image(n: Any, channel: Any, y: Any, x: Any) -> Any:
        return pixels[n, channel, y // geo.rows, y % geo.rows * ow + x]

    out = (workload.n, workload.co, workload.oh, ow)
    return te.compute(out, image, name="unpack", attrs=stage("unpack"))


def _panels(geo: Im2colGeometry, data: te.Tensor) -> te.Tensor:
    """Return the windows of every block of rows: (n, blocks, tiles, k, nr)."""
    w, nr, taps = geo.workload, geo.config.nr, geo.taps
    slab = _slab(geo, data) if geo.has_slab else None

    def value(n: Any, yb: Any, jt: Any, k: Any, j: Any) -> Any:
        pixel = jt * nr + j
        c, ry, rx = k // taps, k % taps // w.kw, k % w.kw
        y, x, shift = pixel // w.ow, pixel % w.ow, rx * w.dilation[1]
        if slab is None:
            row = (yb * geo.rows + y) * w.stride[0] + ry * w.dilation[0]
            window = data[n, c, row, x + shift]
        else:
            row = y * (w.stride[0] // geo.row_step) + ry * w.dilation[0]
            window = slab[n, yb, c, row, shift % w.stride[1], x + shift // w.stride[1]]
        if geo.pixels % nr == 0:
            return window
        return tirx.if_then_else(pixel < geo.pixels, window, 0.0)

    shape = (w.n, geo.blocks_h, geo.tiles_n, geo.k, nr)
    return te.compute(shape, value, name="panels", attrs=stage("panels"))


def _slab(geo: Im2colGeometry, data: te.Tensor) -> te.Tensor:
    """Return the padded rows of every block: (n, blocks, ci, rows, phases, columns)."""
    w = geo.workload

    def value(n: Any, yb: Any, c: Any, r: Any, phase: Any, q: Any) -> Any:
        y = yb * geo.rows * w.stride[0] + r * geo.row_step - w.padding[0]
        x = q * w.stride[1] + phase - w.padding[1]
        inside = tirx.all(y >= 0, y < w.h, x >= 0, x < w.w)
        return tirx.if_then_else(inside, data[n, c, y, x], 0.0)

    shape = (w.n, geo.blocks_h, w.ci, *geo.slab_size)
    return te.compute(shape, value, name="slab", attrs=stage("slab"))


IMPLEMENTATION = Template(
    name="conv2d_im2col",
    kind="conv2d",
    applies=model.applies,
    configs=model.configs,
    estimate=model.estimate,
    workspace_bytes=model.workspace_bytes,
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    every=space,
)
