"""The schedule template of the im2col convolution: loops over tiles, packing, edges, threads."""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import BATCH, FILTERS, PIXELS, Im2colGeometry
from tvm_blislike.cost_models.conv2d_im2col.slicing import INPUT_STATIONARY
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, kernel_of
from tvm_blislike.model.directives import (
    AskOnce,
    Edge,
    Image,
    InPlace,
    LastBlock,
    LastEdge,
    Pieces,
    Turn,
    Vector,
    WriteOut,
)
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import STAGE
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import (
    call_kernel,
    fuse_epilogue,
    stages,
    unroll_block,
)


def schedule(
    sch: s_tir.Schedule,
    workload: Conv2dWorkload,
    config: Im2colConfig,
    core: Core,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    kernel = kernel_of(core, config.mr, config.nr, workload.types)
    geo = Im2colGeometry(workload, config)
    epilogue = fuse_epilogue(sch)
    marked = stages(sch)
    parallel = geo.parallel_loop(threads)
    # The epilogue with the pixel of a block of rows as an axis in place of y and x: `compute_at`
    # then sees that a tile of pixels is enough.
    sch.reverse_compute_inline(epilogue)
    loops = _tile_epilogue(sch, marked["pixels"], geo, kernel, parallel)
    acc, place = marked["acc"], loops["outer" if geo.on_demand else "yb"]
    if geo.sets == 1:
        sch.compute_at(acc, loops["inner"], preserve_unit_loops=True)
    else:
        sch.compute_at(acc, loops["yb"], preserve_unit_loops=True)
        place = _tile_sums(sch, acc, geo, kernel, parallel)
    _place_packing(sch, marked, place, geo, kernel)
    _tensorize(sch, acc, geo, kernel, core)


def _inner(geo: Im2colGeometry, it: Any, jt: Any) -> tuple[Any, Any]:
    """Loops over tiles, the inner one last: the other one's tile stays."""
    return (jt, it) if geo.config.loop_order == INPUT_STATIONARY else (it, jt)


def _tile_epilogue(
    sch: s_tir.Schedule, epilogue: Any, geo: Im2colGeometry, kernel: Microkernel, parallel: str
) -> dict[str, Any]:
    """Split the epilogue's loops into blocks and tiles and say where the edges are."""
    w = geo.workload
    n, co, yb, f = sch.get_loops(epilogue)
    ic, it, i = sch.split(co, [None, geo.block_tiles, geo.filters])
    jt, j = sch.split(f, [None, geo.windows])
    outer = [ic, n, yb] if parallel == FILTERS else [n, yb, ic]
    sch.reorder(*outer, *_inner(geo, it, jt), i, j)
    sch.unroll(i)
    Image(w.oh, w.ow).on(sch, j)
    if geo.filters_across:
        Named("lanes").on(sch, i)
        Named("mw").on(sch, j)
        Turn(kernel.lanes).on(sch, i)
    else:
        Named("mw").on(sch, i)
        Named("lanes").on(sch, j)
        Vector(kernel.lanes).on(sch, j)
    last = geo.filter_tiles - (geo.filter_blocks - 1) * geo.block_tiles
    if last < geo.block_tiles or geo.co % geo.filters:
        LastBlock({"it": last}).on(sch, ic)
    _annotate_edges(sch, it, jt, geo, kernel, LastEdge)
    if parallel:
        sch.parallel({BATCH: n, PIXELS: yb, FILTERS: ic}[parallel])
    outer, inner = _inner(geo, it, jt)
    return {"yb": yb, "outer": outer, "inner": inner}


def _annotate_edges(
    sch: s_tir.Schedule, it: Any, jt: Any, geo: Im2colGeometry, kernel: Microkernel, last: type
) -> None:
    """Say how the last tiles differ: of pixels in every block, of filters as `last` says."""
    Named("it").on(sch, it)
    filters, pixels = geo.co % geo.filters, geo.pixels % geo.windows
    if filters:
        last(_cut(filters, geo.filters_across, kernel)).on(sch, it)
    if pixels:
        Edge(_cut(pixels, not geo.filters_across, kernel)).on(sch, jt)


def _cut(size: int, across: bool, kernel: Microkernel) -> dict[str, int]:
    """Return the extents of a cut tile: along the vectors, or of rows of the block."""
    return {"nr": math.ceil(size / kernel.lanes), "lanes": size} if across else {"mw": size}


def _tile_sums(
    sch: s_tir.Schedule, acc: Any, geo: Im2colGeometry, kernel: Microkernel, parallel: str
) -> Any:
    """Loops of partial sums in memory; return the one over sets of channels."""
    it, jt, i, j, pc, p = sch.get_loops(acc)[-6:]
    sch.reorder(pc, *_inner(geo, it, jt), p, i, j)
    # All filters, or those of a thread, whose last one has the last tile.
    _annotate_edges(sch, it, jt, geo, kernel, LastEdge if parallel == FILTERS else Edge)
    return pc


def _place_packing(
    sch: s_tir.Schedule,
    marked: dict[str, Any],
    place: Any,
    geo: Im2colGeometry,
    kernel: Microkernel,
) -> None:
    """Copy the windows of a block of rows and a set of channels, channel by channel.

    Each tap's copy of a row is loaded by itself, at an unaligned address, or (`config.packing`) the
    taps of a row of the kernel are shifted out of two vectors that are loaded once.
    """
    w, panels = geo.workload, marked["panels"]
    sch.compute_at(panels, place, preserve_unit_loops=True)
    jt, k, j = sch.get_loops(panels)[-3:]
    c, ry, rx = sch.split(k, [None, w.kh, w.kw])
    sch.reorder(c, ry, rx, jt, j)
    if geo.in_place:
        _read_in_place(sch, c, j, geo, kernel)
        return
    f = sch.fuse(jt, j)
    if geo.shifts:
        sch.reorder(f, rx)
    cuts = {*range(0, geo.pixel_tiles * geo.windows, geo.windows), geo.pixels}
    if not geo.is_plain:
        cuts |= set(range(0, geo.pixels, w.ow))
    if geo.on_demand:
        Named("mw" if geo.filters_across else "lanes").on(sch, f)
        cuts = {0}
    Pieces(kernel.lanes, sorted(cuts), int(geo.shifts)).on(sch, f)
    Image(w.oh, w.ow).on(sch, f)
    if "slab" in marked:
        _place_slab(sch, marked["slab"], c, geo, kernel)


def _read_in_place(
    sch: s_tir.Schedule, outer: Any, inner: Any, geo: Im2colGeometry, kernel: Microkernel
) -> None:
    """Have the copies of windows left out; the pixels of a tile are neighbours in the image."""
    w = geo.workload
    if kernel.isa.lane_operand:
        raise ValueError(f"{kernel.name} needs panels of windows; use packing=''")
    InPlace().on(sch, outer)
    Image(w.oh, w.ow).on(sch, inner)


def _place_slab(
    sch: s_tir.Schedule, slab: Any, channel: Any, geo: Im2colGeometry, kernel: Microkernel
) -> None:
    """Pad the rows of some channels; whether a row is inside the image is asked once per row."""
    w = geo.workload
    outer, _ = sch.split(channel, [None, geo.slab_channels])
    sch.compute_at(slab, outer, preserve_unit_loops=True)
    row, phase, q = sch.get_loops(slab)[-3:]
    AskOnce().on(sch, row)
    WriteOut().on(sch, phase)
    left, stride = w.padding[1], w.stride[1]
    cuts = set()
    for part in range(geo.phases):
        cuts |= {-((part - left) // stride), (w.w - 1 + left - part) // stride + 1}
    Pieces(kernel.lanes, sorted(c for c in cuts if c > 0)).on(sch, q)


def _tensorize(
    sch: s_tir.Schedule, acc: Any, geo: Im2colGeometry, kernel: Microkernel, core: Core
) -> None:
    """Update a block of C by one micro-kernel call: in registers, or partial sums in memory."""
    in_memory = geo.sets > 1
    steps = geo.channels * geo.taps
    if in_memory:
        p, i, j = sch.get_loops(acc)[-3:]
    else:
        i, j, pc, p = sch.get_loops(acc)[-4:]
        sch.reorder(pc, p, i, j)
    sch.unannotate(acc, STAGE)
    if not in_memory:
        sch.vectorize(unroll_block(sch, sch.decompose_reduction(acc, pc), kernel))
    shape = UpdateShape(
        1,
        geo.config.mr,
        steps=steps,
        unroll=geo.config.unroll,
        view="panel",
        in_memory=in_memory,
        in_order=core.in_order,
    )
    call_kernel(sch, acc, (p, i, j), kernel, shape)
