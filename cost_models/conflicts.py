"""What rows that lie a power of two apart cost: they share sets of a cache, whose ways are few."""

from __future__ import annotations

import math

from tvm_blislike.hardware import Cache, Core


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
