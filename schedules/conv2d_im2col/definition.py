"""Convolution of NCHW images as a matrix product whose right-hand side never exists: SConv.

    out[n, co, y, x] = sum_{ci, ry, rx} w[co, ci, ry, rx] * in[n, ci, y * sh + ry * dh - top, ...]

Seen as a GEMM, filters are the rows (mr of a block, the paper's N_f), output pixels the columns
(nr, N_win: vectors run along the width, and on into the next row), and k runs over channels, kernel
rows and columns. Filters are packed at compile time into panels [tile of mr][k][mr]. The im2col
matrix exists tile by tile, when it is needed: panels [tile of nr][k][nr] for the pixels of a few
output rows and for one set of channels (Ferrari et al., TACO 2023, section 6). NCHW in and out: no
layout changes. Each group of an image is a product of its own.

Where the pixels of an image fill no vectors (14x14 and 7x7 are 12.25 and 3.06 of 16 lanes), the
operands may change places: pixels are the rows, of which none is wasted, filters the lanes, and
blocks of C are transposed in registers (`register_transposes`). Windows of one pixel need no
panels: they are read where they lie (`in_place`), or packed one tile at a time.

Loops (the macro-kernel of figure 5, sets of channels inside, so that partial sums stay in L2):

    for image, yb                  a group of an image; a block of output rows; perhaps parallel
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

from tvm_blislike.cost_models.conv2d_im2col import candidates
from tvm_blislike.cost_models.conv2d_im2col import estimate as model
from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import Im2colGeometry
from tvm_blislike.cost_models.conv2d_im2col.nests import nests
from tvm_blislike.cost_models.conv2d_im2col.space import space
from tvm_blislike.cost_models.roofline import peak_seconds
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import stage
from tvm_blislike.schedules.conv2d_im2col.schedule import schedule


def pack_weights(workload: Conv2dWorkload, config: Im2colConfig, weights: np.ndarray) -> np.ndarray:
    """Pack OIHW weights into panels [tile][k][filters]; zeros stand in for missing filters."""
    geo = Im2colGeometry(workload, config)
    tiles, k, size = geo.packed_shape
    rows = np.zeros((workload.groups, geo.group_tiles * size, k), weights.dtype)
    rows[:, : geo.co] = weights.reshape(workload.groups, geo.co, k)
    return np.ascontiguousarray(rows.reshape(tiles, size, k).transpose(0, 2, 1))


def pack_weights_te(
    workload: Conv2dWorkload, config: Im2colConfig, weights: te.Tensor
) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = Im2colGeometry(workload, config)
    kw, taps = workload.kw, geo.taps

    def value(tile: Any, k: Any, i: Any) -> Any:
        group, filter_ = tile // geo.group_tiles, tile % geo.group_tiles * geo.filters + i
        loaded = weights[group * geo.co + filter_, k // taps, k % taps // kw, k % kw]
        return tirx.if_then_else(filter_ < geo.co, loaded, 0.0)

    return te.compute(geo.packed_shape, value, name="packed_weights")


def compute(
    workload: Conv2dWorkload, config: Im2colConfig, data: te.Tensor, packed: te.Tensor
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
    ow = workload.ow
    panels = _panels(geo, data)
    steps = geo.channels * geo.taps
    pc = te.reduce_axis((0, geo.sets), "pc")
    p = te.reduce_axis((0, steps), "p")

    def product(image: Any, yb: Any, it: Any, jt: Any, i: Any, j: Any) -> Any:
        k = pc * steps + p
        tile = image % workload.groups * geo.group_tiles + it
        rows, columns = packed[tile, k, i], panels[image, yb, jt, k, j]
        if geo.filters_across:
            rows, columns = panels[image, yb, jt, k, i], packed[tile, k, j]
        return te.sum(rows * columns, axis=[pc, p])

    # Whole sets of tiles: a predicate on their number would reach the micro-kernel's block.
    tiles = (geo.group_tiles, geo.pixel_tiles)
    shape = (geo.images, geo.blocks_h, *tiles, config.mr, config.nr)
    acc = te.compute(shape, product, name="acc", attrs=stage("acc"))

    def of_tile(at: tuple[Any, ...], filter_: Any, window: Any) -> Any:
        place = (window, filter_) if geo.filters_across else (filter_, window)
        return acc[(*at, *place)]

    def from_tiles(image: Any, filter_: Any, yb: Any, pixel: Any) -> Any:
        at = (image, yb, filter_ // geo.filters, pixel // geo.windows)
        value = of_tile(at, filter_ % geo.filters, pixel % geo.windows)
        is_whole = geo.pixel_tiles > 1 or geo.pixels == geo.windows
        if is_whole and (geo.filter_tiles > 1 or geo.co == geo.filters):
            return value
        # Always true and simplified away later; naming the last element keeps `compute_at` from
        # cutting the block of C, whose lanes beyond the result only the micro-kernel sees.
        last = of_tile(at, geo.filters - 1, geo.windows - 1)
        return tirx.if_then_else(pixel < geo.pixels, value, last)

    # A stage of its own: tiles of pixels end anywhere in a row.
    blocks = (geo.images, geo.co, geo.blocks_h, geo.pixels)
    pixels = te.compute(blocks, from_tiles, name="pixels", attrs=stage("pixels"))

    def image(n: Any, channel: Any, y: Any, x: Any) -> Any:
        product = (n, channel)
        if workload.groups > 1:
            product = (n * workload.groups + channel // geo.co, channel % geo.co)
        return pixels[(*product, y // geo.rows, y % geo.rows * ow + x)]

    out = (workload.n, workload.co, workload.oh, ow)
    return te.compute(out, image, name="unpack", attrs=stage("unpack"))


def _panels(geo: Im2colGeometry, data: te.Tensor) -> te.Tensor:
    """Return the windows of every block of rows: (image, block, tile, k, pixel)."""
    w, size, taps = geo.workload, geo.windows, geo.taps
    slab = _slab(geo, data) if geo.has_slab else None

    def value(image: Any, yb: Any, jt: Any, k: Any, j: Any) -> Any:
        pixel = jt * size + j
        c, ry, rx = k // taps, k % taps // w.kw, k % w.kw
        y, x, shift = pixel // w.ow, pixel % w.ow, rx * w.dilation[1]
        if slab is None:
            row = (yb * geo.rows + y) * w.stride[0] + ry * w.dilation[0]
            window = data[(*_channel(geo, image, c), row, x + shift)]
        else:
            row = y * (w.stride[0] // geo.row_step) + ry * w.dilation[0]
            window = slab[image, yb, c, row, shift % w.stride[1], x + shift // w.stride[1]]
        if geo.pixels % size == 0:
            return window
        return tirx.if_then_else(pixel < geo.pixels, window, 0.0)

    shape = (geo.images, geo.blocks_h, geo.pixel_tiles, geo.k, size)
    return te.compute(shape, value, name="panels", attrs=stage("panels"))


def _slab(geo: Im2colGeometry, data: te.Tensor) -> te.Tensor:
    """Return the padded rows of every block: (image, block, ci, rows, phases, columns)."""
    w = geo.workload

    def value(image: Any, yb: Any, c: Any, r: Any, phase: Any, q: Any) -> Any:
        y = yb * geo.rows * w.stride[0] + r * geo.row_step - w.padding[0]
        x = q * w.stride[1] + phase - w.padding[1]
        inside = tirx.all(y >= 0, y < w.h, x >= 0, x < w.w)
        return tirx.if_then_else(inside, data[(*_channel(geo, image, c), y, x)], 0.0)

    shape = (geo.images, geo.blocks_h, geo.ci, *geo.slab_size)
    return te.compute(shape, value, name="slab", attrs=stage("slab"))


def _channel(geo: Im2colGeometry, image: Any, channel: Any) -> tuple[Any, Any]:
    """Return the place in the batch of a channel of a group."""
    groups = geo.workload.groups
    return image // groups, image % groups * geo.ci + channel


IMPLEMENTATION = Template(
    name="conv2d_im2col",
    kind="conv2d",
    config_type=Im2colConfig,
    applies=candidates.applies,
    configs=candidates.configs,
    estimate=model.estimate,
    least_seconds=peak_seconds,
    least_of=model.least_of,
    workspace_bytes=model.workspace_bytes,
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    every=space,
    derivation=candidates.derivation,
    nests=nests,
)
