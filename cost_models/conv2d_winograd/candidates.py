"""Configurations of the Winograd convolutions worth estimating, and where they apply."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator

from tvm_blislike.cost_models.conv2d_winograd.geometry import (
    CHANNELS,
    ONE_D,
    TILES,
    TWO_D,
    geometry,
)
from tvm_blislike.cost_models.data_types import missing, most_steps
from tvm_blislike.cost_models.roofline import l2_bytes
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import block_of, preferred
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload

# Outputs per tile and axis, and points per axis up to which a data type is accurate enough. In
# fp16, 64 and 512 channels, direct convolution errs by 3.7e-3 and 2.8e-3 of the largest output,
# F(2, 3) by 2.2e-3 and 5.0e-3, F(4, 3) by 1.1e-2 and 2.5e-2.
TILE_SIZES = (2, 4, 6)
MOST_POINTS = {"float32": 8, "float16": 4}
# Part of L2 that V and P of a block may take: weight panels pass through the rest.
L2_PLANNED = 0.7
# "channels" order: V of the whole batch is reread for each chunk, from L3 at most.
MOST_KEPT_V = 16 << 20
# Rows of tiles in a block.
BLOCK_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 28)
# One core of Golden Cove, ms, F(4, 3) against direct convolution: 3 to 64 channels of 112x112 0.33
# and 0.25, 8 to 64 of 56x56 0.10 and 0.16, 24 to 24 0.11 and 0.22, 57 to 57 of 28x28 0.13 and 0.29.
FEWEST_CHANNELS = 8
# Rows in a block of a ring: for little workspace, which larger ones do not have.
RING_ROWS = (1, 2, 4, 8)
# Part of the rows that strips may compute beyond the image.
MOST_BEYOND = 0.1


def applies(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for convolutions of stride 1 that transforms may pay for, else the reason."""
    w = workload
    if reason := missing(w, core):
        return reason
    if w.ci > most_steps(w.types):
        return f"{w.ci} products are too many for a sum in {w.types.acc}"
    if w.stride != (1, 1) or w.dilation != (1, 1):
        return "only for stride 1 without dilation"
    if w.groups > 1:
        return "only for one group"
    if w.kh == w.kw == 1 or not sizes(w.kh, w.types.acc) or not sizes(w.kw, w.types.acc):
        return f"no transform for {w.kh}x{w.kw} kernels"
    if min(w.ci, w.co) < FEWEST_CHANNELS:
        return f"{min(w.ci, w.co)} channels: transforms would take longer than direct products"
    return ""


def sizes(r: int, dtype: str, among: Iterable[int] = TILE_SIZES) -> tuple[int, ...]:
    """Return the tile sizes m of F(m, r) that are accurate enough."""
    return (1,) if r == 1 else tuple(m for m in among if m + r - 1 <= MOST_POINTS[dtype])


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Config]:
    """Yield the configurations of `conv2d_winograd` worth estimating."""
    for tile_h in sizes(workload.kh, workload.types.acc):
        for tile_w in sizes(workload.kw, workload.types.acc):
            if min(workload.kh, workload.kw) == 1 or tile_h == tile_w:
                yield from _of_tile(TWO_D, workload, (tile_h, tile_w), core, threads)


def applies_1d(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for what `conv2d_winograd` computes with kernels of several rows and columns."""
    if workload.types != FLOAT32:
        return f"no {workload.types} transforms of one dimension"
    if min(workload.kh, workload.kw) == 1:
        return "for kernels of one row or column conv2d_winograd is one-dimensional itself"
    lanes = core.lanes(workload.types.acc)
    if workload.ci % lanes or workload.co % lanes:
        return f"channels are no multiple of {lanes}: conv2d_winograd has forms for that"
    return applies(workload, core)


def configs_1d(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Config]:
    """Yield the configurations of `conv2d_winograd_1d` worth estimating."""
    for tile_w in sizes(workload.kw, workload.types.acc):
        yield from _of_tile(ONE_D, workload, (1, tile_w), core, threads)


def _of_tile(
    name: str, workload: Conv2dWorkload, tile: tuple[int, int], core: Core, threads: int
) -> Iterator[Config]:
    for kernel in kernels_for(core, workload.types):
        lanes = core.lanes(workload.types.acc)
        # Lanes of the last panel may be empty where those of the last vector are as well.
        empty = -workload.co % kernel.nr
        if empty < (lanes if workload.co % lanes else 1) and _leaves_registers(kernel, core):
            yield from _blocked(name, workload, kernel, tile, core, threads)


def _leaves_registers(kernel: Microkernel, core: Core) -> bool:
    """Whether two registers are left over: the nest around the k loop needs them at times.

    LLVM 22 spills 14x32 blocks, 31 of 32 registers, depending on the block of tiles: 4 or 8 stack
    accesses among 112 FMAs. (The transforms' constants take none: `fresh_registers`.)
    """
    return kernel.registers + 2 <= core.vector_registers


@functools.cache
def _suits_tiles(kernel: Microkernel, tiles: int, core: Core) -> bool:
    """Whether it is the lowest kernel of its width that needs fewest calls for a block."""
    heights = [
        k.mr
        for k in kernels_for(core, kernel.types)
        if k.nr == kernel.nr and k.mr <= tiles and _leaves_registers(k, core)
    ]
    if not heights:
        return False
    calls = math.ceil(tiles / max(heights))
    return kernel.mr == min(mr for mr in heights if math.ceil(tiles / mr) == calls)


def _blocked(
    name: str,
    workload: Conv2dWorkload,
    kernel: Microkernel,
    tile: tuple[int, int],
    core: Core,
    threads: int,
) -> Iterator[Config]:
    """Yield the blocks of tiles and chunks of channels whose V and P fit into L2."""
    tiles_h, tiles_w = math.ceil(workload.oh / tile[0]), math.ceil(workload.ow / tile[1])
    room = L2_PLANNED * l2_bytes(core, threads)
    for block in _blocks(tiles_h, tiles_w):
        if not _suits_tiles(kernel, block[0] * block[1], core):
            continue
        for config in _chunked(name, workload, kernel, tile, block, core):
            geo = geometry(workload, config)
            if geo.v_bytes + geo.p_bytes <= room:
                yield config
            keeps_v = geo.blocks * geo.v_bytes <= MOST_KEPT_V
            if name == TWO_D and keeps_v and geo.p_bytes <= room / 2 and geo.chunks > 1:
                yield config.with_fields(loop_order=CHANNELS)
    if name == ONE_D and _suits_tiles(kernel, tiles_w, core):
        for rows in RING_ROWS:
            for config in _chunked(name, workload, kernel, tile, (rows, tiles_w), core):
                yield from _in_ring(config, workload, threads, room)


def _chunked(
    name: str,
    workload: Conv2dWorkload,
    kernel: Microkernel,
    tile: tuple[int, int],
    block: tuple[int, int],
    core: Core,
) -> Iterator[Config]:
    """Yield a config for each number of panels that divides the output channels."""
    panels = math.ceil(workload.co / kernel.nr)
    lanes = core.lanes(workload.types.acc)
    layouts = preferred(workload.ci, 1, lanes), preferred(workload.co, 1, lanes)
    # The last panel of an NHWC image is in the same chunk as all others.
    least = 1 if block_of(layouts[1]) else panels
    for chunk in (c for c in range(least, panels + 1) if panels % c == 0):
        yield Config(
            name,
            mr=kernel.mr,
            nr=kernel.nr,
            mc=block[0] * block[1],
            nc=chunk * kernel.nr,
            kc=workload.ci,
            loop_order=TILES,
            data_layout=layouts[0],
            out_layout=layouts[1],
            tile_h=tile[0],
            tile_w=tile[1],
            oh_block=block[0],
            prefetch=1,
        )


def _in_ring(
    config: Config, workload: Conv2dWorkload, threads: int, room: float
) -> Iterator[Config]:
    """Yield a config whose blocks share a ring, one strip per thread, if V and P fit into L2."""
    strips = 1 if workload.n % threads == 0 else threads
    blocks = math.ceil(workload.oh / config.oh_block / strips)
    in_ring = config.with_fields(ring=blocks)
    geo = geometry(workload, in_ring)
    beyond = geo.blocks_h * geo.block_h - workload.oh
    fits = geo.v_bytes + geo.p_bytes <= room and beyond <= MOST_BEYOND * workload.oh
    if blocks > 1 and fits:
        yield in_ring


def _blocks(tiles_h: int, tiles_w: int) -> Iterator[tuple[int, int]]:
    """Yield whole rows of tiles, or a part of one row where rows are long."""
    for rows in BLOCK_ROWS:
        if rows <= tiles_h:
            yield rows, tiles_w
    for parts in (2, 3, 4, 6, 8):
        if tiles_w >= 4 * parts:
            yield 1, math.ceil(tiles_w / parts)
