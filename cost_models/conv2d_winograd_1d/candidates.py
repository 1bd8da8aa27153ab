"""Configurations of the one-dimensional Winograd convolution worth estimating."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_winograd import candidates
from tvm_blislike.cost_models.conv2d_winograd.candidates import sizes
from tvm_blislike.cost_models.conv2d_winograd_1d.config import Winograd1dConfig
from tvm_blislike.cost_models.conv2d_winograd_1d.geometry import Winograd1dGeometry
from tvm_blislike.cost_models.roofline import peak_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload

# Rows in a block of a ring: for little workspace, which larger ones do not have.
RING_ROWS = (1, 2, 4, 8)
# Part of the rows that strips may compute beyond the image.
MOST_BEYOND = 0.1


def applies(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for what `conv2d_winograd` computes with kernels of several rows and columns."""
    if workload.types != FLOAT32:
        return f"no {workload.types} transforms of one dimension"
    if min(workload.kh, workload.kw) == 1:
        return "for kernels of one row or column conv2d_winograd is one-dimensional itself"
    if workload.stride != (1, 1):
        return "only for stride 1"
    lanes = core.lanes(workload.types.acc)
    if workload.ci % lanes or workload.co % lanes:
        return f"channels are no multiple of {lanes}: conv2d_winograd has forms for that"
    if workload.groups > 1:
        return "only for one group"
    return candidates.applies(workload, core)


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Winograd1dConfig]:
    """Yield the configurations worth estimating: blocks, chunks and rings that fit into L2."""
    for tile_w in sizes(workload.kw, workload.types.acc):
        start = Winograd1dConfig(tile_w=tile_w)
        for kernel in candidates.kernels(workload, core):
            for config in candidates.blocked(start, workload, kernel, core, threads):
                geo = Winograd1dGeometry(workload, config)
                if _fits(geo, core, threads):
                    yield from candidates.parted(config, geo, threads)
            for config in _rings(start, workload, kernel, core, threads):
                geo = Winograd1dGeometry(workload, config)
                beyond = geo.blocks_h * geo.block_h - workload.oh
                if _fits(geo, core, threads) and beyond <= MOST_BEYOND * workload.oh:
                    yield from candidates.parted(config, geo, threads)


def least_seconds(workload: Conv2dWorkload, core: Core, threads: int) -> float:
    """Return the time of nothing but the FMAs of the products, of the tile with the fewest."""
    kw = workload.kw
    products = [(tile + kw - 1) / (tile * kw) for tile in sizes(kw, workload.types.acc)]
    return min(products, default=0.0) * peak_seconds(workload, core, threads)


def _fits(geo: Winograd1dGeometry, core: Core, threads: int) -> bool:
    room = candidates.planned_bytes(geo, core, threads)
    return geo.v_bytes + geo.p_bytes <= room


def _rings(
    start: Winograd1dConfig,
    workload: Conv2dWorkload,
    kernel: Microkernel,
    core: Core,
    threads: int,
) -> Iterator[Winograd1dConfig]:
    """Yield configurations whose blocks share a ring, one strip per thread."""
    tiles_w = math.ceil(workload.ow / start.tile_w)
    if not candidates.suits_tiles(kernel, tiles_w, core):
        return
    strips = 1 if workload.n % threads == 0 else threads
    for rows in RING_ROWS:
        blocks = math.ceil(workload.oh / rows / strips)
        if blocks > 1:
            strip = start.with_fields(ring=blocks)
            yield from candidates.chunked(strip, workload, kernel, (rows, tiles_w), core)
