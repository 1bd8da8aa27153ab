"""The schedule template of convolution by dataflows: loops over slabs, padding, threads."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.conv2d_dataflow.config import DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.geometry import DataflowGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of
from tvm_blislike.model.directives import Border, Edge, Vector
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import STAGE
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import fuse_epilogue, pad_columns, stages
from tvm_blislike.schedules.conv2d_dataflow.intrin import pass_intrin


def schedule(
    sch: s_tir.Schedule, workload: Conv2dWorkload, config: DataflowConfig, core: Core, threads: int
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
    geo = DataflowGeometry(workload, config)
    loops = _slabs(sch, fuse_epilogue(sch), geo, kernel)
    marked = stages(sch)
    inner = loops["ot" if config.loop_order == "rows" else "yo"]
    sch.compute_at(marked["acc"], inner, preserve_unit_loops=True)
    if "pad" in marked:
        _place_padding(sch, marked["pad"], loops, geo, kernel)
    if threads > 1:
        _parallelize(sch, loops, geo, threads)
    _tensorize(sch, marked["acc"], geo, kernel)


def _slabs(
    sch: s_tir.Schedule, epilogue: Any, geo: DataflowGeometry, kernel: Microkernel
) -> dict[str, Any]:
    """Split the epilogue's loops into slabs of nr channels."""
    config = geo.config
    blocks = []
    if Layout(config.out_layout).block:
        n, ob, oh, ow, lane = sch.get_loops(epilogue)
        ot, block = sch.split(ob, [None, config.nr // geo.co_block])
        blocks = [block]
    else:
        n, oh, ow, channel = sch.get_loops(epilogue)
        ot, lane = sch.split(channel, [geo.tiles, None if geo.tiles == 1 else config.nr])
        Named("lanes").on(sch, lane)
    yo, yi = sch.split(oh, [None, config.tile_h])
    outer = [n, yo, ot] if config.loop_order == "rows" else [n, ot, yo]
    sch.reorder(*outer, yi, ow, *blocks, lane)
    Vector(kernel.lanes).on(sch, lane)
    cut = geo.workload.co % config.nr
    if cut and geo.tiles > 1:
        Edge({"lanes": cut}).on(sch, ot)
    return {"n": n, "yo": yo, "ot": ot}


def _place_padding(
    sch: s_tir.Schedule, pad: Any, loops: dict[str, Any], geo: DataflowGeometry, kernel: Microkernel
) -> None:
    layout = Layout(geo.config.data_layout)
    if geo.config.loop_order == "rows":
        sch.compute_at(pad, loops["yo"], preserve_unit_loops=True)
    inner = sch.get_loops(pad)[-layout.rank :]
    if geo.config.loop_order != "rows":
        sch.parallel(inner[1])
    Vector(kernel.copied_lanes).on(sch, inner[-1])
    if not geo.planar:
        # Columns outside the image split off: the copy in between is a plain vector loop.
        Border(*pad_columns(sch, pad)).on(sch, inner[layout.height_axis + 1])


def _parallelize(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: DataflowGeometry, threads: int
) -> None:
    if geo.workload.n % threads == 0:
        sch.parallel(loops["n"])
    else:
        sch.parallel(loops["yo" if geo.config.loop_order == "rows" else "ot"])


def _tensorize(sch: s_tir.Schedule, acc: Any, geo: DataflowGeometry, kernel: Microkernel) -> None:
    """Put the passes in, and zero the slab of sums before the first one."""
    yi, x, j, ib, ip, *taps = sch.get_loops(acc)[-9:]
    sch.reorder(ib, ip, yi, x, j, *taps)
    sch.unannotate(acc, STAGE)
    zero = sch.decompose_reduction(acc, ib)
    _, lane = sch.split(sch.get_loops(zero)[-1], [None, kernel.lanes])
    sch.vectorize(lane)
    nest = [yi, x, j, *taps]
    units = [loop for loop in nest if int(sch.get(loop).extent) == 1]
    inner = [loop for loop in nest if loop not in units]
    sch.reorder(*units, *inner)
    sch.tensorize(inner[0], pass_intrin(kernel, geo.sizes, geo.config))
