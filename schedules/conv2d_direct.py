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
from tvm import s_tir, te, tirx

from tvm_blislike import notes
from tvm_blislike.config import Config
from tvm_blislike.cost_models import direct, direct_configs
from tvm_blislike.cost_models.data_types import sum_dtype
from tvm_blislike.cost_models.direct_space import space
from tvm_blislike.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.layouts import block_of, shape_in, spatial_axis
from tvm_blislike.microkernels import (
    Microkernel,
    UpdateShape,
    get_kernel,
    kernel_name,
    update_intrin,
)
from tvm_blislike.registry import Template
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
from tvm_blislike.schedules.prefetch import PREFETCH, ROLE
from tvm_blislike.workload import Conv2dWorkload


def pack_weights(workload: Conv2dWorkload, config: Config, weights: np.ndarray) -> np.ndarray:
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


def pack_weights_te(workload: Conv2dWorkload, config: Config, weights: te.Tensor) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = DirectGeometry(workload, config)

    def value(g: Any, t: Any, ib: Any, ry: Any, rx: Any, *last: Any) -> Any:
        ii, j = (0, *last) if geo.window else last
        channel = t * config.nr + j
        loaded = weights[g * geo.co_group + channel, ib * geo.ci_block + ii, ry, rx]
        return tirx.if_then_else(channel < geo.co_group, loaded, tirx.const(0, workload.dtype))

    return te.compute(geo.packed_shape, value, name="packed_weights")


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
    geo = DirectGeometry(workload, config)
    layout = config.data_layout
    image = padded(
        data,
        spatial_axis(layout),
        workload.padding,
        shape_in(layout, workload.n, workload.ci, *geo.padded_size),
    )
    mh, mw = config.tile_h, config.tile_w
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    wide = sum_dtype(workload.dtype)
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
        return value.astype(workload.dtype)

    def from_channels(n: Any, y: Any, x: Any, channel: Any) -> Any:
        g, inner = _group_of(channel, geo.co_group, workload.groups)
        at = (n, g, inner // config.nr, y // mh, x // mw, y % mh, x % mw)
        value = acc[(*at, inner % config.nr)].astype(workload.dtype)
        if geo.tiles > 1 or geo.co_group == config.nr:
            return value
        last = acc[(*at, config.nr - 1)]
        # Always true and simplified away later; naming the last column keeps `compute_at` from
        # cutting the block of C, whose lanes beyond the channels only the micro-kernel sees.
        return tirx.if_then_else(channel < workload.co, value, last.astype(workload.dtype))

    return te.compute(
        shape_in(config.out_layout, workload.n, workload.co, workload.oh, workload.ow),
        from_blocks if geo.is_blocked else from_channels,
        name="unpack",
        attrs=stage("unpack"),
    )


def _group_of(index: Any, size: int, groups: int) -> tuple[Any, Any]:
    """Split an index into group and rest; a needless `%` would hide the tile from `compute_at`."""
    return (0, index) if groups == 1 else (index // size, index % size)


def schedule(
    sch: s_tir.Schedule,
    workload: Conv2dWorkload,
    config: Config,
    core: Core,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    kernel = get_kernel(kernel_name(core.isa, config.mr, config.nr, workload.dtype))
    geo = DirectGeometry(workload, config)
    epilogue = fuse_epilogue(sch)
    loops = _tile_epilogue(sch, epilogue, geo, kernel)
    marked = stages(sch)
    acc = marked["acc"]
    sch.compute_at(marked.get("sums", acc), loops["xt"], preserve_unit_loops=True)
    if "sums" in marked:
        sch.compute_at(acc, _chunk_loop(sch, marked["sums"]), preserve_unit_loops=True)
    if "pad" in marked:
        _place_padding(sch, marked["pad"], loops, geo, kernel)
    _parallelize(sch, loops, geo, threads)
    if "sums" in marked:
        _vectorize_sums(sch, marked["sums"], kernel)
    call = _tensorize(sch, acc, geo, kernel)
    _prefetch_panels(sch, loops, call, geo)


def _tile_epilogue(
    sch: s_tir.Schedule, epilogue: Any, geo: DirectGeometry, kernel: Microkernel
) -> dict[str, Any]:
    """Split the epilogue's loops into tiles and say where the edges are."""
    config, groups = geo.config, geo.workload.groups
    if geo.is_blocked:
        n, ob, oh, ow, lane = sch.get_loops(epilogue)
        g, block = sch.split(ob, [groups, geo.co_blocks])
        ot, columns = sch.split(block, [None, geo.blocks])
        annotate_axis(sch, columns, "blocks")
        sch.unroll(columns)
        block_loops = [columns, lane]
    else:
        n, oh, ow, channel = sch.get_loops(epilogue)
        g, inner = sch.split(channel, [groups, geo.co_group])
        ot, lane = sch.split(inner, [geo.parts, None if geo.parts == 1 else config.nr])
        annotate_axis(sch, lane, "lanes")
        block_loops = [lane]
    yt, ih = sch.split(oh, [None, config.tile_h])
    yo, yi = sch.split(yt, [None, config.oh_block])
    xt, iw = sch.split(ow, [None, config.tile_w])
    outer = [n, yo, g, ot] if config.loop_order == "rows" else [n, g, ot, yo]
    sch.reorder(*outer, yi, xt, ih, iw, *block_loops)
    for loop, axis in ((ih, "mh"), (iw, "mw")):
        sch.unroll(loop)
        annotate_axis(sch, loop, axis)
    annotate_axis(sch, yi, "yi")
    annotate_vector(sch, lane, kernel.lanes)
    loops = {"n": n, "g": g, "ot": ot, "yo": yo, "yi": yi, "xt": xt}
    _annotate_edges(sch, loops, geo, kernel)
    return loops


def _annotate_edges(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: DirectGeometry, kernel: Microkernel
) -> None:
    config, workload = geo.config, geo.workload
    if workload.ow % config.tile_w:
        sch.annotate(loops["xt"], EDGE, notes.write({"mw": workload.ow % config.tile_w}))
    cut_rows = workload.oh % config.tile_h
    cut_slab = geo.tiles_h % config.oh_block
    if cut_slab:
        sch.annotate(loops["yo"], EDGE, notes.write({"yi": cut_slab}))
    elif cut_rows:
        # The cut row of blocks is the last of the last slab: the config keeps one of both at 1.
        rows = loops["yo" if config.oh_block == 1 else "yi"]
        sch.annotate(rows, EDGE, notes.write({"mh": cut_rows}))
    cut = geo.co_group - (geo.tiles - 1) * config.nr
    if cut < config.nr:
        edge = {"nr": math.ceil(cut / kernel.lanes), "lanes": cut}
        if geo.is_blocked:
            edge["blocks"] = cut // geo.co_block
        sch.annotate(loops["ot"], EDGE, notes.write(edge))


def _place_padding(
    sch: s_tir.Schedule, pad: Any, loops: dict[str, Any], geo: DirectGeometry, kernel: Microkernel
) -> None:
    layout = geo.config.data_layout
    rank = 5 if block_of(layout) else 4
    if geo.config.loop_order == "rows":
        sch.compute_at(pad, loops["yo"], preserve_unit_loops=True)
    inner = sch.get_loops(pad)[-rank:]
    if geo.config.loop_order != "rows":
        sch.parallel(inner[1])
    annotate_vector(sch, inner[-1], kernel.lanes)
    # Columns outside the image split off: the copy in between is a plain vector loop.
    sch.annotate(inner[spatial_axis(layout) + 1], BORDER, pad_columns(sch, pad))


def _parallelize(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: DirectGeometry, threads: int
) -> None:
    if threads == 1:
        return
    if geo.workload.n % threads == 0:
        sch.parallel(loops["n"])
    elif geo.config.loop_order == "rows":
        sch.parallel(loops["yo"])
    elif geo.workload.groups > 1:
        sch.parallel(loops["g"])
    else:
        sch.parallel(loops["ot"])


def _chunk_loop(sch: s_tir.Schedule, sums: Any) -> Any:
    """Have a block of C added up chunk by chunk; return the loop over chunks."""
    ih, iw, j, q = sch.get_loops(sums)[-4:]
    sch.reorder(q, ih, iw, j)
    sch.unannotate(sums, STAGE)
    return q


def _vectorize_sums(sch: s_tir.Schedule, sums: Any, kernel: Microkernel) -> None:
    """Zero the sums of a block of C, then widen and add a chunk, in vectors."""
    zero = sch.decompose_reduction(sums, sch.get_loops(sums)[-4])
    for block in (zero, sums):
        annotate_vector(sch, _block_loops(sch, block, kernel), kernel.lanes)


def _tensorize(sch: s_tir.Schedule, acc: Any, geo: DirectGeometry, kernel: Microkernel) -> Any:
    """Put the micro-kernel in; return the loop whose body is one call of it."""
    workload, config = geo.workload, geo.config
    reductions = 3 if geo.window else 4
    inner = sch.get_loops(acc)[-(3 + reductions) :]
    ih, iw, j = inner[:3]
    *outer, k = inner[3:]
    # Unit loops go outside: the intrinsic has no such axes.
    block = [k, ih, iw, j]
    units = [loop for loop in block if int(sch.get(loop).extent) == 1]
    kernel_loops = [loop for loop in block if loop not in units]
    sch.reorder(*outer, *units, *kernel_loops)
    sch.unannotate(acc, STAGE)
    zero = sch.decompose_reduction(acc, outer[0])
    sch.vectorize(_block_loops(sch, zero, kernel))
    shape = UpdateShape(
        config.tile_h,
        config.tile_w,
        kr=workload.kw if geo.window else geo.ci_block,
        unroll=config.kr,
        view="window" if geo.window else "rows",
        sh=workload.stride[0],
        sw=workload.stride[1],
        dw=workload.dilation[1] if geo.window else 1,
    )
    sch.tensorize(kernel_loops[0], update_intrin(kernel, shape))
    return outer[-1]


def _prefetch_panels(
    sch: s_tir.Schedule, loops: dict[str, Any], call: Any, geo: DirectGeometry
) -> None:
    """Ask for the next tile's weights while this tile's are in use (`schedules.prefetch`)."""
    if not geo.config.prefetch:
        return
    spec = {"columns": geo.tiles_w, "blocks": geo.config.oh_block * geo.tiles_w}
    sch.annotate(loops["yi"], PREFETCH, notes.write(spec))
    sch.annotate(loops["xt"], ROLE, "column")
    sch.annotate(call, ROLE, "call")


def _block_loops(sch: s_tir.Schedule, block: Any, kernel: Microkernel) -> Any:
    """Unroll the loops over a block of C, such as its stores of zero; return that over lanes."""
    ih, iw, j = sch.get_loops(block)[-3:]
    columns, lane = sch.split(j, [None, kernel.lanes])
    for loop, axis in ((ih, "mh"), (iw, "mw"), (columns, "nr")):
        sch.unroll(loop)
        annotate_axis(sch, loop, axis)
    return lane


IMPLEMENTATION = Template(
    name="conv2d_direct",
    kind="conv2d",
    applies=direct_configs.applies,
    configs=direct_configs.configs,
    estimate=direct.estimate,
    workspace_bytes=direct.workspace_bytes,
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    relaid=direct_configs.relaid,
    every=space,
)
