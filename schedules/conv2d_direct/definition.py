"""Direct convolution on NCHWc or NHWC images: no im2col, A is read in place by broadcasts.

    out[n, co, oh, ow] =
        sum_{ci, ry, rx} in[n, ci, oh * stride + ry, ow * stride + rx] * w[co, ci, ry, rx]

Seen as a GEMM, a block of C is mh x mw output pixels by nr output channels, and one micro-kernel
call runs over the channels of one input block (`rows` view) or over one kernel row of an NCHW
image (`window` view, for first layers with few channels). Weights are packed at compile time into
the panels that the micro-kernel reads: [group][tile of nr][ci block][ry][rx][ci in block][nr].

Loops, "rows" order (the input slab stays in L2, weights stream):

    for n, yo            parallel; the slab of the padded input is copied here, if there is padding
      for ot             tiles of nr output channels: one weight panel, reused by every pixel below
        for yi, xt       blocks of mh x mw pixels
          C = 0; for ib, ry, rx: micro-kernel; epilogue; store

"channels" order (weights stay, images are small): parallel over ot, padded input made first.

In fp16 a sum of many products is cut into chunks along the input blocks (or kernel rows): "acc"
sums a chunk in fp16 registers, "sums" adds the chunks of a block of C in fp32.

Copying the slab costs (oh_block + kh - 1) / oh_block reads and writes of the input against
kh * kw * co / 32 cycles of FMAs per element: 1 to 2 % at 64 channels, less beyond. Splitting the
borders off instead needs nine variants of every k loop, for no measurable gain.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.conv2d_direct import candidates
from tvm_blislike.cost_models.conv2d_direct import estimate as model
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.cost_models.conv2d_direct.space import space
from tvm_blislike.cost_models.data_types import sum_dtype
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import padded, stage
from tvm_blislike.schedules.conv2d_direct.schedule import schedule


def pack_weights(workload: Conv2dWorkload, config: DirectConfig, weights: np.ndarray) -> np.ndarray:
    """Pack OIHW weights into micro-kernel panels; lanes without a channel hold zeros.

    Parameters
    ----------
    weights : numpy.ndarray
        (co, ci / groups, kh, kw).

    Returns
    -------
    numpy.ndarray
        `DirectGeometry.packed_shape`: (groups, tiles, ci blocks, kh, kw, ci block, nr), without the
        ci block axis for NCHW input.
    """
    geo = DirectGeometry(workload, config)
    g, kh, kw = workload.groups, workload.kh, workload.kw
    by_group = weights.reshape(g, geo.co_group, geo.ci_blocks, geo.ci_block, kh, kw)
    missing = geo.tiles * config.nr - geo.co_group
    filled = np.pad(by_group, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0), (0, 0)))
    panels = filled.reshape(g, geo.tiles, config.nr, *by_group.shape[2:])
    packed = panels.transpose(0, 1, 3, 5, 6, 4, 2)
    return np.ascontiguousarray(packed).reshape(geo.packed_shape)


def pack_weights_te(
    workload: Conv2dWorkload, config: DirectConfig, weights: te.Tensor
) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = DirectGeometry(workload, config)

    def value(g: Any, t: Any, ib: Any, ry: Any, rx: Any, *last: Any) -> Any:
        ii, j = (0, *last) if geo.window else last
        channel = t * config.nr + j
        loaded = weights[g * geo.co_group + channel, ib * geo.ci_block + ii, ry, rx]
        return tirx.if_then_else(channel < geo.co_group, loaded, tirx.const(0, workload.types.b))

    return te.compute(geo.packed_shape, value, name="packed_weights")


def compute(
    workload: Conv2dWorkload, config: DirectConfig, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the convolution.

    Parameters
    ----------
    data : te.Tensor
        The image batch in `config.data_layout`.
    packed : te.Tensor
        Weights as `pack_weights` makes them.

    Returns
    -------
    te.Tensor
        The result in `config.out_layout`.
    """
    geo = DirectGeometry(workload, config)
    layout = config.data_layout
    image = padded(
        data,
        Layout(layout).height_axis,
        workload.padding,
        Layout(layout).shape(workload.n, workload.ci, *geo.padded_size),
    )
    mh, mw = config.tile_h, config.tile_w
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    wide = sum_dtype(workload.types)
    by_block = geo.ci_blocks > 1
    units = geo.sum_units // geo.chunks
    ib = te.reduce_axis((0, units if by_block else 1), "ib")
    ry = te.reduce_axis((0, workload.kh if by_block else units), "ry")
    rx = te.reduce_axis((0, workload.kw), "rx")
    ii = [] if geo.window else [te.reduce_axis((0, geo.ci_block), "ii")]

    def pixel(n: Any, g: Any, b: Any, y: Any, x: Any) -> Any:
        if layout == "NHWC":
            return image[n, y, x, g * geo.ci_group + ii[0]]
        return image[(n, g * geo.ci_blocks + b, y, x, *ii)]

    def product(n: Any, g: Any, t: Any, yt: Any, xt: Any, q: Any, ih: Any, iw: Any, j: Any) -> Any:
        b, r = (q * units + ib, ry) if by_block else (ib, q * units + ry)
        a = pixel(n, g, b, (yt * mh + ih) * sh + r * dh, (xt * mw + iw) * sw + rx * dw)
        return te.sum(a * packed[(g, t, b, r, rx, *ii, j)], axis=[ib, ry, rx, *ii])

    # A whole number of slabs: a predicate on the slab's rows would reach the micro-kernel's block.
    rows = math.ceil(geo.tiles_h / config.oh_block) * config.oh_block
    outer = (workload.n, workload.groups, geo.tiles, rows, geo.tiles_w)
    if geo.chunks == 1:
        acc = te.compute(
            (*outer, mh, mw, config.nr),
            lambda *at: product(*at[:5], 0, *at[5:]),
            name="acc",
            attrs=stage("acc"),
        )
    else:
        shape = (*outer, geo.chunks, mh, mw, config.nr)
        part = te.compute(shape, product, name="acc", attrs=stage("acc"))
        q = te.reduce_axis((0, geo.chunks), "q")
        acc = te.compute(
            (*outer, mh, mw, config.nr),
            lambda *at: te.sum(part[(*at[:5], q, *at[5:])].astype(wide), axis=[q]),
            name="sums",
            attrs=stage("sums"),
        )

    def from_blocks(n: Any, ob: Any, y: Any, x: Any, oi: Any) -> Any:
        g, block = _group_of(ob, geo.co_blocks, workload.groups)
        tile, lane = block // geo.blocks, block % geo.blocks * geo.co_block + oi
        value = acc[n, g, tile, y // mh, x // mw, y % mh, x % mw, lane]
        return value.astype(workload.types.out)

    def from_channels(n: Any, y: Any, x: Any, channel: Any) -> Any:
        g, inner = _group_of(channel, geo.co_group, workload.groups)
        at = (n, g, inner // config.nr, y // mh, x // mw, y % mh, x % mw)
        value = acc[(*at, inner % config.nr)].astype(workload.types.out)
        if geo.tiles > 1 or geo.co_group == config.nr:
            return value
        last = acc[(*at, config.nr - 1)]
        # Always true and simplified away later; naming the last column keeps `compute_at` from
        # cutting the block of C, whose lanes beyond the channels only the micro-kernel sees.
        return tirx.if_then_else(channel < workload.co, value, last.astype(workload.types.out))

    return te.compute(
        Layout(config.out_layout).shape(workload.n, workload.co, workload.oh, workload.ow),
        from_blocks if geo.is_blocked else from_channels,
        name="unpack",
        attrs=stage("unpack"),
    )


def _group_of(index: Any, size: int, groups: int) -> tuple[Any, Any]:
    """Split an index into group and rest; a needless `%` would hide the tile from `compute_at`."""
    return (0, index) if groups == 1 else (index // size, index % size)


IMPLEMENTATION = Template(
    name="conv2d_direct",
    kind="conv2d",
    config_type=DirectConfig,
    applies=candidates.applies,
    configs=candidates.configs,
    estimate=model.estimate,
    workspace_bytes=model.workspace_bytes,
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    relaid=candidates.relaid,
    every=space,
)
