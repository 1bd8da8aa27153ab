"""What a cache has for a block of an operand: its ways, those of them that others take.

Rows that lie a power of two apart share sets, whose ways are few. All sizes in bytes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tvm_blislike.cost_models.moving import sharers
from tvm_blislike.hardware import LINE_BYTES, Cache, Core

# A block that no cache holds streams from memory. The larger it is the less often the other
# operand is packed again, but beyond a few thousand columns that gains nothing, while its pages
# must stay within reach of the TLB: 4 MiB is what 1024 entries for 4 KiB pages cover
# (Cortex-A57 and A72). With kc = 340 it gives nc = 3084; BLIS uses 3072 on these cores.
ABSENT_CACHE_BYTES = 4 * 2**20

# Stands in where a core lists no cache at all: the smallest L1 among the described cores.
_ASSUMED_L1 = Cache(level=1, bytes=32768, ways=4, line_bytes=LINE_BYTES, bytes_per_cycle=16)


def room_bytes(core: Core, taken: float, threads: int) -> float:
    """Return what a block may take of L2, or of L1 where there is no other.

    Parameters
    ----------
    taken : float
        Bytes of what else stays in it or passes through.
    threads : int
        Threads at work; those that share a cache divide it.
    """
    first, second, _ = shares(core, threads)
    return room(second or first, taken)


class Share(NamedTuple):
    """One thread's part of a cache: all its ways, but of each way only its part.

    Dividing sets rather than ways leaves every thread the associativity that the model needs;
    the capacity is the same. A physically indexed cache mixes the threads over all sets anyway.
    """

    level: int
    ways: int
    way_bytes: float
    fills_on_eviction: bool
    bytes_per_cycle: float

    @property
    def bytes(self) -> float:
        """Bytes of all ways."""
        return self.ways * self.way_bytes


def shares(core: Core, threads: int) -> tuple[Share, Share | None, Share | None]:
    """Return the first three levels; levels are counted, so a missing number leaves no gap."""
    caches = [c for c in sorted(core.caches, key=lambda c: c.level) if c.bytes > 0]
    shares = [_share(c, sharers(core, c, threads)) for c in caches or [_ASSUMED_L1]]
    first, second, third = (*shares, None, None)[:3]
    return first, second, third


def _share(cache: Cache, threads: int) -> Share:
    """Return a thread's part where so many use one instance."""
    ways = max(cache.ways, 1)
    evictions = cache.policy in ("exclusive", "victim")
    way_bytes = cache.bytes / ways / threads
    return Share(cache.level, ways, way_bytes, evictions, cache.bytes_per_cycle)


def inner_block(share: Share, stationary: int, streaming: int) -> float:
    """Return the bytes per row of a micro-panel that L1 allows (kc * S for B3A2C0).

    Parameters
    ----------
    share : Share
        First-level cache.
    stationary, streaming : int
        Rows of the micro-panel that stays (nr for B3A2C0) and of the one that streams (mr).
    """
    ways = (share.ways - 1) * streaming // (stationary + streaming)  # ways_Ar of the paper
    if ways >= 1:
        return ways * share.way_bytes / streaming
    if share.ways >= 2:
        # The paper's floor gives 0: always with 2 ways (Cortex-A57, A72), and with 4 when
        # nr > 2 mr. Then the stationary panel gets all ways but one, and the streaming panel
        # shares the last one with C: each of its lines is used once per pass, and C is touched
        # only when a micro-kernel begins and ends.
        return min((share.ways - 1) * share.way_bytes / stationary, share.way_bytes / streaming)
    # Direct-mapped: nothing can be set apart, so plan for half of the cache.
    return share.bytes / 2 / (stationary + streaming)


def room(share: Share | None, taken: float) -> float:
    """Return the bytes that a block may take in the second or third level.

    Parameters
    ----------
    share : Share or None
        The cache; None where the core has none.
    taken : float
        Bytes of what else is planned to be there; C and the rest pass through one way more.
    """
    if share is None:
        return ABSENT_CACHE_BYTES
    ways = share.ways - 1 - -(-taken // share.way_bytes)
    if ways >= 1:
        return ways * share.way_bytes
    return max(share.bytes - taken, 0) / 2  # too few ways to set one apart: as in a direct-mapped


def room_text(share: Share | None, taken: float) -> str:
    """Say which ways of which cache `room` gives away."""
    if share is None:
        return "no cache: what the TLB reaches"
    others = math.ceil(taken / share.way_bytes)
    left = share.ways - 1 - others
    if left < 1:
        return f"L{share.level}: half of what is left of {share.ways} ways"
    return f"L{share.level}: {left} of {share.ways} ways, 1 left to C, {others} to what is nearer"


def held(share: Share | None, smaller_level: int) -> int:
    """Return how much of `share` copies of the next smaller level take.

    A cache that is filled on the way in holds them too. An exclusive or victim cache (L3 of Zen
    and Skylake-SP, L2 of Cortex-A53) does not: subtracting Ac there gives the negative nc that
    the published formulas yield for Skylake-SP.
    """
    return 0 if share is None or share.fills_on_eviction else smaller_level


def conflict_bytes(core: Core, rows: int, stride: int) -> float:
    """Bytes from L2 per step of k because a block's rows, `stride` bytes apart, compete in L1.

    Rows that lie a multiple of a way apart share one set; for each element of those beyond its
    ways a line comes from L2 again.
    """
    cache = core.cache(1)
    if cache is None:
        return 0.0
    sets = _way_bytes(cache) // _spacing(cache, stride)
    return float(max(0, rows - sets * max(cache.ways - 1, 1)) * cache.line_bytes)


def taken_bytes(core: Core, level: int, size: int, run: int, stride: int) -> float:
    """Return the bytes of a cache that a block of rows keeps others from, at least its size.

    Rows of `run` bytes that begin a multiple of `stride` apart leave out the sets between them:
    192 rows of 1 KiB, 8 KiB apart, have an eighth of the sets, and need as much as 1.5 MiB would.
    """
    cache = core.cache(level)
    if cache is None:
        return float(size)
    return size * max(1.0, _spacing(cache, stride) / run)


def _spacing(cache: Cache, stride: int) -> int:
    """Bytes between the places in a way where rows `stride` apart can begin."""
    return math.gcd(_way_bytes(cache), stride)


def _way_bytes(cache: Cache) -> int:
    return max(cache.line_bytes, cache.bytes // max(cache.ways, 1))
