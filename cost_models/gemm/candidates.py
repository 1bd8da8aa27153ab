"""Configurations of a matrix product that are worth an estimate.

For each micro-kernel and loop order the blocks of the model (`cache_blocking`), and a few around
them: all of k at once and half of it, all of n, each with the blocks that the model gives then.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial

from tvm_blislike.cost_models.cache_blocking import CacheBlocking, cache_blocking
from tvm_blislike.cost_models.data_types import missing, most_steps
from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import (
    B_OUTSIDE,
    LOOP_ORDERS,
    asks_ahead,
    packings,
)
from tvm_blislike.cost_models.gemm.nests import NEST
from tvm_blislike.cost_models.parallel import equal_blocks
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of, kernels_for
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.types import BYTES
from tvm_blislike.model.workload import GemmWorkload

# Tiles ask for the present panel of B, where few calls share it: others have it in a cache.
FEW_TILES = 7
# Rows up to which a product runs at the speed of memory.
FEW_ROWS = 4
# Registers of sums of a few rows by bytes with which most lines of weights are on their way: 103 MB
# take 1.12 times as long with 3x96 blocks as with 3x64, and 1.2 times with 3x16 (Zen 4).
_SUMS_OF_BYTES = 12


def applies(workload: GemmWorkload, core: Core) -> str:
    """Return "" for data types that micro-kernels have, else why not."""
    return missing(workload, core, grouped=True)


def configs(workload: GemmWorkload, core: Core, threads: int) -> Iterator[GemmConfig]:
    """Yield the configurations worth estimating."""
    for kernel in _worth_trying(workload, core, threads):
        widest = math.ceil(workload.n / kernel.lanes) * kernel.lanes
        if kernel.mr > workload.m or kernel.nr > widest:
            continue
        if not keeps_registers(core, kernel, NEST):
            continue
        if workload.m <= FEW_ROWS:
            yield from _few_rows(workload, kernel, core, threads)
        else:
            for order in LOOP_ORDERS:
                # Cutting along m and along n gives the same blocks where there is one only.
                yield from dict.fromkeys(_blocked(workload, kernel, order, core, threads))


def _worth_trying(workload: GemmWorkload, core: Core, threads: int) -> tuple[Microkernel, ...]:
    """Return the micro-kernels of a product; of few rows by bytes those that load weights best."""
    kernels = kernels_for(core, workload.types)
    if workload.types != BYTES or workload.m > FEW_ROWS:
        return kernels
    sums = {
        kernel: kernel.mr * kernel.vectors
        for kernel in kernels
        if kernel.mr == workload.m and kernel.nr * threads < workload.n + kernel.lanes
    }
    most = max((number for number in sums.values() if number <= _SUMS_OF_BYTES), default=0)
    return tuple(k for k, number in sums.items() if most / 2 < number <= most) or kernels


def _few_rows(
    workload: GemmWorkload, kernel: Microkernel, core: Core, threads: int
) -> Iterator[GemmConfig]:
    """One pass over B as it lies in memory, which the hardware's prefetchers follow by themselves.

    Where k loops convert weights in fewer bytes they fall behind, and are asked for ahead.

    Measured with 205 MB of B on Golden Cove: 1x128 blocks read 12.8 GB/s (24.0 with two threads),
    1x16 blocks 11.4; prefetching the next panel brings that down to 9.
    """
    if kernel.mr == workload.m:
        tiles = math.ceil(workload.n / kernel.nr)
        types = workload.types
        converts = types.is_stored or (types.is_bfloat_dot and types.b_bytes == 1)
        yield GemmConfig(
            mr=kernel.mr,
            nr=kernel.nr,
            ks=kernel.ks,
            mc=kernel.mr,
            nc=math.ceil(tiles / threads) * kernel.nr,
            kc=_deepest(workload),
            loop_order=B_OUTSIDE,
            packing=packings(workload, kernel.mr, workload.k, kernel.ks)[0],
            prefetch=int(converts),
            prefetch_bytes=core.ahead_bytes // types.b_bytes if converts else 0,
        )


def _blocked(
    workload: GemmWorkload, kernel: Microkernel, order: str, core: Core, threads: int
) -> Iterator[GemmConfig]:
    tiles_m = math.ceil(workload.m / kernel.mr)
    tiles_n = math.ceil(workload.n / kernel.nr)
    for kc in _depths(workload, kernel, order, core, threads):
        model = blocking(workload, kernel, order, core, threads, kc)
        outer = {(model.mc, model.nc)}
        # What L3 or the TLB holds, or all of it: nothing else passes by as often.
        outer.add((model.mc, workload.n) if order == B_OUTSIDE else (workload.m, model.nc))
        for (mc, nc), parallel_m in itertools.product(
            sorted(outer), (True, False) if threads > 1 else (True,)
        ):
            block_m = equal_blocks(tiles_m, mc / kernel.mr, threads if parallel_m else 1)
            block_n = equal_blocks(tiles_n, nc / kernel.nr, 1 if parallel_m else threads)
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
                    prefetch=int(_asks_ahead(kernel, order, block_m)),
                )


def _asks_ahead(kernel: Microkernel, order: str, calls: int) -> bool:
    """Whether operands should be asked for in advance where so many calls share a panel of B."""
    if kernel.tiles is not None:
        return order == B_OUTSIDE and calls <= FEW_TILES
    return asks_ahead(kernel)


def blocking(
    workload: GemmWorkload,
    kernel: Microkernel,
    order: str,
    core: Core,
    threads: int,
    kc: int | None = None,
) -> CacheBlocking:
    """Return the model's blocks of a product, for any kc or for a given one."""
    return cache_blocking(
        core,
        kernel.mr,
        kernel.nr,
        loop_order=order,
        threads=threads,
        dtype=workload.types.a,
        m=workload.m,
        n=workload.n,
        k=workload.k,
        pinned=None if kc is None else {"kc": kc},
    )


def derivation(
    workload: GemmWorkload, config: GemmConfig, core: Core, threads: int
) -> tuple[str, ...]:
    """Say what bounds the blocks of a configuration: the model's kc, then mc and nc with its kc."""
    kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
    model = partial(blocking, workload, kernel, config.loop_order, core, threads)
    given = model(config.kc)
    depth = model().explained(kc=config.kc)
    return *depth, *given.explained(mc=config.mc, nc=config.nc), *given.places()


def _depths(
    workload: GemmWorkload, kernel: Microkernel, order: str, core: Core, threads: int
) -> list[int]:
    """Values of kc: the model's; all of k, and half of it, if that is more."""
    blocks = math.ceil(workload.k / blocking(workload, kernel, order, core, threads).kc)
    depths = {math.ceil(workload.k / b) for b in (1, 2, blocks) if b <= blocks}
    return sorted({min(depth, _deepest(workload)) for depth in depths})


def _deepest(workload: GemmWorkload) -> int:
    """Steps of k in the fewest equal blocks that the data type allows."""
    return math.ceil(workload.k / math.ceil(workload.k / most_steps(workload.types)))
