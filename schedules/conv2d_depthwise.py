"""Depthwise convolution: a tile of outputs in registers, ordered by input pixel, no padded copy.

    out[n, o, y, x] = sum_{ry, rx} in[n, o / times, y * stride + ry, x * stride + rx] * w[o, ry, rx]

A step computes tile_h x tile_w pixels of one vector of nr channels. There is no sum over channels,
so nothing is shared between vectors: the filter of the vector stays in registers, and the kernel
is unrolled in the order of the input pixels, each of which is loaded once and multiplied into all
the outputs that it contributes to (cost_models/depthwise.py has the arithmetic intensity).

"channels" order (NCHWc):                "rows" order (NHWC, or too few blocks for the threads):

    for n, ov           parallel             for n, yt           yt parallel
      for yt, xt                               for ov, xt

Padding is a condition on the loads. The tiles at the borders are split off and everything in a
tile is unrolled, so conditions are constants: no branch inside, no multiplication by a padded
zero at the borders. Where that would take too much code (large dilations), the padded image is
made first.

Channels that do not fill a vector (NHWC) are swept in narrower vectors: 57 = 3 x 16 + 8 + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import s_tir, te, tirx

from tvm_blislike import notes
from tvm_blislike.config import Config
from tvm_blislike.cost_models import depthwise
from tvm_blislike.cost_models.data_types import missing, most_steps
from tvm_blislike.cost_models.roofline import Estimate
from tvm_blislike.hardware import Core
from tvm_blislike.layouts import block_of, preferred, shape_in, spatial_axis
from tvm_blislike.schedules.common import (
    STAGE,
    annotate_axis,
    annotate_vector,
    fuse_epilogue,
    padded,
    stage,
    stages,
)
from tvm_blislike.schedules.depthwise_geometry import (
    CODE_BYTES,
    FMA_BYTES,
    DepthwiseGeometry,
    pack_weights,
    pack_weights_te,
)
from tvm_blislike.schedules.depthwise_space import space
from tvm_blislike.schedules.lowering import APART, BORDER, BY_INPUT, EDGE, UNROLL
from tvm_blislike.space import Space
from tvm_blislike.workload import Conv2dWorkload, Workload

# Configurations to offer, best first.
OFFERED = 8


def compute(
    workload: Conv2dWorkload, config: Config, data: te.Tensor, packed: te.Tensor
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
    ry = te.reduce_axis((0, workload.kh), "ry")
    rx = te.reduce_axis((0, workload.kw), "rx")
    inner = [te.reduce_axis((0, geo.ci_group), "ii")] if geo.ci_group > 1 else []

    def product(n: Any, ov: Any, yt: Any, xt: Any, ih: Any, iw: Any, lane: Any) -> Any:
        y, x = (yt * th + ih) * sh + ry * dh, (xt * tw + iw) * sw + rx * dw
        value, inside = pixel(n, ov, y, x, lane, *inner)
        scaled = value * packed[(ov, *inner, ry, rx, lane)]
        if inside is not None:
            # The product, not the pixel: outside the image nothing is left to multiply.
            scaled = tirx.if_then_else(inside, scaled, tirx.const(0, workload.dtype))
        return te.sum(scaled, [*inner, ry, rx])

    acc = te.compute(
        (workload.n, geo.vectors, *geo.tiles, th, tw, nr), product, name="acc", attrs=stage("acc")
    )

    def from_blocks(n: Any, ob: Any, y: Any, x: Any, lane: Any) -> Any:
        return acc[n, ob, y // th, x // tw, y % th, x % tw, lane]

    def from_channels(n: Any, y: Any, x: Any, o: Any) -> Any:
        return acc[n, o // nr, y // th, x // tw, y % th, x % tw, o % nr]

    return te.compute(
        shape_in(config.out_layout, workload.n, workload.co, workload.oh, workload.ow),
        from_blocks if block_of(config.out_layout) else from_channels,
        name="unpack",
        attrs=stage("unpack"),
    )


def _pixels(geo: DepthwiseGeometry, data: te.Tensor) -> Any:
    """Return (n, vector, padded y, padded x, lane ...) -> (value, whether it is in the image)."""
    w, layout = geo.workload, geo.config.data_layout
    top, left, conditional = *w.padding[:2], any(w.padding) and not geo.copies
    image = data
    if geo.copies:
        shape = shape_in(layout, w.n, w.ci, *geo.padded_size)
        image = padded(data, spatial_axis(layout), w.padding, shape)

    def pixel(n: Any, ov: Any, y: Any, x: Any, *lane: Any) -> tuple[Any, Any]:
        if not conditional:
            return image[_channel_index(geo, n, ov, y, x, *lane)], None
        y, x = y - top, x - left
        inside = tirx.all(y >= 0, y < w.h, x >= 0, x < w.w)
        return image[_channel_index(geo, n, ov, y, x, *lane)], inside

    return pixel


def _channel_index(
    geo: DepthwiseGeometry, n: Any, ov: Any, y: Any, x: Any, lane: Any, inner: Any = 0
) -> tuple[Any, ...]:
    """Index of the input channel of an output lane (the `inner`th of its group), at a pixel."""
    nr, times = geo.config.nr, geo.multiplier
    block = block_of(geo.config.data_layout)
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


def schedule(
    sch: s_tir.Schedule, workload: Conv2dWorkload, config: Config, core: Core, threads: int
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it.

    Tiles at borders and edges stand one behind the other, and LLVM would load the pixels of the
    next tile ahead: a row of 7x7 pixels took 109 stack accesses for 361 FMAs on Cortex-A72. Kept
    apart they take 20, and 0.86 of the cycles. Cores that issue in order gain as much by loads
    ahead as they lose.
    """
    geo = DepthwiseGeometry(workload, config)
    loops = _tile_epilogue(sch, fuse_epilogue(sch), geo)
    if core.isa == "neon" and not core.in_order:
        sch.annotate(loops["xt"], APART, 1)
    marked = stages(sch)
    acc = marked["acc"]
    sch.compute_at(acc, loops["xt"], preserve_unit_loops=True)
    if "pad" in marked:
        _schedule_padding(sch, marked["pad"], geo, threads)
    if threads > 1:
        # Before the reduction is decomposed: TVM refuses to reason about the loop afterwards.
        _parallelize(sch, loops, geo, threads)
    _unroll_kernel(sch, acc, geo)


def _tile_epilogue(sch: s_tir.Schedule, epilogue: Any, geo: DepthwiseGeometry) -> dict[str, Any]:
    """Split the epilogue's loops into tiles and say where borders and edges are."""
    config, workload = geo.config, geo.workload
    if block_of(config.out_layout):
        n, ov, oh, ow, lane = sch.get_loops(epilogue)
    else:
        n, oh, ow, channel = sch.get_loops(epilogue)
        ov, lane = sch.split(channel, [None, config.nr])
    yt, ih = sch.split(oh, [None, config.tile_h])
    xt, iw = sch.split(ow, [None, config.tile_w])
    outer = [n, yt, ov] if config.loop_order == "rows" else [n, ov, yt]
    sch.reorder(*outer, xt, ih, iw, lane)
    _mark_block(sch, ih, iw, lane, config.nr)
    for axis, (loop, name) in enumerate(((yt, "mh"), (xt, "mw"))):
        out, tile = ((workload.oh, config.tile_h), (workload.ow, config.tile_w))[axis]
        if any(workload.padding) and not geo.copies:
            sch.annotate(loop, BORDER, geo.borders(axis))
        if out % tile:
            sch.annotate(loop, EDGE, notes.write({name: out % tile}))
    if workload.co % config.nr:
        sch.annotate(ov, EDGE, notes.write({"sweep": workload.co % config.nr}))
    return {"n": n, "ov": ov, "yt": yt, "xt": xt}


def _mark_block(sch: s_tir.Schedule, ih: Any, iw: Any, lane: Any, lanes: int) -> None:
    """Unroll the loops over one tile and name their axes."""
    for loop, axis in ((ih, "mh"), (iw, "mw")):
        sch.unroll(loop)
        annotate_axis(sch, loop, axis)
    annotate_axis(sch, lane, "sweep")
    annotate_vector(sch, lane, lanes)


def _unroll_kernel(sch: s_tir.Schedule, acc: Any, geo: DepthwiseGeometry) -> None:
    """Put the kernel outside the tile, to be unrolled in the order of the input pixels."""
    several = geo.ci_group > 1
    ih, iw, lane, *inner, ry, rx = sch.get_loops(acc)[-6 if several else -5 :]
    sch.reorder(*inner, ry, rx, ih, iw, lane)
    sch.unannotate(acc, STAGE)
    init = sch.decompose_reduction(acc, [*inner, ry][0])
    for loop in inner:
        # Its index selects lanes.
        sch.annotate(loop, UNROLL, 1)
    _mark_block(sch, *sch.get_loops(init)[-3:], geo.config.nr)
    _mark_block(sch, ih, iw, lane, geo.config.nr)
    annotate_axis(sch, ry, "ry")
    annotate_axis(sch, rx, "rx")
    sch.annotate(ry, BY_INPUT, [*geo.workload.stride, *geo.workload.dilation])


def _parallelize(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: DepthwiseGeometry, threads: int
) -> None:
    cut = geo.workload.co % geo.config.nr
    if geo.config.loop_order == "channels":
        sch.parallel(loops["ov"] if cut else sch.fuse(loops["n"], loops["ov"]))
    else:
        sch.parallel(loops["n" if geo.workload.n % threads == 0 else "yt"])


def _schedule_padding(sch: s_tir.Schedule, pad: Any, geo: DepthwiseGeometry, threads: int) -> None:
    loops = sch.get_loops(pad)
    annotate_vector(sch, loops[-1], geo.config.nr)
    if threads > 1:
        sch.parallel(sch.fuse(*loops[:2]))


class Conv2dDepthwise:
    """Depthwise convolution in registers (`Implementation`, see `tvm_blislike.registry`)."""

    name = "conv2d_depthwise"
    kind = "conv2d"

    def applies(self, workload: Workload, core: Core) -> str:
        """Return "" for depthwise convolutions, else the reason why not."""
        if not isinstance(workload, Conv2dWorkload):
            return f"{workload.kind} is not a convolution"
        if not workload.is_depthwise:
            return "not depthwise: more than one input channel per group"
        if lacking := missing(workload, core):
            return lacking
        kernel = f"{workload.kh}x{workload.kw}"
        if workload.kh * workload.kw > most_steps(workload.dtype):
            return f"kernel {kernel}: too long a sum in {workload.dtype}"
        too_large = workload.kh * workload.kw * FMA_BYTES > CODE_BYTES
        return f"kernel {kernel} too large to unroll" if too_large else ""

    def configs(self, workload: Conv2dWorkload, core: Core, threads: int) -> list[Config]:
        """Return the tiles of the best predicted time, best first."""
        found = [c.with_fields(implementation=self.name) for c in _candidates(workload, core)]
        small = [c for c in found if DepthwiseGeometry(workload, c).code_bytes <= CODE_BYTES]
        # One pixel of a large kernel may take more with its edges: then one pixel it is.
        found = small or found[:1]
        found.sort(key=lambda c: self.estimate(workload, c, core, threads).seconds)
        return found[:OFFERED]

    def space(self, workload: Conv2dWorkload, core: Core, threads: int) -> Space:
        """See `depthwise_space`."""
        return space(self.name, workload, core, relaid=True)

    def estimate(
        self, workload: Conv2dWorkload, config: Config, core: Core, threads: int
    ) -> Estimate:
        """Return the predicted time with its breakdown."""
        copied = self.workspace_bytes(workload, config, threads)
        return depthwise.estimate(workload, config, core, threads, copied)

    def workspace_bytes(self, workload: Conv2dWorkload, config: Config, threads: int) -> int:
        """Return the bytes of the padded image, 0 where borders are split off instead."""
        geo = DepthwiseGeometry(workload, config)
        if not geo.copies:
            return 0
        return workload.item_bytes * workload.n * workload.ci * math.prod(geo.padded_size)

    def relaid(self, workload: Conv2dWorkload, config: Config, core: Core) -> Iterator[Config]:
        """Yield a configuration for NHWC images where both are blocked."""
        if block_of(config.data_layout) and block_of(config.out_layout):
            yield config.with_fields(data_layout="NHWC", out_layout="NHWC", loop_order="rows")

    def error_bound(self, workload: Conv2dWorkload, config: Config) -> float:
        """Only rounding."""
        return 0.0

    def pack(self, workload: Conv2dWorkload, config: Config, constant: np.ndarray) -> np.ndarray:
        """See `pack_weights`."""
        return pack_weights(workload, config, constant)

    def pack_te(self, workload: Conv2dWorkload, config: Config, operand: te.Tensor) -> te.Tensor:
        """See `pack_weights_te`."""
        return pack_weights_te(workload, config, operand)

    def compute(
        self, workload: Conv2dWorkload, config: Config, data: te.Tensor, packed: te.Tensor
    ) -> te.Tensor:
        """See `compute`."""
        return compute(workload, config, data, packed)

    def schedule(
        self,
        sch: s_tir.Schedule,
        workload: Conv2dWorkload,
        config: Config,
        core: Core,
        threads: int,
    ) -> None:
        """See `schedule`."""
        schedule(sch, workload, config, core, threads)


def _candidates(workload: Conv2dWorkload, core: Core) -> Iterator[Config]:
    """Tiles that fit into the registers, in the layouts that the channel counts allow."""
    lanes = core.lanes(workload.dtype)
    data_layout, out_layout = (preferred(c, 1, lanes) for c in (workload.ci, workload.co))
    # Fewer channels than lanes: the widest power of two that they fill.
    nr = lanes if workload.co >= lanes else 1 << (workload.co.bit_length() - 1)
    orders = ("channels", "rows") if block_of(out_layout) else ("rows",)
    pixels = depthwise.accumulators(workload, core)
    for tile_h in range(1, min(4, workload.oh) + 1):
        for tile_w in range(1, min(pixels // tile_h, workload.ow, depthwise.widest(core)) + 1):
            for order in orders:
                yield Config(
                    "conv2d_depthwise",
                    mr=tile_h * tile_w,
                    nr=nr,
                    kr=0,
                    loop_order=order,
                    data_layout=data_layout,
                    out_layout=out_layout,
                    tile_h=tile_h,
                    tile_w=tile_w,
                )


IMPLEMENTATION = Conv2dDepthwise()
