"""Shorthands for tests of cache blocking."""

from dataclasses import replace

from tvm_blislike.cost_models import cache_blocking
from tvm_blislike.hardware import Cache, Core


def sizes(core: Core, mr: int, nr: int, **more) -> tuple[int, int, int]:
    """(mc, nc, kc) of a core."""
    blocking = cache_blocking(core, mr, nr, **more)
    return blocking.mc, blocking.nc, blocking.kc


def with_caches(*caches: Cache) -> Core:
    """A core that differs from Haswell by its caches only."""
    return replace(Core.named("haswell"), caches=caches)
