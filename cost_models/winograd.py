"""Configurations of the Winograd convolution and their predicted time.

Per block of tiles: the transforms of its patches and products, and one GEMM per point, whose A (V)
and C (P) lie in L2 and whose weights pass by once. What decides between tile sizes and against
direct convolution:

- F(4, 3) needs a quarter of the FMAs, and four times the weights (36 values for 9), which come
  from memory in the first pass over them and from L3 afterwards: more tiles per block mean fewer
  passes. With 512 channels on 7x7 pixels the weights alone take longer than direct convolution;
- tiles that reach beyond the image compute for nothing: 7x7 outputs are four tiles of 4x4;
- the transforms touch every point of V and P twice, whatever the number of channels they are
  multiplied with: few channels leave little to gain.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from tvm_blislike.config import Config
from tvm_blislike.cost_models.roofline import (
    CALL_CYCLES,
    FORK_JOIN_CYCLES,
    Estimate,
    bytes_per_cycle,
    finish,
    level_holding,
    share_bytes,
    step_cycles,
)
from tvm_blislike.cost_models.winograd_geometry import (
    CHANNELS,
    ITEM_BYTES,
    ONE_D,
    TILES,
    TWO_D,
    WinogradGeometry,
    geometry,
)
from tvm_blislike.hardware import Core
from tvm_blislike.layouts import blocked
from tvm_blislike.microkernels import Microkernel, get_kernel, kernel_name, kernels_for
from tvm_blislike.workload import Conv2dWorkload

# Outputs per tile and axis, and points per axis up to which fp32 is accurate enough.
TILE_SIZES = (2, 4, 6)
MOST_POINTS = 8
# Part of L2 that V and P of a block may take: weight panels pass through the rest.
L2_PLANNED = 0.7
# "channels" order: V of the whole batch is reread for each chunk, from L3 at most.
MOST_KEPT_V = 16 << 20
# Rows of tiles in a block.
BLOCK_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 28)
# Share of the weights' arrival that prefetching hides behind the products.
HIDDEN = 0.85
# Part of the products' time behind which anything hides at all: with 512 channels of 14x14, F(4, 3)
# takes the time of its weights (38 MB) and half of that of its products, F(2, 3) that of its
# products alone.
HIDING = 0.5
# Writing a cache line reads it first.
WRITE_PASSES = 2.0
# Share of the L3 bandwidth of a few megabytes that tens of megabytes get (Golden Cove: 30 GB/s).
FAR_L3 = 0.5
# Cycles per vector that a transform loads, stores or computes (both passes, Golden Cove).
TRANSFORM_CYCLES = 1.5
# Passes over more points than this spill.
POINTS_IN_REGISTERS = 36
SPILLING = 1.5


def applies(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for convolutions of stride 1 whose channels fill vectors, else the reason."""
    w, lanes = workload, core.lanes(workload.dtype)
    if w.dtype != "float32":
        return f"no {w.dtype} transforms"
    if w.stride != (1, 1) or w.dilation != (1, 1):
        return "only for stride 1 without dilation"
    if w.groups > 1:
        return "only for one group"
    if w.kh == w.kw == 1 or not _sizes(w.kh) or not _sizes(w.kw):
        return f"no transform for {w.kh}x{w.kw} kernels"
    if w.ci % lanes or w.co % lanes:
        return f"channels are no multiple of {lanes}"
    return ""


def _sizes(r: int) -> tuple[int, ...]:
    """Return the tile sizes m of F(m, r)."""
    return (1,) if r == 1 else tuple(m for m in TILE_SIZES if m + r - 1 <= MOST_POINTS)


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Config]:
    """Yield the configurations of `conv2d_winograd` worth estimating."""
    for tile_h in _sizes(workload.kh):
        for tile_w in _sizes(workload.kw):
            if min(workload.kh, workload.kw) == 1 or tile_h == tile_w:
                yield from _of_tile(TWO_D, workload, (tile_h, tile_w), core, threads)


def applies_1d(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for what `conv2d_winograd` computes with kernels of several rows and columns."""
    if min(workload.kh, workload.kw) == 1:
        return "for kernels of one row or column conv2d_winograd is one-dimensional itself"
    return applies(workload, core)


def configs_1d(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Config]:
    """Yield the configurations of `conv2d_winograd_1d` worth estimating."""
    for tile_w in _sizes(workload.kw):
        yield from _of_tile(ONE_D, workload, (1, tile_w), core, threads)


def _of_tile(
    name: str, workload: Conv2dWorkload, tile: tuple[int, int], core: Core, threads: int
) -> Iterator[Config]:
    for kernel in kernels_for(core.isa, workload.dtype):
        if workload.co % kernel.nr == 0 and _leaves_registers(kernel, core):
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
        for k in kernels_for(core.isa, kernel.dtype)
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
    room = L2_PLANNED * (share_bytes(core, 2, threads) or share_bytes(core, 1, threads))
    panels = workload.co // kernel.nr
    layout = blocked(core.lanes(workload.dtype))
    for block_h, block_w in _blocks(tiles_h, tiles_w):
        if not _suits_tiles(kernel, block_h * block_w, core):
            continue
        for chunk in (c for c in range(1, panels + 1) if panels % c == 0):
            config = Config(
                name,
                mr=kernel.mr,
                nr=kernel.nr,
                mc=block_h * block_w,
                nc=chunk * kernel.nr,
                kc=workload.ci,
                loop_order=TILES,
                data_layout=layout,
                out_layout=layout,
                tile_h=tile[0],
                tile_w=tile[1],
                oh_block=block_h,
                prefetch=1,
            )
            geo = geometry(workload, config)
            if geo.v_bytes + geo.p_bytes <= room:
                yield config
            keeps_v = geo.blocks * geo.v_bytes <= MOST_KEPT_V
            if name == TWO_D and keeps_v and geo.p_bytes <= room / 2 and chunk < panels:
                yield config.with_fields(loop_order=CHANNELS)


def _blocks(tiles_h: int, tiles_w: int) -> Iterator[tuple[int, int]]:
    """Yield whole rows of tiles, or a part of one row where rows are long."""
    for rows in BLOCK_ROWS:
        if rows <= tiles_h:
            yield rows, tiles_w
    for parts in (2, 3, 4, 6, 8):
        if tiles_w >= 4 * parts:
            yield 1, math.ceil(tiles_w / parts)


def estimate(workload: Conv2dWorkload, config: Config, core: Core, threads: int) -> Estimate:
    """Predict the time of one layer.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of V, P and the weights per cache level.
    """
    geo = geometry(workload, config)
    kernel = get_kernel(kernel_name(core.isa, config.mr, config.nr, workload.dtype))
    v, p = geo.v_bytes, geo.p_bytes
    weights = ITEM_BYTES * math.prod(geo.packed_shape)
    by_channels = config.loop_order == CHANNELS
    share = _share(geo, threads)
    cycles = {name: value * share for name, value in _products(geo, kernel, core).items()}
    busy = sum(cycles.values())
    if by_channels:
        near = level_holding(core, int((weights / geo.chunks + v + p) / L2_PLANNED), threads)
        cycles["weights"] = _stream(core, weights * share, near, geo.blocks, busy)
        kept = v * geo.blocks
        far = level_holding(core, int(kept / L2_PLANNED), threads)
        cycles["V"] = _kept_cycles(core, kept, far, geo, share)
    else:
        near = level_holding(core, int((weights + v + p) / L2_PLANNED), threads)
        cycles["weights"] = _stream(core, weights, near, geo.blocks * share, busy)
    cycles["input transform"] = _input_cycles(geo, core, threads) * share
    cycles["output transform"] = _output_cycles(geo, core, threads) * share
    cycles["fork"] = (2 if by_channels else 1) * FORK_JOIN_CYCLES if threads > 1 else 0.0
    footprint = tuple(
        (name, at := level_holding(core, size, threads), size, _part(core, at, size, threads))
        for name, size in (("V", v), ("P", p), ("weights", weights))
    )
    return finish(core, threads, workload.macs, cycles, footprint)


def workspace_bytes(workload: Conv2dWorkload, config: Config, threads: int) -> int:
    """Return the size of V and P: of all threads' blocks, or V of the whole batch."""
    geo = geometry(workload, config)
    v, p = geo.v_bytes, geo.p_bytes
    return v * geo.blocks + p * threads if config.loop_order == CHANNELS else (v + p) * threads


def _part(core: Core, level: int, size: int, threads: int) -> float:
    share = share_bytes(core, level, threads)
    return size / share if share else 0.0


def _share(geo: WinogradGeometry, threads: int) -> float:
    """Part of the work of the busiest thread."""
    if threads == 1:
        return 1.0
    if geo.config.loop_order == CHANNELS:
        parts = geo.chunks
    elif geo.workload.n % threads == 0:
        return 1.0 / threads
    else:
        parts = geo.blocks_h if geo.blocks_h > 1 else geo.blocks_w
    return math.ceil(parts / threads) / parts


def _products(geo: WinogradGeometry, kernel: Microkernel, core: Core) -> dict[str, float]:
    """Cycles of all micro-kernel calls of the layer on one thread."""
    c, steps = geo.config, geo.steps
    full, cut = divmod(geo.tiles, c.mr)
    vectors = kernel.vectors
    total = {"fma": 0.0, "L2": 0.0, "calls": 0.0}
    for number, rows in ((full, c.mr), (1 if cut else 0, cut)):
        count = number * geo.blocks * geo.points * geo.panels * geo.chunks
        if count == 0:
            continue
        a_loads = rows / kernel.lanes if kernel.loads_a_vectors else rows
        issue = steps * step_cycles(core, rows, vectors, a_loads)
        arrival = ITEM_BYTES * steps * (rows + c.nr) / bytes_per_cycle(core, 2)
        total["fma"] += count * issue
        total["L2"] += count * max(0.0, arrival - issue)
        total["calls"] += count * (CALL_CYCLES + 1.5 * rows * vectors / core.stores_per_cycle)
    return total


def _stream(core: Core, size: float, level: int, passes: float, compute: float) -> float:
    """Cycles that the weights add: from memory in the first pass, later from `level`."""
    total = 0.0
    for count, source in ((1.0, 0), (max(0.0, passes - 1), level)):
        arrival = 0.0 if source in (1, 2) else size / _bytes_per_cycle(core, source)
        total += count * (arrival - HIDDEN * min(arrival, HIDING * compute / max(passes, 1.0)))
    return total


def _bytes_per_cycle(core: Core, level: int) -> float:
    return bytes_per_cycle(core, level) * (FAR_L3 if level == 3 else 1.0)


def _kept_cycles(core: Core, size: float, level: int, geo: WinogradGeometry, share: float) -> float:
    """Cycles of writing V beyond L2 and reading it again for each chunk."""
    if level in (1, 2):
        return 0.0
    passes = WRITE_PASSES + geo.chunks * (1 - HIDDEN)
    return size * share * passes / _bytes_per_cycle(core, level)


def _input_cycles(geo: WinogradGeometry, core: Core, threads: int) -> float:
    """Cycles of transforming all patches: each point is loaded, stored and computed twice."""
    w = geo.workload
    source = level_holding(core, w.n * w.ci * w.h * w.w * ITEM_BYTES, threads)
    image = w.n * w.ci * w.h * w.w * ITEM_BYTES / bytes_per_cycle(core, source)
    vectors = geo.blocks * w.ci / core.lanes(w.dtype)
    work = vectors * geo.input_work * _transform_cycles(geo, core)
    return work + (image if source not in (1, 2) else 0.0)


def _output_cycles(geo: WinogradGeometry, core: Core, threads: int) -> float:
    """Cycles of transforming all products and of the epilogue."""
    w = geo.workload
    vectors = geo.blocks * w.co / core.lanes(w.dtype)
    size = w.n * w.co * w.oh * w.ow * ITEM_BYTES
    level = level_holding(core, size, threads)
    image = 0.0 if level in (1, 2) else size / bytes_per_cycle(core, level)
    return vectors * geo.output_work * _transform_cycles(geo, core) + image


def _transform_cycles(geo: WinogradGeometry, core: Core) -> float:
    # A flat transform holds the whole patch: in registers, or in memory again and again.
    held = max(1.0, geo.points / core.vector_registers) if geo.flat else 1.0
    return TRANSFORM_CYCLES * (SPILLING if geo.points > POINTS_IN_REGISTERS else 1.0) * held
