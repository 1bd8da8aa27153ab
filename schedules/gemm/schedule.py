"""The schedule template of matrix multiplication: loops over blocks, packing, edges, threads.

Loop order B3A2C0, the one of BLIS (A3B2C0 with the roles of A and B exchanged):

    for jc                  nc columns
      for pc                blocks of kc steps but the last
        for ic              pack Ac, unless A is read in place
          for jr, ir        partial[jr, ir] += micro-kernel
      for ic                the last kc steps: pack Ac
        for jr, ir          acc = micro-kernel; epilogue of acc + partial; store

`partial` is a nest of its own in front of the other, over all of C. The loop that threads divide
(b, ic or jc) goes outside, so that they meet once per nest.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.data_types import sum_dtype
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import B_OUTSIDE, GemmGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, kernel_of
from tvm_blislike.model.directives import Ahead, Border, Edge, LastEdge, Named, NextPanel, Vector
from tvm_blislike.model.marks import STAGE
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules.common import (
    align_rows,
    call_kernel,
    fuse_epilogue,
    stages,
    unroll_block,
)

# How far ahead of its use a panel that passes by is asked for, unless the config says otherwise.
AHEAD_BYTES = 8192


def schedule(
    sch: s_tir.Schedule,
    workload: GemmWorkload,
    config: GemmConfig,
    core: Core,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
    geo = GemmGeometry(workload, config)
    parallel = geo.parallel_loop(threads)
    marked = stages(sch)
    epilogue = fuse_epilogue(sch)
    loops = _tile_epilogue(sch, epilogue, geo, kernel, parallel)
    _prefetch(sch, loops, geo, kernel, geo.last_k)
    sch.compute_at(marked["acc"], loops[_inner(config)[1]], preserve_unit_loops=True)
    if "pack_a" in marked:
        _place_packing(sch, marked["pack_a"], loops["ic"], geo, kernel)
    _tensorize(sch, marked["acc"], geo, kernel, geo.last_k)
    if geo.blocks_k > 1:
        _schedule_partial(sch, marked, geo, kernel, parallel)
    if "pack_b" in marked:
        _schedule_pack_b(sch, marked["pack_b"], geo, kernel, threads)


def _inner(config: GemmConfig) -> tuple[str, str]:
    """Loops over tiles inside a block, the inner one last."""
    return ("jr", "ir") if config.loop_order == B_OUTSIDE else ("ir", "jr")


def _outer(config: GemmConfig, parallel: str) -> list[str]:
    """Loops over blocks; what threads divide goes outside."""
    order = ["jc", "pc", "ic"] if config.loop_order == B_OUTSIDE else ["ic", "pc", "jc"]
    if parallel in order:
        order.remove(parallel)
        order.insert(0, parallel)
    return ["b", *order]


def _tile_epilogue(
    sch: s_tir.Schedule, epilogue: Any, geo: GemmGeometry, kernel: Microkernel, parallel: str
) -> dict[str, Any]:
    """Split the epilogue's loops into blocks and tiles and say where the edges are."""
    *batch, i, j = sch.get_loops(epilogue)
    ic, ir, ii = sch.split(i, [None, geo.block_m, geo.config.mr])
    jc, jr, jj = sch.split(j, [None, geo.block_n, geo.config.nr])
    loops = {"ic": ic, "ir": ir, "jc": jc, "jr": jr}
    loops["b"] = batch[0] if batch else None
    order = [loops[name] for name in _outer(geo.config, parallel) if loops.get(name) is not None]
    sch.reorder(*order, *(loops[name] for name in _inner(geo.config)), ii, jj)
    sch.unroll(ii)
    Named("mw").on(sch, ii)
    Named("lanes").on(sch, jj)
    Vector(kernel.lanes).on(sch, jj)
    _annotate_edges(sch, loops, geo, kernel)
    if parallel and loops[parallel] is not None:
        sch.parallel(loops[parallel])
    return loops


def _annotate_edges(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: GemmGeometry, kernel: Microkernel
) -> None:
    """Say how the last block along m and n differs: fewer tiles, the last of them cut."""
    rows = geo.workload.m - (geo.tiles_m - 1) * geo.config.mr
    columns = geo.workload.n - (geo.tiles_n - 1) * geo.config.nr
    cut_m = {"mw": rows} if rows < geo.config.mr else {}
    cut_n = {}
    if columns < geo.config.nr:
        cut_n = {"nr": math.ceil(columns / kernel.lanes), "lanes": columns}
    for outer, inner, tiles, block, cut in (
        ("ic", "ir", geo.tiles_m, geo.block_m, cut_m),
        ("jc", "jr", geo.tiles_n, geo.block_n, cut_n),
    ):
        last = tiles - (math.ceil(tiles / block) - 1) * block
        if last == block and not cut:
            continue
        if outer in loops:
            Edge({inner: last}).on(sch, loops[outer])
        if inner in loops:
            Named(inner).on(sch, loops[inner])
            if cut:
                LastEdge(cut).on(sch, loops[inner])


def _prefetch(
    sch: s_tir.Schedule, loops: dict[str, Any], geo: GemmGeometry, kernel: Microkernel, steps: int
) -> None:
    """Ask for operands before the micro-kernel needs them (see `prefetch`)."""
    if not geo.config.prefetch or kernel.isa.lane_operand or kernel.ks > 1:
        return
    mr, nr, calls = geo.config.mr, geo.config.nr, geo.calls_per_panel()
    row_bytes = nr * geo.workload.types.b_bytes
    around = loops[_inner(geo.config)[1]]
    distance = geo.config.prefetch_bytes or AHEAD_BYTES
    Ahead(1, steps=max(1, distance // row_bytes), elements=nr).on(sch, around)
    # With a single call per panel the next panel is not next: it would push out what is ahead.
    if calls == 1:
        return
    if geo.config.loop_order == B_OUTSIDE:
        NextPanel(1, axis=-3, step=1, calls=calls, elements=steps * nr).on(sch, around)
    elif not geo.packs(steps) and geo.blocks_k == 1:
        NextPanel(0, axis=-2, step=mr, calls=calls, elements=steps * mr).on(sch, around)


def _place_packing(
    sch: s_tir.Schedule, pack: Any, loop: Any, geo: GemmGeometry, kernel: Microkernel
) -> None:
    """Copy the rows of a block of A side by side, where its block loops begin."""
    sch.compute_at(pack, loop, preserve_unit_loops=True)
    axes = len(sch.get(pack).writes[0].source.shape)
    tile, row, *step = sch.get_loops(pack)[2 - axes :]
    Named("mw").on(sch, row)
    _annotate_edges(sch, {"ir": tile}, geo, kernel)
    if not step:
        return
    Vector(kernel.lanes).on(sch, step[0])
    align_rows(sch, pack, 3, kernel.lanes)


def _tensorize(
    sch: s_tir.Schedule, acc: Any, geo: GemmGeometry, kernel: Microkernel, steps: int
) -> None:
    """Zero a block of C in registers and update it by one micro-kernel call."""
    i, j, pc, p, *s = sch.get_loops(acc)[-4 - (kernel.ks > 1) :]
    sch.reorder(pc, p, i, j, *s)
    sch.unannotate(acc, STAGE)
    sch.vectorize(unroll_block(sch, sch.decompose_reduction(acc, pc), kernel))
    shape = UpdateShape(
        1, geo.config.mr, steps=steps // kernel.ks, unroll=geo.config.unroll, ks=kernel.ks
    )
    call_kernel(sch, acc, (p, i, j, *s), kernel, shape)


def _schedule_partial(
    sch: s_tir.Schedule,
    marked: dict[str, Any],
    geo: GemmGeometry,
    kernel: Microkernel,
    parallel: str,
) -> None:
    """Sum all blocks of k but the last into tiles of C in memory."""
    partial, config = marked["partial"], geo.config
    b, jt, it, i, j, pc, p, *s = sch.get_loops(partial)
    ic, ir = sch.split(it, [None, geo.block_m])
    jc, jr = sch.split(jt, [None, geo.block_n])
    loops = {"b": b, "ic": ic, "ir": ir, "jc": jc, "jr": jr, "pc": pc}
    outer = _outer(config, parallel)
    sch.reorder(*(loops[name] for name in (*outer, *_inner(config))), p, i, j, *s)
    _annotate_edges(sch, loops, geo, kernel)
    _prefetch(sch, loops, geo, kernel, geo.kc)
    if parallel:
        sch.parallel(loops[parallel])
    if "pack_a_head" in marked:
        place = max(outer.index("ic"), outer.index("pc"))
        _place_packing(sch, marked["pack_a_head"], loops[outer[place]], geo, kernel)
    sch.unannotate(partial, STAGE)
    wide = sum_dtype(geo.workload.types)
    shape = UpdateShape(
        1,
        config.mr,
        steps=geo.kc // kernel.ks,
        ks=kernel.ks,
        unroll=config.unroll,
        in_memory=True,
        sums="" if wide == kernel.types.acc else wide,
    )
    call_kernel(sch, partial, (p, i, j, *s), kernel, shape)


def _schedule_pack_b(
    sch: s_tir.Schedule, pack: Any, geo: GemmGeometry, kernel: Microkernel, threads: int
) -> None:
    """Pack B in a pass of its own, divided among the threads."""
    batch, tile, _, lane = sch.get_loops(pack)
    if threads > 1:
        sch.parallel(batch if geo.workload.batch >= threads else tile)
    Vector(kernel.lanes).on(sch, lane)
    # Only the last tile has columns beyond n.
    Border(0, 1).on(sch, tile)
