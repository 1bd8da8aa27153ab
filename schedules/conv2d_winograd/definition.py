"""Winograd convolution on NCHWc or NHWC images: fewer multiplications through transforms.

For tiles of m x m outputs of an r x r kernel, n = m + r - 1 (thesis section 6.1, Lavin 2016):

    Y = AT [ (G g GT) * (BT d B) ] A

Summed over input channels, the elementwise product is one GEMM for each of the n x n points:
tiles x ci times ci x co, done by the same micro-kernels as everything else. Kernels of 1 x r and
r x 1 are nestings with F(1, 1), the identity. Weights are transformed at compile time into panels
[chunk of nc][point][panel of nr][ci][nr].

Loops ("tiles" order):

    for part, n, yb, xb    one parallel loop; a part of the output channels, a block of tiles
      V[point, tile, ci]   input transform, rows first: every pass is one-dimensional
      for oc               a chunk of output channels of the part
        P[point, tile, co] = micro-kernels over ci
        for tile, ob       output transform, columns first; epilogue; store

V and P of a block stay in L2; the weights stream past them, from L2, L3 or memory, once per block.
With several parts (`oc_parts`) each thread reads its own weights only, and transforms for itself
what others transform, too: no line of V is another core's. Two threads, 256 channels of 14x14, 9 MB
of weights, on Zen 4: as fast as blocks of tiles where both cores share L3, and 0.66 of the time
where they do not, since each gets all weights from memory then.
"channels" order transforms the whole image first, oc outermost, for small images, whose few blocks
would each read all weights. Threads share V after that barrier and divide chunks and their blocks:
a thread's run of them touches few chunks, whose weights stay in its own L2.

A convolution of stride s is the sum of convolutions of stride 1 on the phases of the image, of all
s-th rows and columns, whose products are added in the same points (`transforms.by_phases`): V and
the weights have a matrix for each product of a phase, P one for each point, and micro-kernels sum
over the phases before they store. 3x3 of stride 2 by F(4, 2): 81 matrices of V and not four times
25, since phases of one tap have no product at infinity (`Edge` leaves them out), and 25 of P.
Weights are 9 times as many (F(2, 2): 2.8 times), which is what limits it: images of 7x7 outputs
are faster by direct convolution (`benchmarks/results/strided.txt`).

Channels that fill no vectors (NHWC: 24, 57) are transformed in blocks of 16 of which the last is
narrower, V has as many columns as there are channels, and only panels of weights are filled up with
zeros: 1.6 to 2.5 times as fast as direct convolution from 8 channels on (`cost_models`).

Of several groups each panel of weights reads the columns of V that its group has; parts of the
output channels are whole groups and transform no more than they read. Groups that fill no vectors
(24 channels) are joined: their weights get zeros in the channels of the others, twice the products
where direct convolution takes 1.9 times as long (Zen 4; `benchmarks/results/strided.txt`).

`WinogradConfig.transform` = "flat" transforms a patch in one pass (`programs`): no more additions,
but all points alive at once. One core with 32 vector registers, 64 channels of 56x56 and 128 of
28x28: F(2, 3), 16 points, is 1 and 4 % faster than pass by pass, F(4, 3), 36 points, 1 and 3 %
slower, F(6, 3), 64 points, 17 and 11 % slower; compiling takes up to four times as long. Hence the
passes by default.

Tiles at the border read zeros outside the image. The condition is tested per row of a patch, not
per pixel (`AskOnce`, Winogen's unswitching, thesis section 6.10): a row outside is
skipped, a row inside runs without conditions. Indirection, the other way there, loads the address
of each pixel from a table and needs zeros in memory that the addresses outside point at. Whole
layers, F(4, 3), fastest of 60 runs on one core in ms, the last column as a measure of what is left
to gain:

    channels, size    unswitched    each pixel tested    indirection    padded beforehand
    64, 56            0.412         0.413                0.415          0.412
    128, 28           0.380         0.409                0.388          0.421
    256, 14           0.563         0.581                0.555          0.548

Both are as fast as an image without borders; unswitching needs no table and no zero pixel.

Integers of 8 bits are transformed to such of 16, exactly (`integers`).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.conv2d_winograd import candidates
from tvm_blislike.cost_models.conv2d_winograd import estimate as model
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, WinogradConfig
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry, read_beyond
from tvm_blislike.cost_models.conv2d_winograd.integers import transformed as transformed_types
from tvm_blislike.cost_models.conv2d_winograd.nests import nests
from tvm_blislike.cost_models.conv2d_winograd.space import space
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import stage
from tvm_blislike.schedules.conditions import inside
from tvm_blislike.schedules.conv2d_winograd import integers
from tvm_blislike.schedules.conv2d_winograd.packing import pack_weights, pack_weights_te
from tvm_blislike.schedules.conv2d_winograd.passes import (
    flat_pass,
    one_pass,
    select,
    transform,
    transforms_of,
    where,
)
from tvm_blislike.schedules.conv2d_winograd.schedule import schedule
from tvm_blislike.schedules.conv2d_winograd.transforms import error_bound as transforms_error


def error_bound(workload: Conv2dWorkload, config: WinogradConfig) -> float:
    """Return the error to expect relative to the largest output (`winograd_transforms`)."""
    w = workload
    if w.types.is_integer_dot:
        return 0.0
    geo = WinogradGeometry(w, config)
    terms = geo.summed * math.prod(geo.phases)
    tile, kernel = (config.tile_h, config.tile_w), (w.kh, w.kw)
    return _error_bound(tile, kernel, w.stride, terms, w.types.acc)


@functools.cache
def _error_bound(
    tile: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    terms: int,
    dtype: str,
) -> float:
    rows, columns = (
        transform(m, r, stride=s) for m, r, s in zip(tile, kernel, stride, strict=True)
    )
    return transforms_error(rows, columns, terms, dtype)


def compute(
    workload: Conv2dWorkload, config: WinogradConfig, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the convolution.

    Parameters
    ----------
    data : te.Tensor
        The image batch, (n, ci / lanes, h, w, lanes) or (n, h, w, ci).
    packed : te.Tensor
        Weights as `pack_weights` makes them.

    Returns
    -------
    te.Tensor
        The result, (n, co / lanes, oh, ow, lanes) or (n, oh, ow, co).
    """
    geo = WinogradGeometry(workload, config)
    grid = (workload.n, geo.blocks_h, geo.blocks_w)
    points_h, points_w = geo.points_hw
    transformed = _input_transform(geo, data, grid)

    mr, nr, ks = config.mr, config.nr, config.ks
    k = te.reduce_axis((0, geo.steps), "k")
    step = [te.reduce_axis((0, ks), "s")] if ks > 1 else []
    phases = [te.reduce_axis((0, count), "phase") for count in geo.phases] if geo.phased else []
    phase_h, phase_w = phases or (0, 0)
    types = transformed_types(workload.types)
    # Whole micro-kernel blocks: those that reach beyond the tiles are cut in the schedule.
    blocks = -(-geo.tiles // mr)

    def first_channel(chunk: Any, panel: Any) -> Any:
        """Return the first input channel of the group that a panel belongs to."""
        return (chunk * geo.panels + panel) // geo.group_panels * geo.summed

    def product(*index: Any) -> Any:
        n, yb, xb, chunk, xi, nu, panel, block, i, j = index
        xi, nu = phase_h * points_h + xi, phase_w * points_w + nu
        channel = sum(step, k * ks)
        if geo.groups > 1:
            channel = first_channel(chunk, panel) + channel
        pixel = transformed[n, yb, xb, xi, nu, block * mr + i, channel]
        weight = packed[chunk, xi, nu, panel, k, sum(step, j * ks)]
        if not types.is_uniform:
            pixel, weight = pixel.astype(types.acc), weight.astype(types.acc)
        return te.sum(pixel * weight, axis=[*phases, k, *step])

    shape = (*grid, geo.chunks, points_h, points_w, geo.panels, blocks, mr, nr)
    acc = te.compute(shape, product, name="acc", attrs=stage("acc"))
    products = te.compute(
        (*grid, geo.chunks, points_h, points_w, geo.panels, geo.tiles, nr),
        lambda *i: acc[(*i[:-2], i[-2] // mr, i[-2] % mr, i[-1])],
        name="products",
        attrs=stage("products"),
    )
    return _output_transform(geo, products)


def _input_transform(geo: WinogradGeometry, data: te.Tensor, grid: tuple[int, ...]) -> te.Tensor:
    """Return V: (n, yb, xb, patch_h, patch_w, tiles, ci).

    Flat transforms have a copy of the patch for their first stage, with zeros outside the image:
    conditions then stay out of their long expressions.
    """
    w, c, block = geo.workload, geo.config, geo.in_block
    rows, columns = transforms_of(w, c)
    dtype = transformed_types(w.types).a

    def loaded(n: Any, ib: Any, y: Any, x: Any, lane: Any) -> Any:
        if Layout(c.data_layout).block:
            return data[n, ib, y, x, lane]
        return data[n, y, x, ib * block + lane]

    def patch_row(n: Any, yb: Any, xb: Any, r: Any, q: Any, ib: Any, i: Any, nu: Any, lane: Any):
        y = (yb * geo.block_h + r) * (c.tile_h * w.stride[0]) + i - w.padding[0]
        x = (xb * geo.block_w + q) * (c.tile_w * w.stride[1]) - w.padding[1]

        def pixel(j: int) -> Any:
            is_there = inside(y >= 0, y < w.h, x + j >= 0, x + j < w.w)
            value = loaded(n, ib, y, x + j, lane).astype(dtype)
            return tirx.if_then_else(is_there, value, tirx.const(0, dtype))

        pixels = [pixel(j) for j in range(geo.patch_w)]
        return select(nu, pixels) if geo.flat else one_pass(columns.bt, nu, pixels, dtype)

    shape = (*grid, geo.block_h, geo.block_w, geo.in_blocks, geo.patch_h, geo.patch_w, block)
    patch = te.compute(shape, patch_row, name="patch_rows", attrs=stage("patch_rows"))

    def value(n: Any, yb: Any, xb: Any, xi: Any, nu: Any, t: Any, channel: Any) -> Any:
        at = (n, yb, xb, t // geo.block_w, t % geo.block_w, channel // block)
        lane = channel % block
        if geo.flat:
            pixels = [patch[(*at, *pixel, lane)] for pixel in np.ndindex(geo.patch_h, geo.patch_w)]
            result = flat_pass(rows.bt, columns.bt, (xi, nu), pixels, dtype)
        else:
            column = [patch[(*at, i, nu, lane)] for i in range(geo.patch_h)]
            result = one_pass(rows.bt, xi, column, dtype)
        return where(channel, w.ci, result, patch[(*at, 0, 0, block - 1)], block)

    return te.compute(
        (*grid, geo.patch_h, geo.patch_w, geo.tiles, w.ci),
        value,
        name="transformed",
        attrs=stage("transformed"),
    )


def _output_transform(geo: WinogradGeometry, products: te.Tensor) -> te.Tensor:
    w, c, lanes = geo.workload, geo.config, geo.out_block
    rows, columns = transforms_of(w, c)
    exact = w.types.is_integer_dot
    dtype = integers.RESIDUES if exact else w.types.acc

    def tile_column(n: Any, ob: Any, yt: Any, xt: Any, a: Any, nu: Any, lane: Any) -> Any:
        chunk, channel = ob * lanes // c.nc, ob * lanes % c.nc
        block = (n, yt // geo.block_h, xt // geo.block_w, chunk)
        t = yt % geo.block_h * geo.block_w + xt % geo.block_w
        place = (channel // c.nr, t, channel % c.nr + lane)

        def point(xi: Any, nu: Any) -> Any:
            value = products[(*block, xi, nu, *place)]
            return integers.residue(value) if exact else value

        if geo.flat:
            patch = [point(*p) for p in np.ndindex(geo.points_hw)]
            return flat_pass(rows.at, columns.at, (a, nu), patch, dtype)
        return one_pass(rows.at, a, [point(xi, nu) for xi in range(geo.points_hw[0])], dtype)

    shape = (w.n, geo.out_blocks, geo.tiles_h, geo.tiles_w, *geo.half_shape, lanes)
    half = te.compute(shape, tile_column, name="tile_columns", attrs=stage("tile_columns"))

    def value(n: Any, ob: Any, y: Any, x: Any, lane: Any) -> Any:
        at = (n, ob, y // c.tile_h, x // c.tile_w, y % c.tile_h)
        values = [half[(*at, nu, lane)] for nu in range(geo.half_shape[1])]
        b = x % c.tile_w
        result = select(b, values) if geo.flat else one_pass(columns.at, b, values, dtype)
        if exact:
            result = integers.divided(result, rows.scale * columns.scale)
        other = half[(*at, 0, lanes - 1)]
        other = tirx.reinterpret("int32", other) if exact else other
        return where(ob * lanes + lane, w.co, result, other, lanes)

    def of_channels(n: Any, y: Any, x: Any, channel: Any) -> Any:
        return value(n, channel // lanes, y, x, channel % lanes)

    return te.compute(
        Layout(c.out_layout).shape(w.n, w.co, w.oh, w.ow),
        value if Layout(c.out_layout).block else of_channels,
        name="unpack",
        attrs=stage("unpack"),
    )


IMPLEMENTATION = Template(
    name="conv2d_winograd",
    kind="conv2d",
    config_type=WinogradConfig,
    applies=candidates.applies,
    configs=candidates.configs,
    estimate=model.estimate,
    least_of=model.least_of,
    workspace_bytes=model.workspace_bytes,
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    error_bound=error_bound,
    every=space,
    derivation=candidates.derivation,
    nests=nests,
    read_beyond=read_beyond,
    # Where the whole image is transformed first, threads divide its tiles otherwise than blocks.
    leaves_out_tiles=lambda config: config.loop_order != CHANNELS,
)
