"""Configurations of a matrix product that are worth an estimate.

Published models choose kc so that the panel fits into half of L1. With 512-bit vectors that is
about 200 steps, and C would be loaded and stored every 2,800 cycles; so all of k in one block is
a candidate too, and wins as long as L2 holds the panels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm_blislike.cost_models.cache_blocking import cache_blocking
from tvm_blislike.cost_models.data_types import missing, most_steps
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import B_OUTSIDE, IN_PLACE, LOOP_ORDERS, PACKED
from tvm_blislike.cost_models.roofline import l2_bytes
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.workload import GemmWorkload

# Rows up to which a product runs at the speed of memory.
FEW_ROWS = 4
# Steps of k that a block should have at least: below, loading and storing C in between shows.
MIN_KC = 384
# Part of L2 that blocks may be planned for; C and the operands' next panels pass through the rest.
L2_PLANNED = 0.75


def applies(workload: GemmWorkload, core: Core) -> str:
    """Return "" for data types that micro-kernels have, else why not."""
    # In memory of its own TVM keeps bfloat16 as fp32, so A is not filled up to whole groups.
    if any(workload.k % kernel.ks for kernel in kernels_for(core, workload.types)):
        return f"k = {workload.k} is no multiple of the k group of {workload.types} micro-kernels"
    return missing(workload, core, grouped=True)


def configs(workload: GemmWorkload, core: Core, threads: int) -> Iterator[GemmConfig]:
    """Yield the configurations worth estimating."""
    for kernel in kernels_for(core, workload.types):
        widest = math.ceil(workload.n / kernel.lanes) * kernel.lanes
        if kernel.mr > workload.m or kernel.nr > widest:
            continue
        if workload.m <= FEW_ROWS:
            yield from _few_rows(workload, kernel, threads)
        else:
            for order in LOOP_ORDERS:
                # Cutting along m and along n gives the same blocks where there is one only.
                yield from dict.fromkeys(_blocked(workload, kernel, order, core, threads))


def _few_rows(workload: GemmWorkload, kernel: Microkernel, threads: int) -> Iterator[GemmConfig]:
    """One pass over B as it lies in memory, which the hardware's prefetchers follow by themselves.

    Measured with 205 MB of B on Golden Cove: 1x128 blocks read 12.8 GB/s (24.0 with two threads),
    1x16 blocks 11.4; prefetching the next panel brings that down to 9.
    """
    if kernel.mr == workload.m:
        tiles = math.ceil(workload.n / kernel.nr)
        yield GemmConfig(
            mr=kernel.mr,
            nr=kernel.nr,
            ks=kernel.ks,
            mc=kernel.mr,
            nc=math.ceil(tiles / threads) * kernel.nr,
            kc=_deepest(workload),
            loop_order=B_OUTSIDE,
            packing=IN_PLACE,
        )


def _blocked(
    workload: GemmWorkload, kernel: Microkernel, order: str, core: Core, threads: int
) -> Iterator[GemmConfig]:
    tiles_m = math.ceil(workload.m / kernel.mr)
    tiles_n = math.ceil(workload.n / kernel.nr)
    for kc in _depths(workload, kernel, order, core, threads):
        most_m, most_n = _most_tiles(kernel, kc, order, core, threads)
        for parallel_m in (True, False) if threads > 1 else (True,):
            block_m = _block(tiles_m, most_m, threads if parallel_m else 1)
            block_n = _block(tiles_n, most_n, 1 if parallel_m else threads)
            for packing in packings(workload, kernel.mr, kc, kernel.ks):
                yield GemmConfig(
                    mr=kernel.mr,
                    nr=kernel.nr,
                    ks=kernel.ks,
                    mc=block_m * kernel.mr,
                    nc=block_n * kernel.nr,
                    kc=kc,
                    loop_order=order,
                    packing=packing,
                    prefetch=int(kernel.ks == 1),
                )


def packings(workload: GemmWorkload, mr: int, kc: int, ks: int) -> tuple[str, ...]:
    """Ways to read A: a single tile of rows is in use once, a single step of k copied anyhow."""
    return (IN_PLACE,) if workload.m <= mr or kc == 1 or ks > 1 else (IN_PLACE, PACKED)


def _depths(
    workload: GemmWorkload, kernel: Microkernel, order: str, core: Core, threads: int
) -> list[int]:
    """Values of kc: all of k, and what the cache model says if that is less."""
    model = cache_blocking(
        core,
        kernel.mr,
        kernel.nr,
        loop_order=order,
        threads=threads,
        dtype=workload.types.a,
        k=workload.k,
    )
    blocks = math.ceil(workload.k / max(model.kc, MIN_KC))
    depths = {math.ceil(workload.k / b) for b in (1, 2, blocks) if b <= blocks}
    return sorted({min(depth, _deepest(workload)) for depth in depths})


def _deepest(workload: GemmWorkload) -> int:
    """Steps of k in the fewest equal blocks that the data type allows."""
    return math.ceil(workload.k / math.ceil(workload.k / most_steps(workload.types)))


def _most_tiles(
    kernel: Microkernel, kc: int, order: str, core: Core, threads: int
) -> tuple[int, int]:
    """Tiles along m and n that a block may have: one operand's block stays in L2."""
    step = kc * kernel.types.a_bytes
    a_panel, b_panel = kernel.mr * step, kernel.nr * step
    room = L2_PLANNED * l2_bytes(core, threads)
    if order == B_OUTSIDE:
        return max(1, int((room - 2 * b_panel) // a_panel)), 1 << 30
    return 1 << 30, max(1, int((room - 2 * a_panel) // b_panel))


def _block(tiles: int, most: int, parts: int) -> int:
    """Tiles per block when `tiles` are cut into equal blocks, as many for every one of `parts`."""
    blocks = math.ceil(tiles / most)
    return math.ceil(tiles / (math.ceil(blocks / parts) * parts))
