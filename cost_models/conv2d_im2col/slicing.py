"""Convolution slicing: tiles, their places in the caches, and which operand stays, after SConv.

The Convolution Slicing Analysis of Ferrari, Sousa, Pereira, de Carvalho, Amaral, Moreira and
Araujo, "Advancing Direct Convolution using Convolution Slicing Optimization and ISA Extensions",
ACM TACO 20(4), 2023, section 4.1, equations 1 to 14. No im2col matrix exists: an input tile is
`n_win` windows of the image (kh x kw pixels of `n_c` channels), packed when it is needed; a filter
tile is `n_f` filters of as many channels; a micro-kernel call makes n_win x n_f outputs from one
of each.

    for each set of n_c channels
      for each k3 stationary tiles               from memory, then in L3
        for each k2 streamed tiles               in L2; WS packs these input tiles here
          for each of the k3 stationary tiles    in L1; IS packs this input tile here
            for each of the k2 streamed tiles    micro-kernel

Stationary are the input tiles (IS) or the filter tiles, the weights (WS); a cost model counts
cache lines for both.

Beyond the paper:

- The largest n_c, k2 and k3 that fit come from a binary search, its future work, in place of
  halving. They are then evened out, keeping the number of sets: 64 channels of which 19 fit are
  four sets of 16, not 19 + 19 + 19 + 7.
- Where it divides, `#IN / k3` for instance, parts of tiles and of sets are rounded up: a last set
  of one tile still passes over all tiles of the other operand.
- Absent levels: tiles that would come from there come from the next level, or from memory, which
  bounds nothing.
- Costs per line follow from the bandwidths of `moving`; the paper does not print its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm_blislike.cost_models.moving import bytes_per_cycle, share_bytes
from tvm_blislike.hardware import Cache, Core
from tvm_blislike.model.workload import Conv2dWorkload

INPUT_STATIONARY = "IS"
WEIGHT_STATIONARY = "WS"
# alpha, beta, gamma: what tiles may take of L1, L2 and L3 (section 7.1 of the paper). The rest is
# for packing and prefetching.
CACHE_FRACTIONS = (0.9, 0.9, 0.9)


class Tiles(NamedTuple):
    """Tiles of an operand for one set of channels, the last one perhaps smaller."""

    count: int
    bytes: int

    @property
    def all_bytes(self) -> int:
        """Bytes of all of them."""
        return self.count * self.bytes


@dataclass(frozen=True)
class Slicing:
    """Tiles of a convolution, how many of them are in which cache, and what they cost.

    Parameters
    ----------
    schedule : str
        `INPUT_STATIONARY` or `WEIGHT_STATIONARY`.
    n_win, n_f, n_c : int
        Windows of an input tile, filters of a filter tile, channels of both.
    k2 : int
        Streamed tiles in L2: filter tiles if the input is stationary.
    k3 : int
        Stationary tiles in L3, of which one is in L1.
    inputs, filters : Tiles
        Number and bytes of the tiles for one set of channels.
    out_bytes : int
        Bytes of the results of one micro-kernel call.
    channel_sets : int
        Sets of n_c channels, the last one perhaps smaller.
    repeats : int
        Groups times images: each is sliced alike, one after the other.
    lines : tuple of int
        Cache lines from memory (N_DRAM), L3 and L2 for the whole convolution.
    cycles : float
        C_TOTAL: what they cost.
    """

    schedule: str
    n_win: int
    n_f: int
    n_c: int
    k2: int
    k3: int
    inputs: Tiles
    filters: Tiles
    out_bytes: int
    channel_sets: int
    repeats: int
    lines: tuple[int, int, int]
    cycles: float

    @property
    def footprint(self) -> tuple[int, int, int]:
        """Bytes of tiles in L1, L2 and L3: the left sides of equations 2, 4 and 5."""
        operands = _ordered(self.schedule, self.inputs, self.filters)
        return (
            _second_level(*operands, self.out_bytes, 1),
            _second_level(*operands, self.out_bytes, self.k2),
            _third_level(*operands, self.out_bytes, self.k2, self.k3),
        )


def slicing(
    workload: Conv2dWorkload,
    core: Core,
    mr: int,
    nr: int,
    *,
    threads: int = 1,
    fractions: tuple[float, float, float] = CACHE_FRACTIONS,
) -> Slicing:
    """Return the cheaper of `slicings`: input stationary unless weight stationary costs less."""
    return min(
        slicings(workload, core, mr, nr, threads=threads, fractions=fractions),
        key=lambda choice: choice.cycles,
    )


def slicings(
    workload: Conv2dWorkload,
    core: Core,
    mr: int,
    nr: int,
    *,
    threads: int = 1,
    fractions: tuple[float, float, float] = CACHE_FRACTIONS,
    n_c: int | None = None,
) -> tuple[Slicing, Slicing]:
    """Return the input-stationary and the weight-stationary slicing of a convolution.

    Parameters
    ----------
    workload : Conv2dWorkload
        The convolution. Groups are sliced one by one, images too.
    core : Core
        Caches of any number of levels.
    mr, nr : int
        Block of the micro-kernel: mr filters (`n_f`) by nr windows (`n_win`), neighbours in a row
        of an NCHW image.
    threads : int
        Threads that share the caches.
    fractions : tuple of float
        alpha, beta, gamma: part of L1, L2 and L3 for tiles. Where not even tiles of one channel
        fit, n_c, k2 or k3 is 1 and the footprint exceeds the cache.
    n_c : int, optional
        Channels of a tile, whatever L1 holds.

    Raises
    ------
    ValueError
        When mr or nr is below 1, or a fraction is not in (0, 1].
    """
    if min(mr, nr) < 1:
        raise ValueError(f"a block of {mr} x {nr}: mr and nr must be at least 1")
    if not all(0 < fraction <= 1 for fraction in fractions):
        raise ValueError(f"fractions {fractions}: each must be above 0 and at most 1")
    l1, l2, l3 = (
        _capacity(core, level, threads) * part
        for level, part in zip((1, 2, 3), fractions, strict=True)
    )
    tiles = _tiles(workload, mr, nr, l1, n_c)
    return (
        _scheduled(INPUT_STATIONARY, tiles, core, l2, l3),
        _scheduled(WEIGHT_STATIONARY, tiles, core, l2, l3),
    )


def _tiles(
    workload: Conv2dWorkload, n_f: int, n_win: int, room: float, n_c: int | None
) -> dict[str, Any]:
    """Return the fields of `Slicing` that do not depend on the schedule."""
    in_c, out_c = workload.ci // workload.groups, workload.co // workload.groups
    item = workload.types.a_bytes  # DT
    window = workload.kh * workload.kw * item
    out_bytes = n_win * n_f * item  # (1)
    if n_c is None:
        n_c = _largest_even(in_c, lambda c: (n_win + n_f) * c * window + out_bytes <= room)  # (2)
    windows = workload.oh * workload.ow
    return {
        "n_win": n_win,
        "n_f": n_f,
        "n_c": n_c,
        "inputs": Tiles(math.ceil(windows / n_win), n_win * n_c * window),  # (3), (1)
        "filters": Tiles(math.ceil(out_c / n_f), n_f * n_c * window),  # (3), (1)
        "out_bytes": out_bytes,
        "channel_sets": math.ceil(in_c / n_c),
        "repeats": workload.groups * workload.n,
    }


def _scheduled(
    schedule: str, tiles: dict[str, Any], core: Core, room2: float, room3: float
) -> Slicing:
    """Place the tiles in L2 and L3 and count what they cost."""
    out_bytes = tiles["out_bytes"]
    kept, passed = _ordered(schedule, tiles["inputs"], tiles["filters"])

    def fits_l2(k2: int) -> bool:
        return _second_level(kept, passed, out_bytes, k2) <= room2  # (4)

    def fits_l3(k3: int) -> bool:
        return _third_level(kept, passed, out_bytes, k2, k3) <= room3  # (5)

    k2 = _largest_even(passed.count, fits_l2)
    k3 = _largest_even(kept.count, fits_l3)
    lines = tuple(
        math.ceil(tiles["repeats"] * tiles["channel_sets"] * size / core.line_bytes)
        for size in _loaded_bytes(kept, passed, k2, k3)
    )
    cycles = sum(n * line_cycles(core, at) for n, at in zip(lines, (0, 3, 2), strict=True))  # (6)
    return Slicing(schedule=schedule, k2=k2, k3=k3, lines=lines, cycles=cycles, **tiles)


def _ordered(schedule: str, inputs: Tiles, filters: Tiles) -> tuple[Tiles, Tiles]:
    """Return stationary and streamed operand; equations 4 to 14 are written for IS."""
    return (inputs, filters) if schedule == INPUT_STATIONARY else (filters, inputs)


def _second_level(kept: Tiles, passed: Tiles, out_bytes: int, k2: int) -> int:
    """Bytes of a stationary tile and of k2 streamed ones with their results: equation 4."""
    return kept.bytes + k2 * (passed.bytes + out_bytes)


def _third_level(kept: Tiles, passed: Tiles, out_bytes: int, k2: int, k3: int) -> int:
    """Bytes of k3 stationary and k2 streamed tiles with all their results: equation 5."""
    return k3 * kept.bytes + k2 * passed.bytes + k2 * k3 * out_bytes


def _loaded_bytes(kept: Tiles, passed: Tiles, k2: int, k3: int) -> tuple[int, int, int]:
    """Return what one set of channels loads from memory, L3 and L2, before division by CL."""
    cold = kept.all_bytes + passed.all_bytes  # (8), N_DRAM1
    more_passed = math.ceil(passed.count / k2) - 1  # (12), FS_fit
    overflow = min(more_passed, 1)  # (9), FS_fitmin: 0 where L2 holds all streamed tiles
    more_kept = math.ceil(kept.count / k3) - 1  # (10), IN_fit
    again = overflow * more_kept * passed.all_bytes  # (11), N_DRAM2
    return (
        cold + again,  # (7), N_DRAM
        more_passed * kept.all_bytes,  # (13), N_L3
        (kept.count - 1) * passed.all_bytes,  # (14), N_L2: the first time they come from memory
    )


def _largest_even(limit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `limit` that fits, evened out over the sets; at least 1."""
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return math.ceil(limit / math.ceil(limit / low))


def line_cycles(core: Core, level: int) -> float:
    """Return the cycles that a line from a cache level (0: memory) takes to arrive in L1."""
    cache = _nearest(core, level) if level else None
    return core.line_bytes / bytes_per_cycle(core, cache.level if cache else 0)


def _nearest(core: Core, level: int) -> Cache | None:
    """Return the cache of that level, or else the next larger one, None for memory."""
    return next((cache for cache in core.caches if cache.level >= level), None)


def _capacity(core: Core, level: int, threads: int) -> float:
    """Bytes that one thread has of a level; without end where only memory is left."""
    cache = _nearest(core, level)
    return share_bytes(core, cache.level, threads) if cache else math.inf
