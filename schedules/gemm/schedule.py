"""The schedule template of matrix multiplication: loops over blocks, packing, edges, threads.

Loop order B3A2C0, the one of BLIS (A3B2C0 with the roles of A and B exchanged):

    for jc                  nc columns
      for pc                blocks of kc steps but the last
        for ic              pack Ac, unless A is read in place
          for jr, ir        C[jr, ir] (+)= micro-kernel
      for ic                the last kc steps: pack Ac
        for jr, ir          C[jr, ir] = epilogue of C[jr, ir] + micro-kernel

C is updated in place; where it cannot hold sums (fp16, or a result of another type fused behind),
they have a buffer of the size of a block. The loop that threads divide (b, ic or jc) goes outside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.gemm.candidates import FEW_ROWS
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import B_OUTSIDE, GemmGeometry, asks_ahead
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, UpdateShape, kernel_of
from tvm_blislike.model.directives import (
    Ahead,
    Border,
    InResult,
    LastBlock,
    LastEdge,
    NextPanel,
    OpenRows,
    Pieces,
    Vector,
)
from tvm_blislike.model.loop_names import Named
from tvm_blislike.model.marks import STAGE
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules.common import (
    align_rows,
    call_kernel,
    fuse_epilogue,
    result_lanes,
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
    outer = _outer(config, parallel)
    marked = stages(sch)
    epilogue = fuse_epilogue(sch)
    *batch, i, j = sch.get_loops(epilogue)
    lanes = result_lanes(sch, epilogue, kernel)
    loops = _tiles(sch, i, j, {"b": batch[0]} if batch else {}, geo, kernel, outer, lanes)
    if parallel in loops:
        sch.parallel(loops[parallel])
    if geo.blocks_k > 1:
        _update_in_place(sch, marked, loops, geo, kernel, outer, core.prefetch_streams)
    packing = (marked["pack_a"], loops["ic"]) if "pack_a" in marked else None
    _prefetch(sch, loops, geo, kernel, geo.last_k, core.prefetch_streams)
    _compute_tiles(sch, marked["acc"], packing, loops, geo, kernel, geo.last_k)
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


def _tiles(
    sch: s_tir.Schedule,
    i: Any,
    j: Any,
    others: dict[str, Any],
    geo: GemmGeometry,
    kernel: Microkernel,
    outer: list[str],
    lanes: int,
    shared: Sequence[str] = (),
) -> dict[str, Any]:
    """Split loops over C into blocks and tiles, in the order `outer`; say where the edges are.

    Parameters
    ----------
    others : dict
        Further loops of the nest.
    lanes : int
        Elements of a vector of what the nest stores.
    shared : sequence of str
        Loops of `outer` that stand around the nest already: single iterations in it.
    """
    ic, ir, ii = sch.split(i, [None, geo.block_m, geo.config.mr])
    jc, jr, jj = sch.split(j, [None, geo.block_n, geo.config.nr])
    loops = {"ic": ic, "ir": ir, "jc": jc, "jr": jr, **others}
    order = (*(name for name in outer if name in loops), *_inner(geo.config))
    sch.reorder(*(loops[name] for name in order), ii, jj)
    sch.unroll(ii)
    Named("mw").on(sch, ii)
    Named("lanes").on(sch, jj)
    Vector(lanes).on(sch, jj)
    own = {name: loop for name, loop in loops.items() if name not in shared}
    _annotate_edges(sch, own, geo, kernel)
    return loops


def _update_in_place(
    sch: s_tir.Schedule,
    marked: dict[str, Any],
    loops: dict[str, Any],
    geo: GemmGeometry,
    kernel: Microkernel,
    outer: list[str],
    streams: int,
) -> None:
    """Add all blocks of k but the last up in C, inside the loops that stand around pc."""
    sums, place = marked["sums"], outer.index("pc")
    sch.compute_at(sums, loops[outer[place - 1]], preserve_unit_loops=True)
    i, j, pc = sch.get_loops(sums)[-3:]
    InResult().on(sch, pc)
    others = {"pc": pc}
    inside = _tiles(sch, i, j, others, geo, kernel, outer, kernel.lanes, shared=outer[:place])
    around = inside["ic" if "ic" in outer[place:] else "pc"]
    packing = (marked["pack_head"], around) if "pack_head" in marked else None
    _prefetch(sch, inside, geo, kernel, geo.kc, streams)
    _compute_tiles(sch, marked["head"], packing, inside, geo, kernel, geo.kc)


def _compute_tiles(
    sch: s_tir.Schedule,
    tiles: Any,
    packing: tuple[Any, Any] | None,
    loops: dict[str, Any],
    geo: GemmGeometry,
    kernel: Microkernel,
    steps: int,
) -> None:
    """Compute each tile of a nest over C in registers, by one call, right before it is stored.

    Parameters
    ----------
    packing : tuple or None
        The stage that packs A, and the loop where a block of it is packed.
    """
    sch.compute_at(tiles, loops[_inner(geo.config)[1]], preserve_unit_loops=True)
    if packing is not None:
        _place_packing(sch, *packing, geo, kernel, steps)
    i, j, p, *s = sch.get_loops(tiles)[-3 - (kernel.ks > 1) :]
    sch.reorder(p, i, j, *s)
    sch.unannotate(tiles, STAGE)
    sch.vectorize(unroll_block(sch, sch.decompose_reduction(tiles, p), kernel))
    shape = UpdateShape(
        1,
        geo.config.mr,
        steps=steps // kernel.ks,
        unroll=geo.config.unroll,
        ks=kernel.ks,
        streams=kernel.tiles is not None and bool(geo.config.prefetch),
    )
    call_kernel(sch, tiles, (p, i, j, *s), kernel, shape)


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
        if outer == "ic" and geo.config.open_rows:
            for name in {outer, inner} & loops.keys():
                OpenRows(geo.config.mr, block, name, FEW_ROWS).on(sch, loops[name])
            continue
        last = tiles - (math.ceil(tiles / block) - 1) * block
        if last == block and not cut:
            continue
        if outer in loops:
            LastBlock({inner: last}).on(sch, loops[outer])
        if inner in loops:
            Named(inner).on(sch, loops[inner])
            if cut:
                LastEdge(cut).on(sch, loops[inner])


def _prefetch(
    sch: s_tir.Schedule,
    loops: dict[str, Any],
    geo: GemmGeometry,
    kernel: Microkernel,
    steps: int,
    streams: int,
) -> None:
    """Ask for operands before the micro-kernel needs them (see `prefetch`)."""
    if not geo.config.prefetch or kernel.isa.lane_operand or not asks_ahead(kernel):
        return
    mr, nr, calls = geo.config.mr, geo.config.nr, geo.least_calls_per_panel()
    row = nr * geo.config.ks
    row_bytes = row * geo.workload.types.b_bytes
    around = loops[_inner(geo.config)[1]]
    distance = geo.config.prefetch_bytes or AHEAD_BYTES
    Ahead(1, steps=max(1, distance // row_bytes), elements=row).on(sch, around)
    # With a single call per panel the next panel is not next: it would push out what is ahead.
    if calls == 1:
        return
    if geo.config.loop_order == B_OUTSIDE:
        NextPanel(1, -3, 1, calls, elements=steps * nr, streams=streams).on(sch, around)
    elif not geo.packs(steps) and geo.blocks_k == 1:
        NextPanel(0, -2, mr, calls, elements=steps * mr, streams=streams).on(sch, around)


def _place_packing(
    sch: s_tir.Schedule, pack: Any, loop: Any, geo: GemmGeometry, kernel: Microkernel, steps: int
) -> None:
    """Copy `steps` of the rows of a block of A side by side, where its block loops begin."""
    sch.compute_at(pack, loop, preserve_unit_loops=True)
    axes = len(sch.get(pack).writes[0].source.shape)
    tile, row, *step = sch.get_loops(pack)[2 - axes :]
    Named("mw").on(sch, row)
    _annotate_edges(sch, {"ir": tile}, geo, kernel)
    if not step:
        return
    filled = -geo.workload.k % kernel.ks
    if filled and steps == geo.last_k:
        Pieces(kernel.copied_lanes, (steps - filled,)).on(sch, step[0])
    else:
        Vector(kernel.copied_lanes).on(sch, step[0])
    align_rows(sch, pack, 3, max(kernel.operand_lanes, kernel.ks))


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
