"""The schedule templates of the Winograd convolutions: loops over blocks, transforms, products."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, WinogradConfig
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.conv2d_winograd.integers import transformed
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, kernel_of
from tvm_blislike.model.directives import (
    AskOnce,
    Edge,
    FreshRegisters,
    LastBlock,
    NextPanel,
    Vector,
    WriteOut,
)
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import STAGE
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import (
    align_rows,
    call_kernel,
    fuse_epilogue,
    stages,
    unroll_block,
)

# Loops over phases of the image.
PHASES = ("phase_h", "phase_w")


def schedule(
    sch: s_tir.Schedule,
    workload: Conv2dWorkload,
    config: WinogradConfig,
    core: Core,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    kernel = kernel_of(core, config.mr, config.nr, transformed(workload.types), config.ks)
    geo = WinogradGeometry(workload, config)
    epilogue = fuse_epilogue(sch)
    marked = stages(sch)
    loops = tile_epilogue(sch, epilogue, geo, kernel)
    # Consumers first: `compute_at` wants all readers of a stage inside the loop.
    _schedule_output_transform(sch, marked["tile_columns"], loops["o"], geo, kernel)
    schedule_products(sch, marked, loops["block"], geo, kernel, core.prefetch_streams)
    _schedule_input_transform(sch, marked, loops["xb"], geo, kernel, threads)
    parallelize(sch, loops, threads)
    tensorize(sch, marked["acc"], geo, kernel)


def tile_epilogue(
    sch: s_tir.Schedule, epilogue: Any, geo: WinogradGeometry, kernel: Microkernel
) -> dict[str, Any]:
    """Split the epilogue's loops into blocks, tiles and pixels of a tile."""
    config, block = geo.config, geo.out_block
    if Layout(config.out_layout).block:
        n, ob, oh, ow, lane = sch.get_loops(epilogue)
        oc, o = sch.split(ob, [None, config.nc // block])
    else:
        n, oh, ow, channel = sch.get_loops(epilogue)
        # A last panel that is cut is in the only chunk.
        oc, o, lane = sch.split(channel, [geo.chunks, -(-geo.out_blocks // geo.chunks), block])
    yb, r, a = sch.split(oh, [None, geo.block_h, config.tile_h])
    xb, q, b = sch.split(ow, [None, geo.block_w, config.tile_w])
    part, oc = sch.split(oc, [geo.oc_parts, None])
    sch.reorder(part, n, yb, xb, oc, r, q, o, a, b, lane)
    # Rows beyond the image, then columns.
    AskOnce().on(sch, a)
    WriteOut().on(sch, b)
    _name_tiles(sch, r, q)
    Vector(kernel.lanes).on(sch, lane)
    annotate_cut(sch, o, lane, geo.workload.co % block)
    return {"part": part, "n": n, "yb": yb, "xb": xb, "o": o, "block": oc}


def _name_tiles(sch: s_tir.Schedule, rows: Any, columns: Any) -> None:
    """Name the loops over tiles of a block, for images on a canvas."""
    Named("tile_row").on(sch, rows)
    Named("tile_column").on(sch, columns)


def annotate_cut(sch: s_tir.Schedule, blocks: Any, lane: Any, cut: int) -> None:
    """Say how many channels the last block of an NHWC image has; 0 when it is whole."""
    if cut:
        Named("lanes").on(sch, lane)
        Edge({"lanes": cut}).on(sch, blocks)


def schedule_products(
    sch: s_tir.Schedule,
    marked: dict[str, Any],
    place: Any,
    geo: WinogradGeometry,
    kernel: Microkernel,
    streams: int,
) -> None:
    """One GEMM per point: panels of weights outside, groups of mr tiles inside."""
    products, acc, config = marked["products"], marked["acc"], geo.config
    sch.compute_at(products, place, preserve_unit_loops=True)
    point_axis = len(sch.get(products).writes[0].source.shape) - 4 - geo.sums_rows
    align_rows(sch, products, point_axis, geo.lanes)
    *_, xi, nu, row, t, j = sch.get_loops(products)
    if geo.phased:
        phases = zip((xi, nu), PHASES, geo.phases, geo.last_phases, strict=True)
        for point, phase, count, last in phases:
            if last < count:
                LastBlock({phase: last}).on(sch, point)
    group, i = sch.split(t, [None, config.mr])
    sch.unroll(i)
    Named("mw").on(sch, i)
    Vector(kernel.lanes).on(sch, j)
    cut = geo.row_tiles % config.mr
    if cut:
        Edge({"mw": cut}).on(sch, group)
    calls = -(-geo.row_tiles // config.mr)
    if config.prefetch:
        # The next panel; where a call runs over kernel rows, each asks for its own part.
        around, apart = (row, geo.rows) if geo.rows > 1 else (group, calls)
        axis, elements = -3 - geo.sums_rows, geo.summed * config.nr
        panel = NextPanel(1, axis, step=1, calls=apart, elements=elements, streams=streams)
        panel.on(sch, around)
    FreshRegisters(kernel.isa.name).on(sch, group)
    Named("tile_group").on(sch, group)
    sch.compute_at(acc, group, preserve_unit_loops=True)


def tensorize(sch: s_tir.Schedule, acc: Any, geo: WinogradGeometry, kernel: Microkernel) -> None:
    """Zero a block of products in registers and sum over all channels of a kernel row by a call."""
    config, outside = geo.config, 2 if geo.phased else int(geo.sums_rows)
    i, j, *sums = sch.get_loops(acc)[-3 - outside - (config.ks > 1) :]
    # Kernel rows or phases and groups of channels outside, elements of a group inside.
    around, step = sums[: outside + 1], sums[outside + 1 :]
    sch.reorder(*around, i, j, *step)
    for phase, loop in zip(PHASES if geo.phased else (), around, strict=False):
        Named(phase).on(sch, loop)
    sch.unannotate(acc, STAGE)
    sch.vectorize(unroll_block(sch, sch.decompose_reduction(acc, around[0]), kernel))
    steps = geo.summed // config.ks
    shape = UpdateShape(1, config.mr, steps=steps, unroll=config.unroll, ks=config.ks)
    call_kernel(sch, acc, [around[-1], i, j, *step], kernel, shape)


def _schedule_input_transform(
    sch: s_tir.Schedule,
    marked: dict[str, Any],
    place: Any,
    geo: WinogradGeometry,
    kernel: Microkernel,
    threads: int,
) -> None:
    """Rows of all patches of a block, then columns."""
    v, patch = marked["transformed"], marked["patch_rows"]
    if geo.config.loop_order != CHANNELS:
        sch.compute_at(v, place, preserve_unit_loops=True)
    *outer, xi, nu, t, channel = sch.get_loops(v)
    r, q = sch.split(t, [None, geo.block_w])
    ib, lane = sch.split(channel, [None, geo.in_block])
    sch.reorder(r, q, ib, nu, xi, lane)
    WriteOut().on(sch, xi)
    if geo.flat:
        WriteOut().on(sch, nu)
    elements = min(geo.in_block, kernel.operand_lanes * kernel.ks)
    Vector(elements).on(sch, lane)
    align_rows(sch, v, 4, geo.lanes)
    cut = geo.workload.ci % geo.in_block
    annotate_cut(sch, ib, lane, cut)
    sch.compute_at(patch, ib, preserve_unit_loops=True)
    i, nu, lane = sch.get_loops(patch)[-3:]
    WriteOut().on(sch, nu)
    AskOnce().on(sch, i)
    Vector(elements).on(sch, lane)
    if cut:
        Named("lanes").on(sch, lane)
    if geo.config.loop_order != CHANNELS:
        _name_tiles(sch, r, q)
    elif threads > 1:
        sch.parallel(sch.fuse(*[*outer, r, q, ib][: geo.divided_loops(threads)]))


def _schedule_output_transform(
    sch: s_tir.Schedule, half: Any, place: Any, geo: WinogradGeometry, kernel: Microkernel
) -> None:
    """Columns of a tile's products; the epilogue's expression does the rows (flat: both)."""
    sch.compute_at(half, place, preserve_unit_loops=True)
    a, nu, lane = sch.get_loops(half)[-3:]
    sch.reorder(nu, a, lane)
    WriteOut().on(sch, a)
    if geo.flat:
        WriteOut().on(sch, nu)
    Vector(kernel.lanes).on(sch, lane)
    if geo.workload.co % geo.out_block:
        Named("lanes").on(sch, lane)


def parallelize(sch: s_tir.Schedule, loops: dict[str, Any], threads: int) -> None:
    """Divide all blocks of tiles, of each part of the output channels in turn, among threads."""
    if threads > 1:
        sch.parallel(sch.fuse(*(loops[name] for name in ("part", "n", "yb", "xb"))))
