"""Matrix multiplication after BLIS: five loops around a micro-kernel, packed operands.

C[b, m, n] = A[b, m, k] x B[k, n]     (or B[b, k, n])
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import s_tir, te, tirx

from tvm_blislike.config import Config
from tvm_blislike.cost_models import gemm as model
from tvm_blislike.cost_models.gemm import GemmGeometry
from tvm_blislike.hardware import Core
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
    stage,
    stages,
)
from tvm_blislike.schedules.lowering import EDGE, LAST_EDGE
from tvm_blislike.schedules.panels import AHEAD, NEXT
from tvm_blislike.workload import GemmWorkload


def pack_b(workload: GemmWorkload, config: Config, b: np.ndarray) -> np.ndarray:
    """Pack B into micro-panels: (1 or batch, tiles of nr, k, nr); lanes beyond n hold zeros.

    Parameters
    ----------
    b : numpy.ndarray
        (k, n), or (batch, k, n).
    """
    geo = GemmGeometry(workload, config)
    b = b.reshape(-1, workload.k, workload.n)
    missing = geo.tiles_n * config.nr - workload.n
    filled = np.pad(b, ((0, 0), (0, 0), (0, missing)))
    panels = filled.reshape(len(b), workload.k, geo.tiles_n, config.nr)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))


def pack_b_te(workload: GemmWorkload, config: Config, b: te.Tensor) -> te.Tensor:
    """`pack_b` as a TE stage, for an operand that is not known at compile time."""
    geo = GemmGeometry(workload, config)
    shared = len(b.shape) == 2

    def value(s: Any, jt: Any, p: Any, j: Any) -> Any:
        column = jt * config.nr + j
        loaded = b[p, column] if shared else b[s, p, column]
        return tirx.if_then_else(column < workload.n, loaded, 0.0)

    shape = (1 if shared else workload.batch, geo.tiles_n, workload.k, config.nr)
    return te.compute(shape, value, name="pack_b", attrs=stage("pack_b"))


def compute(
    workload: GemmWorkload, config: Config, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the product.

    Parameters
    ----------
    data : te.Tensor
        A, (batch, m, k); (m, k) for a single product.
    packed : te.Tensor
        B as `pack_b` makes it.

    Returns
    -------
    te.Tensor
        C, with as many axes as A.
    """
    geo = GemmGeometry(workload, config)
    mr, nr = config.mr, config.nr
    head = (geo.blocks_k - 1) * geo.kc
    shared = int(packed.shape[0]) == 1
    # Whole blocks of tiles: a predicate on their number would reach the micro-kernel's block.
    grid = (geo.blocks_n * geo.block_n, geo.blocks_m * geo.block_m)

    def a(b: Any, i: Any, p: Any) -> Any:
        return data[i, p] if len(data.shape) == 2 else data[b, i, p]

    def packed_a(first: int, blocks: int, steps: int, name: str) -> Any:
        """Return A(b, pc, it, i, p) of a range of k, through panels or in place."""
        if not geo.packs(steps):
            return lambda b, pc, it, i, p: a(b, it * mr + i, first + pc * steps + p)
        if steps == 1:
            column = te.compute(
                (workload.batch, blocks, grid[1], mr),
                lambda b, pc, it, i: a(b, it * mr + i, first + pc),
                name=name,
                attrs=stage(name),
            )
            return lambda b, pc, it, i, p: column[b, pc, it, i]
        return te.compute(
            (workload.batch, blocks, grid[1], mr, steps),
            lambda b, pc, it, i, p: a(b, it * mr + i, first + pc * steps + p),
            name=name,
            attrs=stage(name),
        )

    def product(a_at: Any, first: int, blocks: int, steps: int, name: str) -> te.Tensor:
        pc = te.reduce_axis((0, blocks), "pc")
        p = te.reduce_axis((0, steps), "p")

        def value(b: Any, jt: Any, it: Any, i: Any, j: Any) -> Any:
            panel = packed[0 if shared else b, jt, first + pc * steps + p, j]
            return te.sum(a_at(b, pc, it, i, p) * panel, axis=[pc, p])

        shape = (workload.batch, *grid, mr, nr)
        return te.compute(shape, value, name=name, attrs=stage(name))

    partial = None
    if geo.blocks_k > 1:
        a_head = packed_a(0, geo.blocks_k - 1, geo.kc, "pack_a_head")
        partial = product(a_head, 0, geo.blocks_k - 1, geo.kc, "partial")
    acc = product(packed_a(head, 1, geo.last_k, "pack_a"), head, 1, geo.last_k, "acc")

    def tile(b: Any, i: Any, j: Any, lane: Any) -> Any:
        at = (b, j // nr, i // mr, i % mr, lane)
        return acc[at] if partial is None else acc[at] + partial[at]

    def from_tiles(*index: Any) -> Any:
        b, i, j = index if len(index) == 3 else (0, *index)
        value = tile(b, i, j, j % nr)
        if geo.tiles_n > 1 or workload.n == nr:
            return value
        # Always true and simplified away later; naming the last column keeps `compute_at` from
        # cutting the block of C, whose lanes beyond n only the micro-kernel sees.
        return tirx.if_then_else(j < workload.n, value, tile(b, i, j, nr - 1))

    return te.compute(
        (*data.shape[:-1], workload.n), from_tiles, name="unpack", attrs=stage("unpack")
    )


def schedule(
    sch: s_tir.Schedule,
    workload: GemmWorkload,
    config: Config,
    core: Core,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    kernel = get_kernel(kernel_name(core.isa, config.mr, config.nr, workload.dtype))
    geo = GemmGeometry(workload, config)
    parallel = geo.parallel_loop(threads)
    marked = stages(sch)
    epilogue = fuse_epilogue(sch)
    loops = _tile_epilogue(sch, epilogue, geo, kernel, parallel)
    _prefetch(sch, loops, geo, geo.last_k)
    sch.compute_at(marked["acc"], loops[_inner(config)[1]], preserve_unit_loops=True)
    if "pack_a" in marked:
        _place_packing(sch, marked["pack_a"], loops["ic"], geo, kernel)
    _tensorize(sch, marked["acc"], geo, kernel, geo.last_k)
    if geo.blocks_k > 1:
        _schedule_partial(sch, marked, geo, kernel, parallel)
    if "pack_b" in marked:
        _schedule_pack_b(sch, marked["pack_b"], geo, kernel, threads)


def _inner(config: Config) -> tuple[str, str]:
    """Loops over tiles inside a block, the inner one last."""
    return ("jr", "ir") if config.loop_order == "B3A2C0" else ("ir", "jr")


def _outer(config: Config, parallel: str) -> list[str]:
    """Loops over blocks; what threads divide goes outside."""
    order = ["jc", "pc", "ic"] if config.loop_order == "B3A2C0" else ["ic", "pc", "jc"]
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
    annotate_axis(sch, ii, "mw")
    annotate_axis(sch, jj, "lanes")
    annotate_vector(sch, jj, kernel.lanes)
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
            sch.annotate(loops[outer], EDGE, {inner: last})
        if inner in loops:
            annotate_axis(sch, loops[inner], inner)
            if cut:
                sch.annotate(loops[inner], LAST_EDGE, cut)


def _prefetch(sch: s_tir.Schedule, loops: dict[str, Any], geo: GemmGeometry, steps: int) -> None:
    """Ask for operands before the micro-kernel needs them (see `panels`)."""
    inner = _inner(geo.config)[1]
    nr = geo.config.nr
    mode = geo.config.prefetch
    if inner == "ir":
        spec = {"operand": 1, "axis": -3, "step": 1, "calls": geo.block_m, "elements": steps * nr}
    else:
        rows = geo.config.mr
        spec = {"operand": 0, "axis": -2, "step": rows, "calls": geo.block_n}
        spec["elements"] = steps * rows
    if mode & 1 and (inner == "ir" or not geo.packs(steps)):
        sch.annotate(loops[inner], NEXT, spec)
    if mode & 2:
        sch.annotate(loops[inner], AHEAD, {"operand": 1, "steps": 64, "width": nr})


def _place_packing(
    sch: s_tir.Schedule, pack: Any, loop: Any, geo: GemmGeometry, kernel: Microkernel
) -> None:
    """Copy the rows of a block of A side by side, where its block loops begin."""
    sch.compute_at(pack, loop, preserve_unit_loops=True)
    axes = len(sch.get(pack).writes[0].source.shape)
    tile, row, *step = sch.get_loops(pack)[2 - axes :]
    annotate_axis(sch, row, "mw")
    _annotate_edges(sch, {"ir": tile}, geo, kernel)
    if not step:
        return
    annotate_vector(sch, step[0], kernel.lanes)
    # An odd number of vectors: rows a multiple of a page apart would share one cache set.
    sch.storage_align(pack, 0, 3, 2 * kernel.lanes, kernel.lanes)


def _tensorize(
    sch: s_tir.Schedule, acc: Any, geo: GemmGeometry, kernel: Microkernel, steps: int
) -> None:
    """Zero a block of C in registers and update it by one micro-kernel call."""
    i, j, pc, p = sch.get_loops(acc)[-4:]
    sch.reorder(pc, p, i, j)
    sch.unannotate(acc, STAGE)
    _vectorize_zero(sch, sch.decompose_reduction(acc, pc), kernel)
    shape = UpdateShape(1, geo.config.mr, kr=steps, unroll=geo.config.kr)
    sch.tensorize(_without_units(sch, (p, i, j))[0], update_intrin(kernel, shape))


def _without_units(sch: s_tir.Schedule, nest: tuple[Any, ...]) -> list[Any]:
    """Move unit loops outside, the intrinsic has no such axes; return the others."""
    units = [loop for loop in nest if int(sch.get(loop).extent) == 1]
    inner = [loop for loop in nest if loop not in units]
    sch.reorder(*units, *inner)
    return inner


def _schedule_partial(
    sch: s_tir.Schedule,
    marked: dict[str, Any],
    geo: GemmGeometry,
    kernel: Microkernel,
    parallel: str,
) -> None:
    """Sum all blocks of k but the last into tiles of C in memory."""
    partial, config = marked["partial"], geo.config
    b, jt, it, i, j, pc, p = sch.get_loops(partial)
    ic, ir = sch.split(it, [None, geo.block_m])
    jc, jr = sch.split(jt, [None, geo.block_n])
    loops = {"b": b, "ic": ic, "ir": ir, "jc": jc, "jr": jr, "pc": pc}
    outer = _outer(config, parallel)
    sch.reorder(*(loops[name] for name in (*outer, *_inner(config))), p, i, j)
    _annotate_edges(sch, loops, geo, kernel)
    _prefetch(sch, loops, geo, geo.kc)
    if parallel:
        sch.parallel(loops[parallel])
    if "pack_a_head" in marked:
        place = max(outer.index("ic"), outer.index("pc"))
        _place_packing(sch, marked["pack_a_head"], loops[outer[place]], geo, kernel)
    sch.unannotate(partial, STAGE)
    inner = _without_units(sch, (p, i, j))
    # Blockized before tensorizing, zeroing stays with the first block of k.
    sch.blockize(inner[0])
    inner = sch.get_loops(partial)[-len(inner) :]
    shape = UpdateShape(1, config.mr, kr=geo.kc, unroll=config.kr, in_memory=True)
    sch.tensorize(inner[0], update_intrin(kernel, shape))


def _schedule_pack_b(
    sch: s_tir.Schedule, pack: Any, geo: GemmGeometry, kernel: Microkernel, threads: int
) -> None:
    """Pack B in a pass of its own, divided among the threads."""
    s, jt, _, j = sch.get_loops(pack)
    outer = sch.fuse(s, jt)
    if threads > 1:
        sch.parallel(outer)
    annotate_vector(sch, j, kernel.lanes)


def _vectorize_zero(sch: s_tir.Schedule, init: Any, kernel: Microkernel) -> None:
    """Unroll and vectorize the stores of zero that start a block of C."""
    i, j = sch.get_loops(init)[-2:]
    columns, lane = sch.split(j, [None, kernel.lanes])
    for loop, axis in ((i, "mw"), (columns, "nr")):
        sch.unroll(loop)
        annotate_axis(sch, loop, axis)
    sch.vectorize(lane)


IMPLEMENTATION = Template(
    name="gemm",
    kind="gemm",
    applies=model.applies,
    configs=model.configs,
    estimate=model.estimate,
    workspace_bytes=model.workspace_bytes,
    pack=pack_b,
    pack_te=pack_b_te,
    compute=compute,
    schedule=schedule,
)
