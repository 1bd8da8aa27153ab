"""Matrix multiplication after BLIS: five loops around a micro-kernel.

C[b, m, n] = A[b, m, k] x B[k, n]     (or B[b, k, n])

This file holds what is computed; `gemm_schedule` how its loops run. C is made of tiles of
mr x nr, acc[b, jt, it, mr, nr], each the result of one micro-kernel call over the last block of k
(of all k where there is one block). "unpack" puts the tiles where they belong in C, and with it
whatever is fused behind, while a tile is in registers. Where k has several blocks, "partial" sums
all but the last in memory, in the same tiles, and the epilogue adds both. In fp16, where blocks of
k are short (`cost_models.data_types`), a tile is summed in fp16 registers and "partial" is fp32.

B is packed into panels [tile of nr][k][nr], at compile time if it is constant. A is read in place,
or copied into panels [tile of mr][mr][kc]: rows side by side. That is a copy of whole vectors,
where the classic panel [k][mr] needs a transposition, and a micro-kernel that broadcasts single
elements does not care.
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
from tvm_blislike.cost_models.gemm.space import space
from tvm_blislike.microkernels.products import panels_of_b, place_in_b
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
    return panels_of_b(b.reshape(-1, workload.k, workload.n), config.nr, config.ks)


def pack_b_te(workload: GemmWorkload, config: GemmConfig, b: te.Tensor) -> te.Tensor:
    """`pack_b` as a TE stage, for an operand that is not known at compile time."""
    geo = GemmGeometry(workload, config)
    shared = len(b.shape) == 2

    def value(s: Any, jt: Any, p: Any, j: Any) -> Any:
        step, inner = place_in_b(p, j, config.ks)
        column = jt * config.nr + inner
        loaded = b[step, column] if shared else b[s, step, column]
        return tirx.if_then_else(column < workload.n, loaded, tirx.const(0, workload.types.b))

    shape = (1 if shared else workload.batch, *geo.packed_shape[1:])
    return te.compute(shape, value, name="pack_b", attrs=stage("pack_b"))


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
        return te.compute(
            (workload.batch, blocks, grid[1], mr, steps),
            lambda b, pc, it, i, p: a(b, it * mr + i, first + pc * steps + p),
            name=name,
            attrs=stage(name),
        )

    wide = sum_dtype(workload.types)

    def product(a_at: Any, first: int, blocks: int, steps: int, name: str, dtype: str) -> te.Tensor:
        pc = te.reduce_axis((0, blocks), "pc")
        p = te.reduce_axis((0, steps // ks), "p")
        group = [te.reduce_axis((0, ks), "s")] if ks > 1 else []

        def value(b: Any, jt: Any, it: Any, i: Any, j: Any) -> Any:
            place = (first + pc * steps) // ks + p, sum(group, j * ks)
            panel = packed[(0 if shared else b, jt, *place)]
            factors = a_at(b, pc, it, i, sum(group, p * ks)).astype(dtype), panel.astype(dtype)
            return te.sum(factors[0] * factors[1], axis=[pc, p, *group])

        shape = (workload.batch, *grid, mr, nr)
        return te.compute(shape, value, name=name, attrs=stage(name))

    partial = None
    if geo.blocks_k > 1:
        a_head = packed_a(0, geo.blocks_k - 1, geo.kc, "pack_a_head")
        partial = product(a_head, 0, geo.blocks_k - 1, geo.kc, "partial", wide)
    a_last = packed_a(head, 1, geo.last_k, "pack_a")
    acc = product(a_last, head, 1, geo.last_k, "acc", workload.types.acc)

    def tile(b: Any, i: Any, j: Any, lane: Any) -> Any:
        at = (b, j // nr, i // mr, i % mr, lane)
        if partial is None:
            return acc[at]
        return (acc[at].astype(wide) + partial[at]).astype(workload.types.out)

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
)
