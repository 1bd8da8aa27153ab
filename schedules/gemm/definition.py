"""Matrix multiplication after BLIS: five loops around a micro-kernel.

C[b, m, n] = A[b, m, k] x B[k, n]     (or B[b, k, n])

This file holds what is computed; `gemm_schedule` how its loops run. C is made of tiles of
mr x nr, acc[b, jt, it, mr, nr], each the result of one micro-kernel call over the last block of k
(of all k where there is one block). "unpack" puts the tiles where they belong in C, and with it
whatever is fused behind, while a tile is in registers. Where k has several blocks, a tile of "head"
is the same of one block pc of the others; "sums" adds them up where C is, and the epilogue adds
that. In fp16, where blocks of k are short (`cost_models.data_types`), tiles are summed in fp16
registers and "sums" is fp32.

B is packed into panels [tile of nr][k][nr], at compile time if it is constant. A is read in place,
or copied into panels [tile of mr][mr][kc]: rows side by side. That is a copy of whole vectors,
where the classic panel [k][mr] needs a transposition, and a micro-kernel that broadcasts single
elements does not care. Where k is no multiple of the group of a multiply-add, the last group of a
copied row is filled up with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.data_types import sum_dtype
from tvm_blislike.cost_models.gemm import candidates
from tvm_blislike.cost_models.gemm import estimate as model
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import GemmGeometry
from tvm_blislike.cost_models.gemm.nests import nests
from tvm_blislike.cost_models.gemm.open_rows import of_open_rows
from tvm_blislike.cost_models.gemm.space import space
from tvm_blislike.microkernels.panels import as_read, as_read_te
from tvm_blislike.microkernels.products import multiplied, panels_of_b, place_in_b
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules.common import stage
from tvm_blislike.schedules.gemm.schedule import schedule


def pack_b(workload: GemmWorkload, config: GemmConfig, b: np.ndarray) -> np.ndarray:
    """Pack B into micro-panels: (1 or batch, tiles of nr, groups of k, nr * ks), zeros beyond n, k.

    Parameters
    ----------
    b : numpy.ndarray
        (k, n), or (batch, k, n).
    """
    panels = panels_of_b(b.reshape(-1, workload.k, workload.n), config.nr, config.ks)
    call = GemmGeometry(workload, config).kc // config.ks
    return as_read(panels, call, workload.types)


def pack_b_te(workload: GemmWorkload, config: GemmConfig, b: te.Tensor) -> te.Tensor:
    """`pack_b` as a TE stage, for an operand that is not known at compile time."""
    geo = GemmGeometry(workload, config)
    shared = len(b.shape) == 2

    def value(s: Any, jt: Any, p: Any, j: Any) -> Any:
        step, inner = place_in_b(p, j, config.ks)
        column = jt * config.nr + inner
        loaded = b[step, column] if shared else b[s, step, column]
        inside = tirx.all(step < workload.k, column < workload.n)
        return tirx.if_then_else(inside, loaded, tirx.const(0, workload.types.b))

    shape = (1 if shared else workload.batch, *geo.packed_shape[1:])
    call, marks = geo.kc // config.ks, {"name": "pack_b", "attrs": stage("pack_b")}
    return as_read_te(shape, value, call, workload.types, **marks)


def compute(
    workload: GemmWorkload, config: GemmConfig, data: te.Tensor, packed: te.Tensor
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
    mr, nr, ks = config.mr, config.nr, config.ks
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

        def step(b: Any, pc: Any, it: Any, i: Any, p: Any) -> Any:
            place = first + pc * steps + p
            loaded = a(b, it * mr + i, place)
            if first + blocks * steps <= workload.k:
                return loaded
            return tirx.if_then_else(place < workload.k, loaded, tirx.const(0, workload.types.a))

        shape = (workload.batch, blocks, grid[1], mr, steps)
        return te.compute(shape, step, name=name, attrs=stage(name))

    def product(a_at: Any, first: int, blocks: int, steps: int, name: str) -> te.Tensor:
        """Tiles of each of several blocks of k: [pc, b, jt, it, i, j]."""
        p = te.reduce_axis((0, steps // ks), "p")
        group = [te.reduce_axis((0, ks), "s")] if ks > 1 else []

        def value(pc: Any, b: Any, jt: Any, it: Any, i: Any, j: Any) -> Any:
            row = geo.row_of_b(first // geo.kc + pc, p)
            panel = packed[(0 if shared else b, jt, row, sum(group, j * ks))]
            element = a_at(b, pc, it, i, sum(group, p * ks))
            return te.sum(multiplied(workload.types, element, panel), axis=[p, *group])

        shape = (blocks, workload.batch, *grid, mr, nr)
        return te.compute(shape, value, name=name, attrs=stage(name))

    def element(tiles: te.Tensor, pc: Any, index: tuple[Any, ...]) -> Any:
        """Return an element of C of a block of k."""
        b, i, j = index if len(index) == 3 else (0, *index)

        def tile(lane: Any) -> Any:
            return tiles[pc, b, j // nr, i // mr, i % mr, lane]

        if geo.tiles_n > 1 or workload.n == nr:
            return tile(j % nr)
        # Always true and simplified away later; naming the last column keeps `compute_at` from
        # cutting the block of C, whose lanes beyond n only the micro-kernel sees.
        return tirx.if_then_else(j < workload.n, tile(j % nr), tile(nr - 1))

    shape = (*data.shape[:-1], workload.n)
    a_last = packed_a(head, 1, geo.last_k, "pack_a")
    acc = product(a_last, head, 1, geo.last_k, "acc")
    if geo.blocks_k == 1:
        return te.compute(
            shape, lambda *at: element(acc, 0, at), name="unpack", attrs=stage("unpack")
        )
    wide, blocks = sum_dtype(workload.types), geo.blocks_k - 1
    a_heads = packed_a(0, blocks, geo.kc, "pack_head")
    heads = product(a_heads, 0, blocks, geo.kc, "head")
    pc = te.reduce_axis((0, blocks), "pc")
    sums = te.compute(
        shape,
        lambda *at: te.sum(element(heads, pc, at).astype(wide), axis=pc),
        name="sums",
        attrs=stage("sums"),
    )

    def added(*at: Any) -> Any:
        return (element(acc, 0, at).astype(wide) + sums[at]).astype(workload.types.out)

    return te.compute(shape, added, name="unpack", attrs=stage("unpack"))


IMPLEMENTATION = Template(
    name="gemm",
    kind="gemm",
    config_type=GemmConfig,
    applies=candidates.applies,
    configs=candidates.configs,
    estimate=model.estimate,
    workspace_bytes=model.workspace_bytes,
    pack=pack_b,
    pack_te=pack_b_te,
    compute=compute,
    schedule=schedule,
    every=space,
    derivation=candidates.derivation,
    nests=nests,
    of_open_rows=of_open_rows,
)
