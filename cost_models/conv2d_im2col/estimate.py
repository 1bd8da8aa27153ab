"""Predicted time of the im2col convolution, for any of its configurations (`candidates`).

The slicing analysis (`slicing`) says how many channels fit into L1 and how many filters into L2;
beside its N_c all channels at once are a candidate, and so are some numbers in between: partial
sums cost a load and a store of C per set of channels, panels beyond L1 cost next to nothing as
long as L2 holds them, since 8x48 blocks draw 19 of the 36 bytes a cycle that L2 delivers.

Where the operands live:

- "IS": a panel of windows stays while a set of `mc` filters passes by, from L2 or beyond;
- "WS": a panel of filters stays while all panels of a block of rows pass by;
- all filters pass at least once per block of rows: few blocks where filters exceed L2.

A layer of a model has neighbours that want NCHWc: unless it reads the model's input, moving its
input and its output is a part of its price.
"""

from __future__ import annotations

import functools
import math

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import (
    BATCH,
    FILTERS,
    ITEM_BYTES,
    Im2colGeometry,
)
from tvm_blislike.cost_models.conv2d_im2col.slicing import INPUT_STATIONARY
from tvm_blislike.cost_models.issue import CALL_CYCLES, FMA_EFFICIENCY, step_cycles
from tvm_blislike.cost_models.moving import (
    LOSS,
    beyond_l2,
    bytes_per_cycle,
    l2_bytes,
    l2_cycles,
    level_holding,
    line_cycles,
    placed,
    share_bytes,
    shuffles_per_cycle,
    vector_cycles,
)
from tvm_blislike.cost_models.roofline import finish, fork_cycles
from tvm_blislike.cost_models.transforms import transform_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of
from tvm_blislike.model.estimate import NEIGHBOURS, Estimate
from tvm_blislike.model.workload import Conv2dWorkload

# Part of L2 that may be planned for: the result and the next operands pass through the rest.
L2_PLANNED = 0.7
# Share of a stream from beyond L2 that shows although the FMAs of the same pass run meanwhile.
EXPOSED = 0.4
# Times of a store's nominal cycles that one of a block of C takes; shuffles that transpose a vector
# of the block before.
STORE_LOSS = 1.5
TURN_SHUFFLES = 4.0
# Lines that pass for each line of panels in L2, which is written and read again; a panel that is
# used at once, figure 5 of the paper to the letter, is in L1 (64 filters of 192 channels on 28x28:
# 1.06 times as fast as packing blocks of rows; reading in place 1.20).
PANEL_LINES = 1.0
# Cycles until a row of windows that is read in place arrives the first time, where channels are so
# far apart that no prefetcher, which stops at the end of a page, follows from one to the next
# (Golden Cove: 64 to 256 filters on 28x28 and 56x56). Far: where L2 cannot hold image and result.
ROW_CYCLES = 2.0
FAR_ROW_CYCLES = 48.0
# The same of the row of pixels that a filter's column of a block becomes: a part of a line, which
# is read before it is written.
STORED_ROW_CYCLES = 12.0
FAR_APART_BYTES = 2048
# Shuffles of a vector of the slab that parts columns of stride 2 or more.
PART_SHUFFLES = 3.0
# Images of fewer channels are a model's input, which is NCHW.
FEW_CHANNELS = 8


def estimate(workload: Conv2dWorkload, config: Im2colConfig, core: Core, threads: int) -> Estimate:
    """Predict the time of one layer, with what its neighbours' layouts cost.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of a panel of windows, of a block of rows, and of all
        filters per cache level.
    """
    geo = Im2colGeometry(workload, config)
    loop = geo.parallel_loop(threads)
    share = geo.share(loop, threads) if loop else 1.0
    # Threads that divide the filters pack all windows each.
    packed = 1.0 if loop == FILTERS else share
    calls, packing = _of_any_set(geo, core, threads)
    cycles = {name: value * share for name, value in calls.items()}
    busy = sum(cycles.values())
    first, later = _stream_cycles(geo, core, threads, share, loop)
    stream = later + _result_cycles(geo, core, share)
    cycles["filters"] = _first_pass_cycles(geo, first, busy)
    cycles["beyond L2"] = max(stream - (1 - EXPOSED) * busy, EXPOSED * stream)
    cycles["packing"] = packing * packed
    cycles[NEIGHBOURS] = _layout_cycles(workload, core, threads)
    cycles["fork"] = fork_cycles(core) if loop else 0.0
    panel = geo.windows_bytes // geo.pixel_tiles
    sizes = (("panel", panel), ("block", geo.windows_bytes), ("filters", _filters_bytes(geo)))
    footprint = tuple(placed(core, name, size, threads) for name, size in sizes)
    return finish(core, threads, workload, cycles, footprint)


def _of_any_set(geo: Im2colGeometry, core: Core, threads: int) -> tuple[dict[str, float], float]:
    """Return cycles of computing by cause, and of packing: the same however many filters a set has.

    Two thirds of what is estimated of a layer differs in that alone.
    """
    known, key = _known(geo.workload, core, threads), geo.config.with_fields(mc=0)
    if key not in known:
        kernel = kernel_of(core, key.mr, key.nr, geo.workload.types)
        calls = _calls(geo, kernel, core, threads)
        calls["sums"] = _sums_cycles(geo, core, threads)
        known[key] = calls, _packing_cycles(geo, core, threads)
    return known[key]


@functools.lru_cache(maxsize=1)
def _known(
    _workload: Conv2dWorkload, _core: Core, _threads: int
) -> dict[Im2colConfig, tuple[dict[str, float], float]]:
    """Return what `_of_any_set` found for a layer: configurations of one follow each other."""
    return {}


def workspace_bytes(workload: Conv2dWorkload, config: Im2colConfig, threads: int) -> int:
    """Return the size of panels, partial sums and padded rows of all threads."""
    geo = Im2colGeometry(workload, config)
    sums = geo.sums_bytes
    if geo.parallel_loop(threads) == FILTERS:
        sums = math.ceil(sums * geo.block_tiles / geo.filter_tiles)
    return threads * (geo.panels_bytes + sums + geo.slab_bytes)


def _filters_bytes(geo: Im2colGeometry) -> int:
    return ITEM_BYTES * math.prod(geo.packed_shape)


def _calls(geo: Im2colGeometry, kernel: Microkernel, core: Core, threads: int) -> dict[str, float]:
    """Cycles of all micro-kernel calls on one thread, by what limits them."""
    total = {"fma": 0.0, "loads and edges": 0.0, "L2": 0.0, "calls": 0.0}
    blocks = geo.images * geo.blocks_h
    for count_f, filters in _sizes(geo.co, geo.filters):
        for count_p, windows in _sizes(geo.pixels, geo.windows):
            number = blocks * count_f * count_p
            height, width = (windows, filters) if geo.filters_across else (filters, windows)
            vectors = math.ceil(width / kernel.lanes)
            a_loads = kernel.a_loads(height, "panel", core.in_order)
            issue = geo.k * step_cycles(core, height, vectors, a_loads)
            useful = geo.k * height * width / kernel.lanes / core.fma_per_cycle / FMA_EFFICIENCY
            arrival = geo.k * _l2_bytes(geo, core, filters, windows)
            total["fma"] += number * useful
            total["loads and edges"] += number * max(0.0, issue - useful)
            arrival /= bytes_per_cycle(core, 2)
            total["L2"] += number * l2_cycles(arrival, issue)
            stores = _store_cycles(geo, core, height, vectors, threads)
            total["calls"] += number * (geo.sets * CALL_CYCLES + stores)
    return total


def _sizes(total: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Whole tiles and the last one: (number, size)."""
    whole = math.ceil(total / size) - 1
    return (whole, size), (1, total - whole * size)


def _store_cycles(
    geo: Im2colGeometry, core: Core, height: int, vectors: int, threads: int
) -> float:
    """Cycles of the stores of a block, and of transposing it first where filters are its lanes."""
    stores = height * vectors / core.stores_per_cycle
    if not geo.filters_across:
        return STORE_LOSS * stores
    w = geo.workload
    row = _row_cycles(geo, core, threads, w.oh * w.ow, STORED_ROW_CYCLES)
    turning = LOSS * TURN_SHUFFLES / shuffles_per_cycle(core)
    blocks = STORE_LOSS * stores + turning * height * vectors
    return blocks + row * vectors * core.lanes(w.types.acc)


def _l2_bytes(geo: Im2colGeometry, core: Core, filters: int, windows: int) -> float:
    """Bytes from L2 per step of k: the panel that passes by, and the other if L1 is too small."""
    steps = geo.channels * geo.taps
    if geo.in_place:
        # Lines that a row of the image's pixels touches, where it starts anywhere in one.
        line = core.line_bytes // ITEM_BYTES
        windows += (line - 1) * (geo.windows % line > 0)
    is_kept = geo.config.loop_order == INPUT_STATIONARY
    passes, stays = (filters, windows) if is_kept else (windows, filters)
    crowded = ITEM_BYTES * steps * (filters + windows) > share_bytes(core, 1, 1)
    return ITEM_BYTES * (passes + (stays if crowded else 0))


def _sums_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles of partial sums: zeros, a load and a store per set of channels, and the epilogue."""
    if geo.sets == 1:
        return 0.0
    vectors = geo.images * geo.blocks_h * geo.sums_bytes / (core.vector_bits / 8)
    near = geo.sums_bytes <= share_bytes(core, 1, threads) / 2
    beyond = geo.sums_bytes > L2_PLANNED * l2_bytes(core, threads)
    level = 1 if near else beyond_l2(core) if beyond else 2
    lines = core.vector_bits / 8 / core.line_bytes
    return vectors * (geo.sets + 1) * (vector_cycles(core) + line_cycles(core, level, lines))


def _first_pass_cycles(geo: Im2colGeometry, first: float, busy: float) -> float:
    """Cycles that filters on their way from memory add to `busy` cycles of all blocks.

    They come while the first panel of windows of the first block meets them; nobody asks for them
    in advance. So the less is hidden the more of the memory's rate that panel wants: of one panel
    of 64 pixels (6x64) half shows, of four (13x32, filters across) all of it and more.
    """
    behind = busy / (geo.blocks_h * geo.pixel_tiles)
    return first * (1 - (1 - EXPOSED) * max(0.0, 1 - first / behind))


def _stream_cycles(
    geo: Im2colGeometry, core: Core, threads: int, share: float, loop: str
) -> tuple[float, float]:
    """Cycles of one thread's traffic beyond L2: the first pass over the filters; all later ones.

    Those are panels that L2 cannot hold as well.

    The first pass over the filters finds them in memory, as everywhere else in a model. Groups
    follow each other, each with filters of its own.
    """
    room = L2_PLANNED * l2_bytes(core, threads)
    groups = geo.workload.groups
    own = _filters_bytes(geo) / groups * (share if loop == FILTERS else 1.0)
    far = 3 if core.cache(3) else 0
    parts = share if groups > 1 and loop == BATCH else 1.0
    blocks = geo.workload.n * geo.blocks_h * (share if loop != FILTERS and parts == 1.0 else 1.0)
    one_set = own / geo.sets
    panel, block = geo.windows_bytes / geo.pixel_tiles, geo.windows_bytes
    if geo.config.loop_order == INPUT_STATIONARY:
        part = one_set * geo.block_tiles / geo.filter_tiles
        per_block = geo.pixel_tiles if part + panel > room else 1
        panel_reads = geo.filter_blocks if block + part > room else 0
    else:
        per_block = 1
        panel_reads = geo.filter_tiles if block > room else 0
    stays = own + block <= room
    passes = 1.0 if stays else max(1.0, blocks * per_block)
    first = own / bytes_per_cycle(core, 0, threads if loop == FILTERS else 1)
    later = (passes - 1) * own / bytes_per_cycle(core, far)
    later += blocks * geo.sets * panel_reads * block / bytes_per_cycle(core, far)
    return groups * parts * first, groups * parts * later


def _result_cycles(geo: Im2colGeometry, core: Core, share: float) -> float:
    """Cycles of a result beyond L2, whose rows begin and end within lines that are read first."""
    w = geo.workload
    size = w.n * w.co * w.oh * w.ow * ITEM_BYTES
    level = level_holding(core, size, threads=1)
    return 0.0 if level in (1, 2) else share * size / core.line_bytes * line_cycles(core, level, 2)


def _packing_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles of copying all windows, and of padding or parting rows before."""
    w = geo.workload
    image = w.n * w.ci * w.h * w.w * ITEM_BYTES
    source = level_holding(core, image, threads)
    arrival = 0.0 if source in (1, 2) else EXPOSED * image / bytes_per_cycle(core, source)
    return geo.images * geo.blocks_h * _copying_cycles(geo, core, threads) + arrival


def _copying_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles of copying the windows of a block of rows, or of reading them in place."""
    w, c = geo.workload, geo.config
    if geo.in_place:
        return geo.pixel_tiles * geo.k * _row_cycles(geo, core, threads, w.h * w.w, ROW_CYCLES)
    kernel = kernel_of(core, c.mr, c.nr, w.types)
    lines = geo.panels_bytes * geo.sets / core.line_bytes
    beyond = geo.panels_bytes > L2_PLANNED * l2_bytes(core, threads)
    vectors = geo.k * geo.copies(kernel.lanes)
    near = geo.on_demand or 2 * geo.panels_bytes <= share_bytes(core, 1, threads)
    level = 1 if near else beyond_l2(core) if beyond else 2
    work = _copy_cycles(geo, kernel, core) * vectors + line_cycles(core, level, PANEL_LINES * lines)
    if geo.has_slab:
        rows, phases, columns = geo.slab_size
        vectors = geo.ci * rows * phases * math.ceil(columns / kernel.lanes)
        per_vector = vector_cycles(core, PART_SHUFFLES if w.stride[1] > 1 else 0.0)
        in_l1 = 2 * geo.slab_bytes <= share_bytes(core, 1, threads)
        lines = kernel.lanes * ITEM_BYTES / core.line_bytes
        work += vectors * (per_vector + line_cycles(core, 1 if in_l1 else 2, lines))
    return work


def _row_cycles(geo: Im2colGeometry, core: Core, threads: int, pixels: int, near: float) -> float:
    """Cycles of a part of a row of an image of so many pixels, on the way to the next channel's."""
    if ITEM_BYTES * pixels < FAR_APART_BYTES:
        return 0.0
    w = geo.workload
    touched = ITEM_BYTES * (geo.ci * w.h * w.w + geo.co * w.oh * w.ow)
    return near if touched <= L2_PLANNED * l2_bytes(core, threads) else FAR_ROW_CYCLES


def _copy_cycles(geo: Im2colGeometry, kernel: Microkernel, core: Core) -> float:
    """Cycles of a vector copied into a panel: what a shift saves are loads, not stores.

    Golden Cove with 64-byte vectors, seven 3x3 and 5x5 layers from 14x14 to 224x224, the sides
    taking turns: shifts took 0.98 to 1.02 of the layer's time with plain loads. It stores one
    vector a cycle, and unaligned loads, which cross a line each, still come as fast as that. Where
    a load takes two cycles (Cortex-A53 and A55), loads limit, and shifts are predicted to help.
    """
    if not geo.shifts:
        return vector_cycles(core)
    bytes_ = ITEM_BYTES * kernel.lanes
    loads = (1 + bytes_ / core.line_bytes) / core.loads_per_cycle
    stores = 1 / core.stores_per_cycle
    taps = geo.workload.kw
    pipes = core.isa.shifts_per_cycle or core.fma_per_cycle
    shifted = max(loads / taps, stores, (taps - 1) / taps / pipes)
    return vector_cycles(core) * shifted / max(loads, stores)


@functools.lru_cache(maxsize=1)
def _layout_cycles(workload: Conv2dWorkload, core: Core, threads: int) -> float:
    """Cycles of a thread's part of moving images between NCHW and the neighbours' layout."""
    w = workload
    moved = w.co * w.oh * w.ow + (w.ci * w.h * w.w if w.ci >= FEW_CHANNELS else 0)
    return transform_cycles(w.n * moved / threads, core, threads, w.types.a)
