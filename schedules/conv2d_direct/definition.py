"""Direct convolution on NCHWc or NHWC images: no im2col, A is read in place by broadcasts.

    out[n, co, oh, ow] =
        sum_{ci, ry, rx} in[n, ci, oh * stride + ry, ow * stride + rx] * w[co, ci, ry, rx]

Seen as a GEMM, a block of C is mh x mw output pixels by nr output channels, and one micro-kernel
call runs over the channels of one input block (`rows` view) or over one kernel row of an NCHW
image (`window` view, for first layers with few channels). Weights are packed at compile time into
the panels that the micro-kernel reads: [group][tile of nr][ci block][ry][rx][ci in block][nr].
Where a multiply-add takes groups of ks elements of k, a call runs over a run of whole groups: the
channels of a pixel, or all those of a kernel row, which lie side by side in a copy of the image
(`DirectGeometry.by_row`; the 21 elements of a row of a 7x7 first layer are six groups of four).

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

from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.conv2d_direct import candidates
from tvm_blislike.cost_models.conv2d_direct import estimate as model
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.cost_models.conv2d_direct.nests import nests
from tvm_blislike.cost_models.conv2d_direct.space import space
from tvm_blislike.cost_models.conv_geometry import read_beyond
from tvm_blislike.cost_models.data_types import sum_dtype
from tvm_blislike.cost_models.roofline import peak_seconds
from tvm_blislike.microkernels.panels import as_read, as_read_te
from tvm_blislike.microkernels.products import multiplied, panels_of_b, place_in_b
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.marks import LEFT, RIGHT
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import padded, rows_padded, stage
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
        ci block axis for NCHW input. Of groups of k: (groups, tiles, ci blocks, kh, kw, groups in a
        run, nr * ks), without kw where a run is a row of the kernel.
    """
    geo = DirectGeometry(workload, config)
    g, kh, kw = workload.groups, workload.kh, workload.kw
    by_group = weights.reshape(g, geo.co_group, geo.ci_blocks, geo.ci_block, kh, kw)
    missing = geo.tiles * config.nr - geo.co_group
    filled = np.pad(by_group, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0), (0, 0)))
    panels = filled.reshape(g, geo.tiles, config.nr, *by_group.shape[2:])
    packed = np.ascontiguousarray(panels.transpose(0, 1, 3, 5, 6, 4, 2))
    if config.ks > 1:
        packed = panels_of_b(packed.reshape(-1, geo.run, config.nr), config.nr, config.ks)
    return as_read(packed, geo.run_groups, workload.types).reshape(geo.packed_shape)


def pack_weights_te(
    workload: Conv2dWorkload, config: DirectConfig, weights: te.Tensor
) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = DirectGeometry(workload, config)

    def value(g: Any, t: Any, ib: Any, ry: Any, *last: Any) -> Any:
        *tap, p, lane = (*last[:-1], 0, last[-1]) if geo.window else last
        step, j = place_in_b(p, lane, config.ks)
        rx, ii = (step // geo.ci_group, step % geo.ci_group) if geo.by_row else (*tap, step)
        channel = t * config.nr + j
        loaded = weights[g * geo.co_group + channel, ib * geo.ci_block + ii, ry, rx]
        inside = tirx.all(channel < geo.co_group, step < geo.run)
        return tirx.if_then_else(inside, loaded, tirx.const(0, workload.types.b))

    shape, types = geo.packed_shape, workload.types
    return as_read_te(shape, value, geo.run_groups, types, name="packed_weights")


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
    layout, ks = config.data_layout, config.ks
    image = _copied(data, geo)
    mh, mw = config.tile_h, config.tile_w
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    types, wide = workload.types, sum_dtype(workload.types)
    by_block = geo.ci_blocks > 1
    units = geo.sum_units // geo.chunks
    ib = te.reduce_axis((0, units if by_block else 1), "ib")
    ry = te.reduce_axis((0, workload.kh if by_block else units), "ry")
    rx = [] if geo.by_row else [te.reduce_axis((0, workload.kw), "rx")]
    ii = [] if geo.window else [te.reduce_axis((0, geo.run_groups), "ii")]
    group = [te.reduce_axis((0, ks), "s")] if ks > 1 else []

    def pixel(n: Any, g: Any, b: Any, y: Any, x: Any) -> Any:
        k = [sum(group, p * ks) for p in ii]
        if geo.by_row:
            return image[n, y, x * workload.ci + k[0]]
        if layout == "NHWC":
            channels = int(image.shape[3]) // workload.groups
            return image[n, y, x, g * channels + k[0]]
        return image[(n, g * geo.ci_blocks + b, y, x, *k)]

    def product(n: Any, g: Any, t: Any, yt: Any, xt: Any, q: Any, ih: Any, iw: Any, j: Any) -> Any:
        b, r = (q * units + ib, ry) if by_block else (ib, q * units + ry)
        x = sum((tap * dw for tap in rx), (xt * mw + iw) * sw)
        a = pixel(n, g, b, (yt * mh + ih) * sh + r * dh, x)
        panel = packed[(g, t, b, r, *rx, *ii, sum(group, j * ks))]
        return te.sum(multiplied(types, a, panel), axis=[ib, ry, *rx, *ii, *group])

    # A whole number of slabs: a predicate on the slab's rows would reach the micro-kernel's block.
    rows = geo.slabs * config.oh_block
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


def _copied(data: te.Tensor, geo: DirectGeometry) -> te.Tensor:
    """Return what micro-kernels read: the image, or a copy with padding and room for groups."""
    w, layout = geo.workload, Layout(geo.config.data_layout)
    if not geo.copies:
        return data
    if geo.by_row:
        return rows_padded(data, w.padding, geo.copy_shape)
    shape = geo.copy_shape
    if shape[layout.channel_axis] == data.shape[layout.channel_axis]:
        return padded(data, layout.height_axis, w.padding, shape)
    filled = geo.run_groups * geo.config.ks

    def value(n: Any, y: Any, x: Any, c: Any) -> Any:
        y, x, channel = y - w.padding[0], x - w.padding[1], c % filled
        inside = tirx.all(y >= 0, y < w.h, x >= 0, x < w.w, channel < geo.ci_group)
        pixel = data[n, y, x, c // filled * geo.ci_group + channel]
        return tirx.if_then_else(inside, pixel, tirx.const(0, w.types.a))

    right = max(0, shape[2] - w.w - w.padding[1])
    attrs = {**stage("pad"), LEFT: w.padding[1], RIGHT: right}
    return te.compute(shape, value, name="pad", attrs=attrs)


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
    least_seconds=peak_seconds,
    least_of=model.least_of,
    workspace_bytes=model.workspace_bytes,
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    relaid=candidates.relaid,
    every=space,
    packed_by=("nr", "ks", "data_layout", "out_layout"),
    read_beyond=read_beyond,
    derivation=candidates.derivation,
    nests=nests,
)
