"""Shorthands for tests of cache blocking."""

from dataclasses import replace

from tvm_blislike.cost_models import cache_blocking
from tvm_blislike.hardware import Cache, Core


def sizes(core: Core, mr: int, nr: int, **more) -> tuple[int, int, int]:
    """(mc, nc, kc) of a core as published: panels must be in L1."""
    blocking = cache_blocking(as_published(core), mr, nr, **more)
    return blocking.mc, blocking.nc, blocking.kc


def with_caches(*caches: Cache) -> Core:
    """A core that differs from Haswell by its caches only."""
    return replace(Core.named("haswell"), caches=caches)


def as_published(core: Core) -> Core:
    """The core with an L2 too slow for panels to stream from it, which the paper assumes."""
    slow = (replace(c, bytes_per_cycle=0.0) if i else c for i, c in enumerate(in_order(core)))
    return replace(core, caches=tuple(slow))


def in_order(core: Core) -> list[Cache]:
    """The caches by rising level."""
    return sorted(core.caches, key=lambda cache: cache.level)
