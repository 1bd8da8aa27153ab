"""Direct convolution on NCHWc images: no im2col, A is read in place by broadcasts.

    out[n, co, oh, ow] = sum_{ci, ry, rx} in[n, ci, oh * stride + ry, ow * stride + rx] * w[co, ci, ry, rx]

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

Copying the slab costs (oh_block + kh - 1) / oh_block reads and writes of the input against
kh * kw * co / 32 cycles of FMAs per element: 1 to 2 % at 64 channels, less beyond. Splitting the
borders off instead needs nine variants of every k loop, for no measurable gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import s_tir, te, tirx
from tvm_blislike.config import Config
from tvm_blislike.microkernels import Microkernel, UpdateShape, update_intrin
from tvm_blislike.schedules.common import (
    STAGE,
    annotate_axis,
    annotate_vector,
    fuse_epilogue,
    pad_columns,
    padded,
    stage,
    stages,
)
from tvm_blislike.schedules.lowering import BORDER, EDGE
from tvm_blislike.workload import Conv2dWorkload


@dataclass(frozen=True)
class Geometry:
    """Sizes that follow from a workload and a config.

    A tile of nr channels holds `blocks` whole output blocks (co_block <= nr), or is one of
    `parts` pieces of an output block (co_block > nr, or co_block no divisor of nr).
    """

    workload: Conv2dWorkload
    config: Config

    @property
    def ci_group(self) -> int:
        return self.workload.ci // self.workload.groups

    @property
    def co_group(self) -> int:
        return self.workload.co // self.workload.groups

    @property
    def ci_blocks(self) -> int:
        """Input blocks of one group; single channels in the `window` view."""
        return self.ci_group // (self.config.ci_block or 1)

    @property
    def co_blocks(self) -> int:
        """Output blocks of one group."""
        return self.co_group // self.config.co_block

    @property
    def blocks(self) -> int:
        """Output blocks in a tile of nr channels."""
        return max(1, self.config.nr // self.config.co_block) if self.whole_blocks else 1

    @property
    def whole_blocks(self) -> bool:
        return self.config.nr % self.config.co_block == 0

    @property
    def parts(self) -> int:
        """Tiles of nr channels in one output block."""
        return 1 if self.whole_blocks else math.ceil(self.config.co_block / self.config.nr)

    @property
    def tiles(self) -> int:
        """Tiles of nr channels in one group."""
        return math.ceil(self.co_blocks / self.blocks) * self.parts

    @property
    def tiles_h(self) -> int:
        return math.ceil(self.workload.oh / self.config.tile_h)

    @property
    def tiles_w(self) -> int:
        return math.ceil(self.workload.ow / self.config.tile_w)

    @property
    def padded_shape(self) -> tuple[int, int]:
        """Height and width of the padded input, without rows and columns that no output reads."""
        w = self.workload
        return (
            (w.oh - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1,
            (w.ow - 1) * w.stride[1] + (w.kw - 1) * w.dilation[1] + 1,
        )

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the packed weights."""
        w, c = self.workload, self.config
        block = (c.ci_block,) if c.ci_block else ()
        return (w.groups, self.tiles, self.ci_blocks, w.kh, w.kw, *block, c.nr)

    def channel(self, tile: Any, lane: Any) -> Any:
        """Output channel within its group of lane `lane` of tile `tile` (may lie outside)."""
        if self.whole_blocks:
            return tile * self.config.nr + lane
        block, part = tile // self.parts, tile % self.parts
        return block * self.config.co_block + part * self.config.nr + lane

    def inside(self, tile: Any, lane: Any) -> Any:
        """Whether that lane holds a channel at all."""
        if self.whole_blocks:
            return tile * self.config.nr + lane < self.co_group
        return (tile % self.parts) * self.config.nr + lane < self.config.co_block


def pack_weights(workload: Conv2dWorkload, config: Config, weights: np.ndarray) -> np.ndarray:
    """Pack OIHW weights into micro-kernel panels; lanes without a channel hold zeros.

    Parameters
    ----------
    weights : numpy.ndarray
        (co, ci / groups, kh, kw).

    Returns
    -------
    numpy.ndarray
        `Geometry.packed_shape`: (groups, tiles, ci blocks, kh, kw, ci_block, nr), without the
        ci_block axis when it is 0.
    """
    geo = Geometry(workload, config)
    tile, lane = np.meshgrid(np.arange(geo.tiles), np.arange(config.nr), indexing="ij")
    inside = np.asarray(geo.inside(tile, lane))
    channel = np.where(inside, geo.channel(tile, lane), 0)
    by_group = weights.reshape(
        workload.groups, geo.co_group, geo.ci_blocks, -1, workload.kh, workload.kw
    )
    panels = by_group[:, channel] * inside[None, :, :, None, None, None, None]
    packed = panels.transpose(0, 1, 3, 5, 6, 4, 2).reshape(geo.packed_shape)
    return np.ascontiguousarray(packed, dtype=weights.dtype)


def pack_weights_te(workload: Conv2dWorkload, config: Config, weights: te.Tensor) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = Geometry(workload, config)

    def value(g: Any, t: Any, ib: Any, ry: Any, rx: Any, *last: Any) -> Any:
        ii, j = last if config.ci_block else (0, *last)
        channel = g * geo.co_group + geo.channel(t, j)
        loaded = weights[channel, ib * (config.ci_block or 1) + ii, ry, rx]
        return tirx.if_then_else(geo.inside(t, j), loaded, 0.0)

    return te.compute(geo.packed_shape, value, name="packed_weights")


def compute(
    workload: Conv2dWorkload, config: Config, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the convolution.

    Parameters
    ----------
    data : te.Tensor
        (n, ci / ci_block, h, w, ci_block), or (n, ci, h, w) when `config.ci_block` is 0.
    packed : te.Tensor
        Weights as `pack_weights` makes them.

    Returns
    -------
    te.Tensor
        (n, co / co_block, oh, ow, co_block).
    """
    geo = Geometry(workload, config)
    window = config.ci_block == 0
    tail = () if window else (config.ci_block,)
    channels = workload.ci // (config.ci_block or 1)
    image = padded(data, 2, workload.padding, (workload.n, channels, *geo.padded_shape, *tail))

    mh, mw = config.tile_h, config.tile_w
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    ib = te.reduce_axis((0, geo.ci_blocks), "ib")
    ry = te.reduce_axis((0, workload.kh), "ry")
    rx = te.reduce_axis((0, workload.kw), "rx")
    ii = [] if window else [te.reduce_axis((0, config.ci_block), "ii")]

    def product(n: Any, g: Any, t: Any, yt: Any, xt: Any, ih: Any, iw: Any, j: Any) -> Any:
        y = (yt * mh + ih) * sh + ry * dh
        x = (xt * mw + iw) * sw + rx * dw
        channel = g * geo.ci_blocks + ib
        a, b = image[(n, channel, y, x, *ii)], packed[(g, t, ib, ry, rx, *ii, j)]
        return te.sum(a * b, axis=[ib, ry, rx, *ii])

    # A whole number of slabs: a predicate on the slab's rows would reach the micro-kernel's block.
    rows = math.ceil(geo.tiles_h / config.oh_block) * config.oh_block
    acc = te.compute(
        (workload.n, workload.groups, geo.tiles, rows, geo.tiles_w, mh, mw, config.nr),
        product,
        name="acc",
        attrs=stage("acc"),
    )

    def unpacked(n: Any, ob: Any, y: Any, x: Any, oi: Any) -> Any:
        g, block = ob // geo.co_blocks, ob % geo.co_blocks
        if geo.whole_blocks:
            tile, lane = block // geo.blocks, (block % geo.blocks) * config.co_block + oi
        else:
            tile, lane = block * geo.parts + oi // config.nr, oi % config.nr
        return acc[n, g, tile, y // mh, x // mw, y % mh, x % mw, lane]

    shape = (workload.n, workload.co // config.co_block, workload.oh, workload.ow, config.co_block)
    return te.compute(shape, unpacked, name="unpack", attrs=stage("unpack"))


def schedule(
    sch: s_tir.Schedule,
    workload: Conv2dWorkload,
    config: Config,
    kernel: Microkernel,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    geo = Geometry(workload, config)
    epilogue = fuse_epilogue(sch)
    loops = _tile_epilogue(sch, epilogue, geo, kernel)
    marked = stages(sch)
    acc = marked["acc"]
    sch.compute_at(acc, loops["xt"], preserve_unit_loops=True)
    _place_padding(sch, marked.get("pad"), loops, config, kernel)
    _parallelize(sch, loops, config, workload, threads)
    _tensorize(sch, acc, workload, config, kernel)


def _tile_epilogue(
    sch: s_tir.Schedule, epilogue: Any, geo: Geometry, kernel: Microkernel
) -> dict[str, Any]:
    """Split the epilogue's loops into tiles and say where the edges are."""
    config, workload = geo.config, geo.workload
    n, ob, oh, ow, oi = sch.get_loops(epilogue)
    g, block = sch.split(ob, [workload.groups, geo.co_blocks])
    if geo.whole_blocks:
        ot, lanes_outer = sch.split(block, [None, geo.blocks])
        lane = oi
    else:
        part, lane = sch.split(oi, [geo.parts, None if geo.parts == 1 else config.nr])
        ot, lanes_outer = block, part
    yt, ih = sch.split(oh, [None, config.tile_h])
    yo, yi = sch.split(yt, [None, config.oh_block])
    xt, iw = sch.split(ow, [None, config.tile_w])
    outer = [n, yo, g, ot] if config.loop_order == "rows" else [n, g, ot, yo]
    loops = {"n": n, "g": g, "ot": ot, "yo": yo, "yi": yi, "xt": xt}
    if geo.whole_blocks:
        sch.reorder(*outer, yi, xt, ih, iw, lanes_outer, lane)
        sch.unroll(lanes_outer)
        annotate_axis(sch, lanes_outer, "blocks")
    else:
        # Pieces of one output block are tiles of their own: their loop lies outside the pixels.
        sch.reorder(*outer, lanes_outer, yi, xt, ih, iw, lane)
        annotate_axis(sch, lane, "lanes")
        loops["part"] = lanes_outer
    for loop, axis in ((ih, "mh"), (iw, "mw")):
        sch.unroll(loop)
        annotate_axis(sch, loop, axis)
    annotate_axis(sch, yi, "yi")
    annotate_vector(sch, lane, kernel.lanes)
    _annotate_edges(sch, loops, geo, kernel)
    return loops


def _annotate_edges(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: Geometry, kernel: Microkernel
) -> None:
    config, workload = geo.config, geo.workload
    if workload.ow % config.tile_w:
        sch.annotate(loops["xt"], EDGE, {"mw": workload.ow % config.tile_w})
    cut_rows = workload.oh % config.tile_h
    cut_slab = geo.tiles_h % config.oh_block
    if cut_slab:
        sch.annotate(loops["yo"], EDGE, {"yi": cut_slab})
    elif cut_rows:
        # The cut row of blocks is the last of the last slab: the config keeps one of both at 1.
        sch.annotate(loops["yo" if config.oh_block == 1 else "yi"], EDGE, {"mh": cut_rows})
    cut_blocks = geo.co_blocks % geo.blocks
    if cut_blocks:
        vectors = math.ceil(cut_blocks * config.co_block / kernel.lanes)
        sch.annotate(loops["ot"], EDGE, {"blocks": cut_blocks, "nr": vectors})
    cut_lanes = config.co_block % config.nr
    if geo.parts > 1 and cut_lanes:
        vectors = math.ceil(cut_lanes / kernel.lanes)
        sch.annotate(loops["part"], EDGE, {"lanes": cut_lanes, "nr": vectors})


def _place_padding(
    sch: s_tir.Schedule,
    pad: Any | None,
    loops: dict[str, Any],
    config: Config,
    kernel: Microkernel,
) -> None:
    if pad is None:
        return
    if config.loop_order == "rows":
        sch.compute_at(pad, loops["yo"], preserve_unit_loops=True)
        inner = sch.get_loops(pad)[-(4 if config.ci_block == 0 else 5) :]
    else:
        inner = sch.get_loops(pad)
        sch.parallel(sch.fuse(inner[0], inner[1]))
    annotate_vector(sch, inner[-1], kernel.lanes)
    # Columns outside the image split off: the copy in between is a plain vector loop.
    sch.annotate(inner[3], BORDER, pad_columns(sch, pad))


def _parallelize(
    sch: s_tir.Schedule,
    loops: dict[str, Any],
    config: Config,
    workload: Conv2dWorkload,
    threads: int,
) -> None:
    if threads == 1:
        return
    if workload.n % threads == 0:
        sch.parallel(loops["n"])
    elif config.loop_order == "rows":
        sch.parallel(loops["yo"])
    elif workload.groups > 1:
        sch.parallel(sch.fuse(loops["g"], loops["ot"]))
    else:
        sch.parallel(loops["ot"])


def _tensorize(
    sch: s_tir.Schedule,
    acc: Any,
    workload: Conv2dWorkload,
    config: Config,
    kernel: Microkernel,
) -> None:
    window = config.ci_block == 0
    reductions = 3 if window else 4
    inner = sch.get_loops(acc)[-(3 + reductions) :]
    ih, iw, j = inner[:3]
    *outer, k = inner[3:]
    # Unit loops go outside: the intrinsic has no such axes.
    block = [k, ih, iw, j]
    units = [loop for loop in block if int(sch.get(loop).extent) == 1]
    kernel_loops = [loop for loop in block if loop not in units]
    sch.reorder(*outer, *units, *kernel_loops)
    sch.unannotate(acc, STAGE)
    init = sch.decompose_reduction(acc, outer[0])
    zero = sch.get_loops(init)[-3:]
    for loop, axis in zip(zero[:2], ("mh", "mw"), strict=True):
        sch.unroll(loop)
        annotate_axis(sch, loop, axis)
    columns, lane = sch.split(zero[2], [None, kernel.lanes])
    sch.unroll(columns)
    annotate_axis(sch, columns, "nr")
    sch.vectorize(lane)
    shape = UpdateShape(
        config.tile_h,
        config.tile_w,
        kr=workload.kw if window else config.ci_block,
        unroll=config.kr,
        view="window" if window else "rows",
        sh=workload.stride[0],
        sw=workload.stride[1],
        dw=workload.dilation[1] if window else 1,
    )
    sch.tensorize(kernel_loops[0], update_intrin(kernel, shape))
