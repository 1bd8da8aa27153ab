"""Cycles of data on its way: operands that caches and memory deliver, and what only moves.

Where an operand is, what of it a cache has lost, and what its way adds to the computation that
hides the rest. Data that moves without computing is copied, packed, padded or transposed: a vector
takes what its load, its store or its shuffles take on their ports, whichever is longest, and each
cache line that comes or goes what the level beyond the first one delivers. Packing, transposition
and padding of all algorithms are made of these two; the figures that they were checked against
stand where they are used.
"""

from __future__ import annotations

import functools
import math

from tvm_blislike.hardware import Cache, Core
from tvm_blislike.microkernels import Microkernel
from tvm_blislike.model.estimate import Placed

# Share of a stream from L2 that shows although FMAs take longer: fills of L1 are in the way of its
# loads. Golden Cove: 14x14 images where 32 filters pass by take 1.07 times as long as where 13
# pixels do; Zen 4: 0.05 to 0.16 for blocks of 12x16 to 6x64 whose panels exceed L1.
EXPOSED_L2 = 0.1
# The same of tiles: 3x3 layers of 64, 128 and 256 channels take as long as their products and 48
# bytes of L2 a cycle, one after the other, where 36 of a core's file are what vectors get.
EXPOSED_TILES = 0.75
# Part of L1 that keeps a panel while others pass by; of more panels ever less stays, beyond all of
# L1 nothing. 768x768x768 by 5x16 blocks with kc = 384, whose panels are 0.98 of L1, runs no faster
# than where all streams from L2: 41.5 GMAC/s, 6x16 blocks with all of k 45.1 (Zen 3).
L1_PLANNED = 0.7
# Part of the time that L2 delivers panels that hides nothing of what comes from beyond it. 512
# channels of 7x7 to as many by F(2, 3), whose weights take 1.4 times as long as their products
# (Emerald Rapids): 8x32 blocks, 0.42 of whose time L2 is busy, hide 0.70 of it, 6x64 blocks, with
# 0.49, hide 0.60; F(6, 3) of 512 channels of 28x28, with 67 MB, hides less.
L2_BUSY_LOSS = 0.8
# Part of a stream over half of a cache that is there when it comes round, from which on all of it
# is had: sets fill unevenly. A guest of Zen 4 that had 32 MiB of L3 got 0.84 of its speed over
# 16 MiB; one of Zen 3 keeps 0.25 to 0.6 of that stream, and has 4 to 10 of its 32 MiB.
_WHOLE = 0.7
# Share of the lines in flight that a core has asked for before it needs the first of them.
IN_TIME = 0.5
# After which `missing_share` no longer changes.
_NEWTON_STEPS = 8
# What a pass takes beyond that: rows that start anywhere, addresses, ends of loops. Measured beside
# what these ports and levels need, in cycles per vector: Golden Cove 4.7 for 2.8 (copied into
# panels in L2), 6.65 for 4 (16x16 blocks transposed in registers); Zen 4 2.8 for 2 (panels in L1),
# 5 for 4.1.
LOSS = 1.4
# Share of the rate at which a level beyond L2 is read that reads and writes by turns get (Golden
# Cove: 30 GB/s of a copy; depthwise layers of 6 MB, whose lines are read before they are written).
BY_TURNS = 0.75


@functools.cache
def bytes_per_cycle(core: Core, level: int, threads: int = 1) -> float:
    """Return what a thread gets from a cache level (0: memory), in bytes per cycle.

    Parameters
    ----------
    threads : int
        Threads that read at the same time, each something of its own: they share what the level
        delivers. Where all of them read the same, one fetches it for the others: 1.
    """
    cache = core.cache(level)
    if cache is None:
        one, every = core.memory_core_gb_per_s / core.ghz, core.memory_gb_per_s / core.ghz
        return min(one, every / max(1, threads))
    if cache.all_bytes_per_cycle is None:
        return cache.bytes_per_cycle
    return min(cache.bytes_per_cycle, cache.all_bytes_per_cycle / sharers(core, cache, threads))


def sharers(core: Core, cache: Cache, threads: int) -> int:
    """Return how many of `threads` threads share one instance of a cache, 1 or more.

    Neighbouring cores run threads first; once all have one, each gets another
    (hardware threads of a core, or several that take turns).
    """
    per_core = math.ceil(threads / core.cores)
    return max(1, min(cache.shared_by, threads, core.cores) * per_core)


@functools.cache
def share_bytes(core: Core, level: int, threads: int) -> int:
    """Return a thread's share of a cache level in bytes, 0 where the core lacks it."""
    cache = core.cache(level)
    return 0 if cache is None else _had_bytes(cache) // sharers(core, cache, threads)


def _had_bytes(cache: Cache) -> int:
    """Return what of a cache is had: all, or what is left where other guests use it, too."""
    if cache.kept_of_half >= _WHOLE:
        return cache.bytes
    return int(cache.kept_of_half * (cache.bytes // 2))


def level_holding(core: Core, size: int, threads: int) -> int:
    """Return the first cache level whose share holds `size` bytes, 0 for memory."""
    for share, level in _shares(core, threads):
        if size <= share:
            return level
    return 0


@functools.cache
def _shares(core: Core, threads: int) -> tuple[tuple[int, int], ...]:
    """Return a thread's share of each cache, with the level."""
    return tuple((share_bytes(core, c.level, threads), c.level) for c in core.caches)


def l2_bytes(core: Core, threads: int) -> int:
    """Return a thread's share of the second-level cache, or of the first if there is no other."""
    return share_bytes(core, 2, threads) or share_bytes(core, 1, threads)


def missing_share(size: float, room: float) -> float:
    """Return the share of what passes by again and again that a cache has lost in between.

    A cache that replaces lines at random keeps one while m * size others come with probability
    exp(-m * size / room), which is 1 - m. A set a little too large is lost in part, not altogether.

    Parameters
    ----------
    size : float
        Bytes of everything that passes between two uses.
    room : float
        Bytes of the cache that it may take.
    """
    if size <= room:
        return 0.0
    if room <= 0:
        return 1.0
    share, ratio = 1.0, size / room
    for _ in range(_NEWTON_STEPS):
        kept = math.exp(-share * ratio)
        share -= (1.0 - share - kept) / (kept * ratio - 1.0)
    return share


def lost_share(panels: float, room: float) -> float:
    """Return the share of a panel that stays in L1 which is lost while others pass by.

    Parameters
    ----------
    panels : float
        Bytes of all of them.
    room : float
        Bytes of the cache.
    """
    if panels >= room:
        return 1.0
    return max(0.0, panels / room - L1_PLANNED) / (1.0 - L1_PLANNED)


@functools.cache
def late_share(core: Core, lines: int) -> float:
    """Return the share of lines asked for at once, from beyond L1, that a core waits for.

    Those of different rows, which no prefetcher follows: the first ones come in time.
    """
    return max(0.0, 1 - core.lines_in_flight * IN_TIME / lines)


def apart_cycles(core: Core, rows: int, row_bytes: float) -> float:
    """Return the cycles that a block waits for bytes from L2 of each of several rows.

    Prefetchers bring a line's neighbours, not the next row's line, and the lines of all rows are
    asked for at once, as k reaches the next ones. What `element_load_cycles` of 0.09 stood for on
    Emerald Rapids, whose loads of elements in L1 cost nothing: products of V take 3 to 4 % less
    time with 7x48 than with 13x32 blocks, of pixels with a stride 5x64 blocks 6 % less than 14x32.

    Parameters
    ----------
    rows : int
        Rows of the block whose lines are no neighbours.
    row_bytes : float
        Bytes of each.
    """
    return late_share(core, rows) * rows * row_bytes / bytes_per_cycle(core, 2)


def waits_for_rows(core: Core, kernel: Microkernel) -> bool:
    """Return whether calls wait for whole rows of A in place as they do for parts of rows.

    Where multiply-adds read A themselves there is no need to: half as many instructions get twice
    as far ahead. Zen 4, 1024 bytes or words of fp32 a row: blocks of 27x16 take 1.03 to 1.05 times
    as long as 13x32 blocks in bytes, whose broadcasts are instructions, and 0.99 in fp32.
    """
    return not (core.follows_rows or kernel.folds_a)


def uses_as_it_comes(core: Core, rows: int) -> bool:
    """Return whether calls of so many rows use panels as fast as they come from memory.

    Where one call uses each, asking for the next one brings it no sooner then, and pushes out what
    prefetchers have brought. Zen 4, time without over time with requests: layers of one pixel with
    0.25 to 8 MB of weights 0.6 to 0.75, 512 channels of 7x7 by Winograd in 4x64 blocks 0.63 (fp32)
    and 0.76 (words), of 2x2 in 4x16 blocks 0.73; of 3x3 in 9x16 blocks 1.14, of 4x4 in 16x16 1.21.
    Within ResNet-18 those of 7x7 take the same with and without. Not where requests from several
    places at a time (`prefetch_streams`) have prefetchers bring more than they do by themselves.
    """
    if core.prefetch_streams > 1:
        return False
    used = rows * core.line_bytes / (core.vector_bits // 8 * core.fma_per_cycle)
    return used <= core.line_bytes / bytes_per_cycle(core, 0)


def beyond_l2(core: Core) -> int:
    """Return the level behind L2: memory on most boards."""
    return 3 if core.cache(3) else 0


def beyond_l2_cycles(core: Core, level: int) -> float:
    """Return the cycles per byte that a stream from a level adds to the FMAs: none up to L2."""
    return 0.0 if level in (1, 2) else 1.0 / bytes_per_cycle(core, level)


def placed(core: Core, operand: str, size: int, threads: int, level: int | None = None) -> Placed:
    """Return an entry of a footprint: an operand of `size` bytes and where it is.

    Parameters
    ----------
    level : int, optional
        The cache level; by default the first one whose share holds the operand.
    """
    at = level_holding(core, size, threads) if level is None else level
    share = share_bytes(core, at, threads)
    return operand, at, size, size / share if share else 0.0


def l2_cycles(arrival: float, issue: float, kernel: Microkernel | None = None) -> float:
    """Return the cycles that operands on their way from L2 add to those of the instructions.

    Tiles wait for theirs: the next ones are loaded into the registers that products still read.
    """
    if kernel is not None and kernel.tiles is not None:
        return EXPOSED_TILES * arrival
    return max(arrival - issue, EXPOSED_L2 * arrival)


def weights_cycles(
    first: float, later: float, passes: float, hidden: float, compute: float
) -> float:
    """Cycles that weights add, all of which pass by in each of several passes.

    Parameters
    ----------
    first, later : float
        Cycles of their way in the first pass, from memory, and in the others, from the level that
        holds them.
    passes : float
        How often they pass by, 1 or more.
    hidden : float
        Share of their way that prefetching hides behind computation of equal length.
    compute : float
        Cycles of the computation of one pass.
    """
    ways = ((1.0, first), (passes - 1, later))
    return sum(count * (way - hidden * min(way, compute)) for count, way in ways)


def vector_cycles(core: Core, shuffles: float = 0.0, stores: float = 1.0) -> float:
    """Return the cycles of a vector loaded, shuffled and stored, its lines in L1.

    Parameters
    ----------
    shuffles : float
        Instructions that move elements between lanes.
    stores : float
        Stores per load.
    """
    shuffling = shuffles / shuffles_per_cycle(core)
    return LOSS * max(1 / core.loads_per_cycle, stores / core.stores_per_cycle, shuffling)


def line_cycles(core: Core, level: int, lines: float = 1.0) -> float:
    """Return the cycles that lines take to come from a level or to go there, none in L1."""
    if level == 1:
        return 0.0
    rate = bytes_per_cycle(core, level) * (1.0 if level == 2 else BY_TURNS)
    return LOSS * lines * core.line_bytes / rate


def transposing_cycles(core: Core, dtype: str) -> float:
    """Return the cycles per vector of transposing a square block in registers, in L2 or nearer."""
    return vector_cycles(core, math.log2(core.lanes(dtype)))


def shuffles_per_cycle(core: Core) -> float:
    """Return the instructions that move elements between lanes started per cycle.

    One where they have a unit of their own, else as many as FMAs (`Isa.shifts_per_cycle`).
    """
    return 1.0 if core.isa.shifts_per_cycle else core.fma_per_cycle
