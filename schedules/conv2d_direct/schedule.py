"""The schedule template of direct convolution: loops over tiles, padding, edges, threads."""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.conv2d_direct.candidates import FEW_TILES
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, kernel_of
from tvm_blislike.model.directives import (
    AskOnce,
    Border,
    Edge,
    Image,
    NextWeights,
    Pieces,
    TermsAhead,
    Vector,
)
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import STAGE
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import (
    call_kernel,
    fuse_epilogue,
    pad_columns,
    result_lanes,
    stages,
    unroll_block,
)

# Axes of the rows of a block of C.
_ROWS = ("mh", "mw")


def schedule(
    sch: s_tir.Schedule,
    workload: Conv2dWorkload,
    config: DirectConfig,
    core: Core,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
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
    if workload.types.acc == "int32" and kernel.tiles is None:
        # Products of bytes are so short that waiting for another term shows.
        TermsAhead().on(sch, loops["xt"])
    if config.prefetch and not _streams(geo, kernel):
        in_loops = int(kernel.takes_groups and kernel.tiles is None)
        _prefetch_panels(sch, loops, call, geo, core.prefetch_streams, in_loops)


def _tile_epilogue(
    sch: s_tir.Schedule, epilogue: Any, geo: DirectGeometry, kernel: Microkernel
) -> dict[str, Any]:
    """Split the epilogue's loops into tiles and say where the edges are."""
    config, groups = geo.config, geo.workload.groups
    if geo.is_blocked:
        n, ob, oh, ow, lane = sch.get_loops(epilogue)
        g, block = sch.split(ob, [groups, geo.co_blocks])
        ot, columns = sch.split(block, [None, geo.blocks])
        Named("blocks").on(sch, columns)
        sch.unroll(columns)
        block_loops = [columns, lane]
    else:
        n, oh, ow, channel = sch.get_loops(epilogue)
        g, inner = sch.split(channel, [groups, geo.co_group])
        ot, lane = sch.split(inner, [geo.parts, None if geo.parts == 1 else config.nr])
        Named("lanes").on(sch, lane)
        block_loops = [lane]
    yt, ih = sch.split(oh, [None, config.tile_h])
    yo, yi = sch.split(yt, [None, config.oh_block])
    xt, iw = sch.split(ow, [None, config.tile_w])
    outer = [n, yo, g, ot] if config.loop_order == "rows" else [n, g, ot, yo]
    sch.reorder(*outer, yi, xt, ih, iw, *block_loops)
    for loop, axis in ((ih, "mh"), (iw, "mw")):
        sch.unroll(loop)
        Named(axis).on(sch, loop)
    Named("yi").on(sch, yi)
    Named("column").on(sch, xt)
    Vector(result_lanes(sch, epilogue, kernel)).on(sch, lane)
    loops = {"n": n, "g": g, "ot": ot, "yo": yo, "yi": yi, "xt": xt}
    _annotate_edges(sch, loops, geo, kernel)
    return loops


def _annotate_edges(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: DirectGeometry, kernel: Microkernel
) -> None:
    config, workload = geo.config, geo.workload
    if workload.ow % config.tile_w:
        Edge({"mw": workload.ow % config.tile_w}).on(sch, loops["xt"])
    cut_rows = workload.oh % config.tile_h
    cut_slab = geo.tiles_h % config.oh_block
    if cut_slab:
        Edge({"yi": cut_slab}).on(sch, loops["yo"])
    elif cut_rows:
        # The cut row of blocks is the last of the last slab: the config keeps one of both at 1.
        rows = loops["yo" if config.oh_block == 1 else "yi"]
        Edge({"mh": cut_rows}).on(sch, rows)
    cut = geo.co_group - (geo.tiles - 1) * config.nr
    if cut < config.nr:
        edge = {"nr": math.ceil(cut / kernel.lanes), "lanes": cut}
        if geo.is_blocked:
            edge["blocks"] = cut // geo.co_block
        Edge(edge).on(sch, loops["ot"])


def _place_padding(
    sch: s_tir.Schedule, pad: Any, loops: dict[str, Any], geo: DirectGeometry, kernel: Microkernel
) -> None:
    layout = geo.config.data_layout
    rank = 3 if geo.by_row else Layout(layout).rank
    if geo.config.loop_order == "rows":
        sch.compute_at(pad, loops["yo"], preserve_unit_loops=True)
    inner = sch.get_loops(pad)[-rank:]
    if geo.config.loop_order != "rows":
        sch.parallel(inner[1])
    left, right = pad_columns(sch, pad)
    if geo.by_row:
        # A row of the image is one piece, a plain vector loop; its elements have one index.
        w, length = geo.workload, geo.copy_shape[2]
        Image(w.w, w.ci).on(sch, inner[1])
        AskOnce().on(sch, inner[1])
        Pieces(kernel.copied_lanes, (left, length - right)).on(sch, inner[-1])
        return
    Vector(kernel.copied_lanes).on(sch, inner[-1])
    # Columns outside the image split off: the copy in between is a plain vector loop.
    Border(left, right).on(sch, inner[Layout(layout).height_axis + 1])


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
        Vector(kernel.lanes).on(sch, unroll_block(sch, block, kernel, _ROWS))


def _tensorize(sch: s_tir.Schedule, acc: Any, geo: DirectGeometry, kernel: Microkernel) -> Any:
    """Put the micro-kernel in; return the loop whose body is one call of it."""
    workload, config = geo.workload, geo.config
    grouped = config.ks > 1
    reductions = (3 if geo.window or geo.by_row else 4) + grouped
    ih, iw, j, *over_k = sch.get_loops(acc)[-(3 + reductions) :]
    group = [over_k.pop()] if grouped else []
    *outer, k = over_k
    sch.reorder(*outer, k, ih, iw, j, *group)
    sch.unannotate(acc, STAGE)
    zero = sch.decompose_reduction(acc, outer[0])
    sch.vectorize(unroll_block(sch, zero, kernel, _ROWS))
    shape = UpdateShape(
        config.tile_h,
        config.tile_w,
        steps=workload.kw if geo.window else geo.run_groups,
        unroll=config.unroll,
        view="window" if geo.window or geo.by_row else "rows",
        sh=workload.stride[0],
        sw=workload.stride[1] * (workload.ci if geo.by_row else 1),
        dw=workload.dilation[1] if geo.window else 1,
        ks=config.ks,
        streams=_streams(geo, kernel),
    )
    call_kernel(sch, acc, (k, ih, iw, j, *group), kernel, shape)
    return outer[-1]


def _streams(geo: DirectGeometry, kernel: Microkernel) -> bool:
    """Whether tiles ask for the present panel, since there is no time to ask for the next one."""
    blocks = geo.config.oh_block * geo.tiles_w
    return kernel.tiles is not None and bool(geo.config.prefetch) and blocks < FEW_TILES


def _prefetch_panels(
    sch: s_tir.Schedule,
    loops: dict[str, Any],
    call: Any,
    geo: DirectGeometry,
    streams: int,
    in_loops: int,
) -> None:
    """Ask for the next tile's weights while this tile's are in use (`lowering.prefetch`)."""
    blocks = geo.config.oh_block * geo.tiles_w
    NextWeights(geo.tiles_w, blocks, streams, in_loops).on(sch, loops["yi"])
    Named("call").on(sch, call)
