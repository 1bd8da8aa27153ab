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
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import (
    BATCH,
    FILTERS,
    ITEM_BYTES,
    Im2colGeometry,
)
from tvm_blislike.cost_models.conv2d_im2col.packing import (
    EXPOSED,
    L2_PLANNED,
    arrival_cycles,
    least_copying_cycles,
    packing_cycles,
    row_cycles,
)
from tvm_blislike.cost_models.conv2d_im2col.slicing import INPUT_STATIONARY
from tvm_blislike.cost_models.issue import CALL_CYCLES, FMA_EFFICIENCY, step_cycles
from tvm_blislike.cost_models.moving import (
    EXPOSED_L2,
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
from tvm_blislike.cost_models.roofline import ROUNDED_DOWN, clock_hz, finish, fork_cycles
from tvm_blislike.cost_models.transforms import transform_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of
from tvm_blislike.model.estimate import NEIGHBOURS, Estimate
from tvm_blislike.model.workload import Conv2dWorkload

# Times of a store's nominal cycles that one of a block of C takes; shuffles that transpose a vector
# of the block before.
STORE_LOSS = 1.5
TURN_SHUFFLES = 4.0
# The same of the row of pixels that a filter's column of a block becomes: a part of a line, which
# is read before it is written.
STORED_ROW_CYCLES = 12.0
# Images of fewer channels are a model's input, which is NCHW.
FEW_CHANNELS = 8
# Values of some fields of a configuration.
_Key = tuple[int | str, ...]


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


def least_of(workload: Conv2dWorkload, config: Im2colConfig, core: Core, threads: int) -> float:
    """Return seconds that no estimate with the block, rows and packing of a configuration is below.

    Whatever its sets of channels and filters and its order of loops: candidates that have the same
    of these are many, and few of them are worth an estimate.
    """
    known, key = _known(workload, core, threads).floors, _shape_key(config)
    if key not in known:
        cycles = _least_cycles(Im2colGeometry(workload, config), core, threads)
        known[key] = ROUNDED_DOWN * cycles / clock_hz(core)
    return known[key]


def _least_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles of an estimate's terms without what sets and orders may add to them.

    All threads share equally, panels are in L1, and the products hide as much as they ever do.
    """
    kernel = kernel_of(core, geo.config.mr, geo.config.nr, geo.workload.types)
    rate = bytes_per_cycle(core, 2)
    calls = sum(
        tile.number
        * (
            max(tile.issue, tile.useful)
            + EXPOSED_L2 * geo.k * ITEM_BYTES * min(tile.filters, tile.windows) / rate
            + CALL_CYCLES
            + tile.stores
        )
        for tile in _tiles(geo, kernel, core, threads)
    )
    packing = arrival_cycles(geo, core, threads)
    packing += geo.images * geo.blocks_h * least_copying_cycles(geo, core, threads)
    weights = ITEM_BYTES * geo.workload.co * geo.k
    first = min(
        weights / bytes_per_cycle(core, 0), weights / threads / bytes_per_cycle(core, 0, threads)
    )
    first /= threads if geo.workload.groups > 1 else 1
    hidden = first + _result_cycles(geo, core, 1 / threads)
    fork = fork_cycles(core) if threads > 1 else 0.0
    moving = _layout_cycles(geo.workload, core, threads)
    return (calls + packing) / threads + EXPOSED * hidden + fork + moving


def _of_any_set(geo: Im2colGeometry, core: Core, threads: int) -> tuple[dict[str, float], float]:
    """Return cycles of computing by cause, and of packing: the same however many filters a set has.

    Two thirds of what is estimated of a layer differs in that alone.
    """
    known, config = _known(geo.workload, core, threads).of_any_set, geo.config
    key = (*_shape_key(config), config.kc, config.loop_order)
    if key not in known:
        kernel = kernel_of(core, config.mr, config.nr, geo.workload.types)
        calls = _calls(geo, kernel, core, threads)
        calls["sums"] = _sums_cycles(geo, core, threads)
        known[key] = calls, packing_cycles(geo, core, threads)
    return known[key]


def _shape_key(config: Im2colConfig) -> _Key:
    """Return the fields that tell register blocks, blocks of rows and packing apart."""
    return config.mr, config.nr, config.columns, config.oh_block, config.packing


@dataclass
class _Known:
    """What was found out about a layer, by the fields of a configuration that it depends on."""

    tiles: dict[_Key, tuple[_Tile, ...]] = field(default_factory=dict)
    floors: dict[_Key, float] = field(default_factory=dict)
    of_any_set: dict[_Key, tuple[dict[str, float], float]] = field(default_factory=dict)


@functools.lru_cache(maxsize=1)
def _known(_workload: Conv2dWorkload, _core: Core, _threads: int) -> _Known:
    """Return what is known of a layer: configurations of one follow each other."""
    return _Known()


def workspace_bytes(workload: Conv2dWorkload, config: Im2colConfig, threads: int) -> int:
    """Return the size of panels, partial sums and padded rows of all threads."""
    geo = Im2colGeometry(workload, config)
    sums = geo.sums_bytes
    if geo.parallel_loop(threads) == FILTERS:
        sums = math.ceil(sums * geo.block_tiles / geo.filter_tiles)
    return threads * (geo.panels_bytes + sums + geo.slab_bytes)


def _filters_bytes(geo: Im2colGeometry) -> int:
    return ITEM_BYTES * math.prod(geo.packed_shape)


class _Tile(NamedTuple):
    """Tiles of one size: how many, filters and windows of each, and cycles of one call."""

    number: int
    filters: int
    windows: int
    issue: float
    useful: float
    stores: float


def _tiles(geo: Im2colGeometry, kernel: Microkernel, core: Core, threads: int) -> tuple[_Tile, ...]:
    """Return the whole and the cut tiles of all products."""
    known, key = _known(geo.workload, core, threads).tiles, _shape_key(geo.config)
    if key not in known:
        known[key] = tuple(_sized_tiles(geo, kernel, core, threads))
    return known[key]


def _sized_tiles(
    geo: Im2colGeometry, kernel: Microkernel, core: Core, threads: int
) -> Iterator[_Tile]:
    blocks = geo.images * geo.blocks_h
    for count_f, filters in _sizes(geo.co, geo.filters):
        for count_p, windows in _sizes(geo.pixels, geo.windows):
            number = blocks * count_f * count_p
            if number == 0:
                continue
            height, width = (windows, filters) if geo.filters_across else (filters, windows)
            vectors = math.ceil(width / kernel.lanes)
            a_loads = kernel.a_loads(height, "panel", core.in_order)
            issue = geo.k * step_cycles(core, height, vectors, a_loads)
            useful = geo.k * height * width / kernel.lanes / core.fma_per_cycle / FMA_EFFICIENCY
            stores = _store_cycles(geo, core, height, vectors, threads)
            yield _Tile(number, filters, windows, issue, useful, stores)


def _calls(geo: Im2colGeometry, kernel: Microkernel, core: Core, threads: int) -> dict[str, float]:
    """Cycles of all micro-kernel calls on one thread, by what limits them."""
    total = {"fma": 0.0, "loads and edges": 0.0, "L2": 0.0, "calls": 0.0}
    rate = bytes_per_cycle(core, 2)
    for tile in _tiles(geo, kernel, core, threads):
        arrival = geo.k * _l2_bytes(geo, core, tile.filters, tile.windows)
        arrival /= rate
        total["fma"] += tile.number * tile.useful
        total["loads and edges"] += tile.number * max(0.0, tile.issue - tile.useful)
        total["L2"] += tile.number * l2_cycles(arrival, tile.issue)
        total["calls"] += tile.number * (geo.sets * CALL_CYCLES + tile.stores)
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
    row = row_cycles(geo, core, threads, w.oh * w.ow, STORED_ROW_CYCLES)
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


@functools.lru_cache(maxsize=1)
def _layout_cycles(workload: Conv2dWorkload, core: Core, threads: int) -> float:
    """Cycles of a thread's part of moving images between NCHW and the neighbours' layout."""
    w = workload
    moved = w.co * w.oh * w.ow + (w.ci * w.h * w.w if w.ci >= FEW_CHANNELS else 0)
    return transform_cycles(w.n * moved / threads, core, threads, w.types.a)
