"""The schedule template of the one-dimensional Winograd convolution: blocks in strips and rings."""

from __future__ import annotations

from tvm import s_tir

from tvm_blislike.cost_models.conv2d_winograd_1d.config import Winograd1dConfig
from tvm_blislike.cost_models.conv2d_winograd_1d.geometry import Winograd1dGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernel_of
from tvm_blislike.model.directives import AskOnce, Ring, Vector, WriteOut
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import align_rows, fuse_epilogue, stages
from tvm_blislike.schedules.conv2d_winograd.schedule import (
    parallelize,
    schedule_products,
    tensorize,
    tile_epilogue,
)


def schedule(
    sch: s_tir.Schedule,
    workload: Conv2dWorkload,
    config: Winograd1dConfig,
    core: Core,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    kernel = kernel_of(core, config.mr, config.nr, workload.types)
    geo = Winograd1dGeometry(workload, config)
    epilogue = fuse_epilogue(sch)
    marked = stages(sch)
    loops = tile_epilogue(sch, epilogue, geo, kernel)
    strip, yb = sch.split(loops["yb"], [None, geo.strip])
    sch.reorder(strip, loops["xb"], yb)
    schedule_products(sch, marked, loops["block"], geo, kernel, core.prefetch_streams)
    transformed = marked["transformed"]
    sch.compute_at(transformed, yb, preserve_unit_loops=True)
    nu, row, t, channel = sch.get_loops(transformed)[-4:]
    if geo.ring:
        q = t
        Ring(axis=4, rows=geo.v_rows // geo.block_w, step=geo.block_h).on(sch, yb)
        Named("ring").on(sch, row)
    else:
        row, q = sch.split(t, [None, geo.block_w])
    ib, lane = sch.split(channel, [None, geo.lanes])
    sch.reorder(row, q, ib, nu, lane)
    WriteOut().on(sch, nu)
    AskOnce().on(sch, ib)
    Vector(kernel.lanes).on(sch, lane)
    align_rows(sch, transformed, 3, kernel.lanes)
    parallelize(sch, {**loops, "yb": strip}, threads)
    tensorize(sch, marked["acc"], geo, kernel)
