"""The schedule template of a product by seven of half the size: see `definition` for its loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.gemm_strassen.config import StrassenConfig
from tvm_blislike.cost_models.gemm_strassen.geometry import StrassenGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, kernel_of
from tvm_blislike.model.directives import (
    FreshRegisters,
    LastBlock,
    LastEdge,
    NextPanel,
    OpenRows,
    Vector,
    WriteOut,
)
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import STAGE
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules.common import (
    align_rows,
    call_kernel,
    fuse_epilogue,
    stages,
    unroll_block,
)


def schedule(
    sch: s_tir.Schedule,
    workload: GemmWorkload,
    config: StrassenConfig,
    core: Core,
    threads: int,
    axes: Callable[[s_tir.Schedule, Any], tuple[Any, Any]] = lambda sch, c: sch.get_loops(c)[-2:],
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it.

    Parameters
    ----------
    axes : callable
        (schedule, block of the result) to its loops over rows and over columns.
    """
    kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
    geo = StrassenGeometry(workload, config)
    marked = stages(sch)
    loops = _tile_result(sch, axes(sch, fuse_epilogue(sch)), geo, kernel, threads)
    products = _place_products(sch, marked["products"], loops, geo, kernel)
    calls = loops["ir"] if geo.by_tiles else products["ir"]
    if config.prefetch:
        # Those of all products of the next columns, or what follows in memory.
        axis, elements = (-4 if geo.by_tiles else -3), geo.steps * config.nr
        streams = core.prefetch_streams
        NextPanel(1, axis, 1, geo.least_calls_per_panel, elements, streams).on(sch, calls)
    innermost = products["x"] if geo.by_tiles else products["ir"]
    FreshRegisters(kernel.isa.name).on(sch, innermost)
    sch.compute_at(marked["acc"], innermost, preserve_unit_loops=True)
    _place_sums(sch, marked["v"], loops["ic"] if geo.by_tiles else products["x"], geo, kernel)
    if threads > 1:
        sch.parallel(loops["jc" if geo.blocks_n > 1 else "ic"])
    _tensorize(sch, marked["acc"], geo, kernel)


def _tile_result(
    sch: s_tir.Schedule,
    axes: Sequence[Any],
    geo: StrassenGeometry,
    kernel: Microkernel,
    threads: int,
) -> dict[str, Any]:
    """Split the loops over C; a vector of all products is read once for its four results."""
    row, column = axes
    ic, ir, i, half = sch.split(row, [None, geo.block_m, geo.config.mr, 2])
    jc, jr, g, j, lane = sch.split(column, [None, geo.block_n, 2, kernel.vectors, kernel.lanes])
    tile = (jr, ir, i) if geo.by_tiles else (ir, i, jr)
    sch.reorder(jc, ic, *tile, j, half, g, lane)
    WriteOut().on(sch, half)
    WriteOut().on(sch, g)
    Vector(kernel.lanes).on(sch, lane)
    Named("mw").on(sch, i)
    _annotate_edges(sch, ir, geo)
    if geo.config.open_rows:
        _open(sch, ic, geo, "ic", 1 if geo.blocks_n > 1 else threads)
    elif geo.last_tiles < geo.block_m or geo.last_pairs < geo.config.mr:
        LastBlock({"ir": geo.last_tiles}).on(sch, ic)
    return {"jc": jc, "ic": ic, "jr": jr, "ir": ir}


def _annotate_edges(sch: s_tir.Schedule, ir: Any, geo: StrassenGeometry) -> None:
    """Say that the last block has fewer tiles, or that its last tile is cut; or how many come."""
    if geo.config.open_rows:
        _open(sch, ir, geo, "ir")
        return
    cut = geo.last_pairs < geo.config.mr
    if geo.last_tiles < geo.block_m or cut:
        Named("ir").on(sch, ir)
    if cut:
        LastEdge({"mw": geo.last_pairs}).on(sch, ir)


def _open(sch: s_tir.Schedule, loop: Any, geo: StrassenGeometry, name: str, parts: int = 1) -> None:
    """Say that only running tells how many rows there are, in pairs."""
    OpenRows(geo.config.mr, geo.block_m, name, each=2, parts=parts).on(sch, loop)


def _place_products(
    sch: s_tir.Schedule,
    products: Any,
    loops: dict[str, Any],
    geo: StrassenGeometry,
    kernel: Microkernel,
) -> dict[str, Any]:
    """Store the products of a tile, or of a block, where their sums are taken."""
    sch.compute_at(products, loops["ir" if geo.by_tiles else "ic"], preserve_unit_loops=True)
    ir, jr, x, i, j = sch.get_loops(products)[-5:]
    sch.reorder(x, jr, ir, i, j)
    sch.unroll(i)
    Named("mw").on(sch, i)
    Vector(kernel.lanes).on(sch, j)
    if not geo.by_tiles:
        _annotate_edges(sch, ir, geo)
    return {"x": x, "ir": ir}


def _place_sums(
    sch: s_tir.Schedule, sums: Any, loop: Any, geo: StrassenGeometry, kernel: Microkernel
) -> None:
    """Add quarters of A, all of a block, or those of a product."""
    sch.compute_at(sums, loop, preserve_unit_loops=True)
    ir, x, i, step = sch.get_loops(sums)[-4:]
    Named("mw").on(sch, i)
    _annotate_edges(sch, ir, geo)
    if geo.by_tiles:
        sch.reorder(ir, i, x, step)
        WriteOut().on(sch, x)
    if geo.steps % kernel.lanes == 0:
        # A loop over vectors: written out they take longer to compile than all else. Where sums are
        # of all products each is read once for them.
        vector, step = sch.split(step, [None, kernel.lanes])
        sch.reorder(i, vector, x, step)
    Vector(kernel.lanes).on(sch, step)
    align_rows(sch, sums, 2, kernel.operand_lanes)


def _tensorize(sch: s_tir.Schedule, acc: Any, geo: StrassenGeometry, kernel: Microkernel) -> None:
    """Zero a block of a product in registers and sum over its steps by a call."""
    i, j, p = sch.get_loops(acc)[-3:]
    sch.reorder(p, i, j)
    sch.unannotate(acc, STAGE)
    sch.vectorize(unroll_block(sch, sch.decompose_reduction(acc, p), kernel))
    shape = UpdateShape(1, geo.config.mr, steps=geo.steps, unroll=geo.config.unroll)
    call_kernel(sch, acc, (p, i, j), kernel, shape)
