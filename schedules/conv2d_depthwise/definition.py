"""Depthwise convolution: a tile of outputs in registers, ordered by input pixel, no padded copy.

    out[n, o, y, x] = sum_{ry, rx} in[n, o / times, y * stride + ry, x * stride + rx] * w[o, ry, rx]

A step computes tile_h x tile_w pixels of one vector of nr channels. There is no sum over channels,
so nothing is shared between vectors: the filter of the vector stays in registers, and the kernel
is unrolled in the order of the input pixels, each of which is loaded once and multiplied into all
the outputs that it contributes to (loads are counted in
cost_models/conv2d_depthwise/estimate.py).

"channels" order (NCHWc):                "rows" order (NHWC, or too few blocks for the threads):

    for n, ov           parallel             for n, yt           yt parallel
      for yt, xt                               for ov, xt

Padding is a condition on the loads. The tiles at the borders are split off and everything in a
tile is unrolled, so conditions are constants: no branch inside, no multiplication by a padded
zero at the borders. Where that would take too much code (large dilations), the padded image is
made first.

Of bytes an instruction adds four products to a sum (vpdpbusd): then ks = 4 rows of the kernel are
a group, and the pixels of a column that it takes are mixed in registers, once for all outputs of a
row that read the column.

A kernel of several slices of a volume (`conv3d_depthwise`) is a sum of as many windows, one behind
the other into the same tile; the images of a batch are then the slices, and the first and last of
them have code of their own, as tiles at borders have. Rows are outside slices: so several slices
of few rows are in the cache.

Channels that do not fill a vector (NHWC) are swept in narrower vectors: 57 = 3 x 16 + 8 + 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.conv2d_depthwise import candidates
from tvm_blislike.cost_models.conv2d_depthwise import estimate as model
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_depthwise.geometry import DepthwiseGeometry
from tvm_blislike.cost_models.conv2d_depthwise.space import space
from tvm_blislike.cost_models.conv_geometry import read_beyond
from tvm_blislike.microkernels.products import place_in_b
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import padded, stage
from tvm_blislike.schedules.conv2d_depthwise.schedule import schedule


def pack_weights(
    workload: Conv2dWorkload, config: DepthwiseConfig, weights: np.ndarray
) -> np.ndarray:
    """Pack OIHW weights vector by vector; lanes without a channel hold zeros.

    Parameters
    ----------
    weights : numpy.ndarray
        (co, ci / groups, kh, kw), of volumes (co, 1, kd, kh, kw).

    Returns
    -------
    numpy.ndarray
        `DepthwiseGeometry.packed_shape`: (vectors, groups of ks rows, kw, nr * ks), the rows of a
        group side by side, or (vectors, sums, ...) where groups have several input channels or
        kernels several slices.
    """
    geo = DepthwiseGeometry(workload, config)
    channels = geo.vectors * config.nr - workload.co
    rows = geo.row_groups * config.ks - workload.kh
    windows = weights.reshape(workload.co, geo.sums, workload.kh, workload.kw)
    filled = np.pad(windows, ((0, channels), (0, 0), (0, rows), (0, 0)))
    by_group = filled.reshape(
        geo.vectors, config.nr, geo.sums, geo.row_groups, config.ks, workload.kw
    )
    packed = by_group.transpose(0, 2, 3, 5, 1, 4)
    return np.ascontiguousarray(packed).reshape(geo.packed_shape)


def pack_weights_te(
    workload: Conv2dWorkload, config: DepthwiseConfig, weights: te.Tensor
) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = DepthwiseGeometry(workload, config)

    def value(ov: Any, *index: Any) -> Any:
        *inner, rg, rx, place = index
        (ry, lane), i = place_in_b(rg, place, config.ks), inner[0] if inner else 0
        o = ov * config.nr + lane
        inside = [o < workload.co] if workload.co % config.nr else []
        inside += [ry < workload.kh] if workload.kh % config.ks else []
        zero = tirx.const(0, workload.types.b)
        at = (o, 0, i, ry, rx) if workload.kd > 1 else (o, i, ry, rx)
        value = weights[at]
        return tirx.if_then_else(tirx.all(*inside), value, zero) if inside else value

    return te.compute(geo.packed_shape, value, name="packed_weights")


def compute(
    workload: Conv2dWorkload, config: DepthwiseConfig, data: te.Tensor, packed: te.Tensor
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
    geo = DepthwiseGeometry(workload, config)
    th, tw, nr = config.tile_h, config.tile_w, config.nr
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    pixel = _pixels(geo, data)
    rg = te.reduce_axis((0, geo.row_groups), "rg")
    rx = te.reduce_axis((0, workload.kw), "rx")
    steps = [te.reduce_axis((0, config.ks), "rs")] if config.ks > 1 else []
    inner = [te.reduce_axis((0, geo.sums), "ii")] if geo.sums > 1 else []

    def product(n: Any, ov: Any, yt: Any, xt: Any, ih: Any, iw: Any, lane: Any) -> Any:
        ry, place = _row_of_kernel(geo, rg, *steps), lane * config.ks + sum(steps)
        y, x = (yt * th + ih) * sh + ry * dh, (xt * tw + iw) * sw + rx * dw
        value, inside = pixel(n, ov, y, x, lane, *inner)
        weight, sums = packed[(ov, *inner, rg, rx, place)], workload.types.acc
        if not workload.types.is_uniform:
            # Of bytes that become words LLVM knows that products of 16 bits are enough.
            value, weight = value.astype(sums), weight.astype(sums)
        scaled = value * weight
        if inside is not None:
            # The product, not the pixel: outside the image nothing is left to multiply.
            scaled = tirx.if_then_else(inside, scaled, tirx.const(0, sums))
        return te.sum(scaled, [*inner, rg, rx, *steps])

    shape = (workload.od, geo.vectors, geo.tiles_h, geo.tiles_w, th, tw, nr)
    acc = te.compute(shape, product, name="acc", attrs=stage("acc"))

    def from_blocks(n: Any, ob: Any, y: Any, x: Any, lane: Any) -> Any:
        return acc[n, ob, y // th, x // tw, y % th, x % tw, lane]

    def from_channels(n: Any, y: Any, x: Any, o: Any) -> Any:
        return acc[n, o // nr, y // th, x // tw, y % th, x % tw, o % nr]

    return te.compute(
        Layout(config.out_layout).shape(workload.od, workload.co, workload.oh, workload.ow),
        from_blocks if Layout(config.out_layout).block else from_channels,
        name="unpack",
        attrs=stage("unpack"),
    )


def _row_of_kernel(geo: DepthwiseGeometry, group: Any, step: Any = 0) -> Any:
    """Return the row of the kernel; what fills the last group reads the last one again."""
    ks, kh = geo.config.ks, geo.workload.kh
    row = group * ks + step
    return tirx.min(row, kh - 1) if kh % ks else row


def _pixels(geo: DepthwiseGeometry, data: te.Tensor) -> Any:
    """Return (n, vector, padded y, padded x, lane, term of a sum if there are several) -> value.

    With the condition that it is in the image, None where it always is.
    """
    w, layout = geo.workload, geo.config.data_layout
    top, left, conditional = *w.padding[:2], any(w.padding) and not geo.copies
    image = data
    if geo.copies:
        shape = Layout(layout).shape(w.n, w.ci, *geo.padded_size)
        image = padded(data, Layout(layout).height_axis, w.padding, shape)

    def pixel(n: Any, ov: Any, y: Any, x: Any, lane: Any, *term: Any) -> tuple[Any, Any]:
        inside = []
        if conditional:
            y, x = y - top, x - left
            inside = [y >= 0, y < w.h, x >= 0, x < w.w]
        if w.kd > 1:
            n, term = w.image_met(n, *term), ()
            inside += [n >= 0, n < w.n] if any(w.depth_padding) else []
        value = image[_channel_index(geo, n, ov, y, x, lane, *term)]
        return value, tirx.all(*inside) if inside else None

    return pixel


def _channel_index(
    geo: DepthwiseGeometry, n: Any, ov: Any, y: Any, x: Any, lane: Any, inner: Any = 0
) -> tuple[Any, ...]:
    """Index of the input channel of an output lane (the `inner`th of its group), at a pixel."""
    nr, times = geo.config.nr, geo.multiplier
    block = Layout(geo.config.data_layout).block
    if geo.ci_group > 1:
        vectors = block // geo.ci_vector
        within = ov % vectors * geo.ci_vector + lane // geo.co_group * geo.ci_group + inner
        return (n, ov // vectors, y, x, within)
    if block == nr and times == 1:
        return (n, ov, y, x, lane)
    if times % nr == 0:
        # All lanes read the same channel: a broadcast.
        channel = ov // (times // nr)
    elif nr % times == 0:
        channel = ov * (nr // times) + lane // times
    else:
        channel = (ov * nr + lane) // times
    return (n, channel // block, y, x, channel % block) if block else (n, y, x, channel)


IMPLEMENTATION = Template(
    name="conv2d_depthwise",
    kind="conv2d",
    config_type=DepthwiseConfig,
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
    packed_by=("nr", "ks", "data_layout", "out_layout"),
    read_beyond=read_beyond,
)
