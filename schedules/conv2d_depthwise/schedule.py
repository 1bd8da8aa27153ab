"""The schedule template of depthwise convolution and of small groups: tiles, borders, threads."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_depthwise.geometry import DepthwiseGeometry
from tvm_blislike.cost_models.data_types import vector_dot
from tvm_blislike.hardware import Core
from tvm_blislike.model.directives import Apart, Border, ByInput, Dot, Edge, SharedBorder, Vector
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import STAGE
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import (
    fuse_epilogue,
    stages,
)


def schedule(
    sch: s_tir.Schedule, workload: Conv2dWorkload, config: DepthwiseConfig, core: Core, threads: int
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it.

    Tiles at borders and edges stand one behind the other, and LLVM would load the pixels of the
    next tile ahead: a row of 7x7 pixels took 109 stack accesses for 361 FMAs on Cortex-A72. Kept
    apart they take 20, and 0.86 of the cycles. Cores that issue in order gain as much by loads
    ahead as they lose.
    """
    geo = DepthwiseGeometry(workload, config)
    loops = _tile_epilogue(sch, fuse_epilogue(sch), geo)
    if not (core.isa.memory_operand or core.in_order):
        Apart().on(sch, loops["xt"])
    marked = stages(sch)
    acc = marked["acc"]
    sch.compute_at(acc, loops["xt"], preserve_unit_loops=True)
    if "pad" in marked:
        _schedule_padding(sch, marked["pad"], geo, threads)
    if threads > 1:
        # Before the reduction is decomposed: TVM refuses to reason about the loop afterwards.
        _parallelize(sch, loops, geo, threads)
    _unroll_kernel(sch, acc, geo, core)


def _tile_epilogue(sch: s_tir.Schedule, epilogue: Any, geo: DepthwiseGeometry) -> dict[str, Any]:
    """Split the epilogue's loops into tiles and say where borders and edges are."""
    config, workload = geo.config, geo.workload
    if Layout(config.out_layout).block:
        n, ov, oh, ow, lane = sch.get_loops(epilogue)
    else:
        n, oh, ow, channel = sch.get_loops(epilogue)
        ov, lane = sch.split(channel, [None, config.nr])
    yt, ih = sch.split(oh, [None, config.tile_h])
    xt, iw = sch.split(ow, [None, config.tile_w])
    by_rows = config.loop_order == "rows"
    if workload.kd > 1:
        # What slices share are rows.
        outer = [yt, n, ov] if by_rows else [ov, yt, n]
    else:
        outer = [n, yt, ov] if by_rows else [n, ov, yt]
    sch.reorder(*outer, xt, ih, iw, lane)
    _mark_block(sch, ih, iw, lane, Vector(config.nr))
    for axis, (loop, name) in enumerate(((yt, "mh"), (xt, "mw"))):
        out, tile = ((workload.oh, config.tile_h), (workload.ow, config.tile_w))[axis]
        if any(workload.padding) and not geo.copies:
            border = SharedBorder if axis == 0 and geo.shares_border else Border
            border(*geo.borders(axis)).on(sch, loop)
        if out % tile:
            Edge({name: out % tile}).on(sch, loop)
    if any(workload.depth_padding):
        Border(*geo.depth_borders).on(sch, n)
    if workload.co % config.nr:
        Edge({"sweep": workload.co % config.nr}).on(sch, ov)
    return {"n": n, "ov": ov, "yt": yt, "xt": xt}


def _mark_block(sch: s_tir.Schedule, ih: Any, iw: Any, lane: Any, vector: Vector | Dot) -> None:
    """Unroll the loops over one tile and name their axes."""
    for loop, axis in ((ih, "mh"), (iw, "mw")):
        sch.unroll(loop)
        Named(axis).on(sch, loop)
    Named("sweep").on(sch, lane)
    vector.on(sch, lane)


def _unroll_kernel(sch: s_tir.Schedule, acc: Any, geo: DepthwiseGeometry, core: Core) -> None:
    """Put the kernel outside the tile, to be unrolled in the order of the input pixels."""
    ks, workload = geo.config.ks, geo.workload
    several, grouped = geo.sums > 1, ks > 1
    ih, iw, lane, *loops = sch.get_loops(acc)[-5 - several - grouped :]
    steps = [loops.pop()] if grouped else []
    *inner, ry, rx = loops
    sch.reorder(*inner, ry, rx, ih, iw, lane, *steps)
    sch.unannotate(acc, STAGE)
    init = sch.decompose_reduction(acc, [*inner, ry][0])
    for loop in inner:
        # Its index selects lanes, or slices that may be outside.
        sch.unroll(loop)
    vector = Vector(geo.config.nr)
    _mark_block(sch, *sch.get_loops(init)[-3:], vector)
    _mark_block(sch, ih, iw, lane, _dot(workload, core) if grouped else vector)
    Named("ry").on(sch, ry)
    Named("rx").on(sch, rx)
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    ByInput(sh, sw, ks * dh, dw).on(sch, ry)


def _dot(workload: Conv2dWorkload, core: Core) -> Dot:
    kernel = vector_dot(core, workload.types)
    return Dot(kernel.lanes, kernel.product.intrinsic)


def _parallelize(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: DepthwiseGeometry, threads: int
) -> None:
    workload = geo.workload
    cut, in_depth = workload.co % geo.config.nr, workload.kd > 1
    if geo.config.loop_order == "channels":
        sch.parallel(loops["ov"] if cut or in_depth else sch.fuse(loops["n"], loops["ov"]))
    else:
        by_images = workload.n % threads == 0 and not in_depth
        sch.parallel(loops["n" if by_images else "yt"])


def _schedule_padding(sch: s_tir.Schedule, pad: Any, geo: DepthwiseGeometry, threads: int) -> None:
    loops = sch.get_loops(pad)
    Vector(geo.config.nr).on(sch, loops[-1])
    if threads > 1:
        sch.parallel(sch.fuse(*loops[:2]))
