"""Cache blocking where L2 feeds the micro-kernel: kc balances the traffic of C and of panels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from blocking_sizes import as_published

from tvm_blislike.cost_models import cache_blocking
from tvm_blislike.hardware import Core, names

ZEN4 = Core.named("zen4")


def with_l2(core: Core, **changes: float) -> Core:
    """The core with another L2."""
    caches = tuple(replace(c, **changes) if c.level == 2 else c for c in core.caches)
    return replace(core, caches=caches)


def test_zen4_14x32() -> None:
    # A step of k takes 28 FMAs, 28 cycles, and (14 + 32) * 4 = 184 bytes: 6.6 of 28 a cycle.
    # L2 1M/8w: way 131072; W = 7*131072/4 = 229376; kc = sqrt(2 W) = 677.3 -> 676
    #   2 Br = 2*676*32*4 = 173056 -> 2 ways; 5 left; mc = 5*131072 / (676*4) = 242.4 -> 17*14 = 238
    # L3 32M/16w, victim: nc = 15*2097152 / 2704 = 11633.7 -> 363*32 = 11616
    blocking = cache_blocking(ZEN4, 14, 32)
    assert (blocking.mc, blocking.nc, blocking.kc) == (238, 11616, 676)
    assert [place.level for place in blocking.footprint] == [0, 2, 2, 2, 3]
    assert blocking.bounds["kc"] == "traffic of C and of the panels beyond L2 in balance"
    assert blocking.bounds["mc"] == "L2: 5 of 8 ways, 1 left to C, 2 to what is nearer"


@pytest.mark.parametrize(
    ("name", "block", "kc", "tuned"),
    [
        ("haswell", (6, 16), 336, 256),
        ("cortex-a57", (8, 12), 988, 640),
        ("neoverse-n1", (8, 12), 676, 640),
        ("skylake-avx512", (32, 12), 700, 384),
    ],
)
def test_beside_the_sizes_of_blis(name: str, block: tuple[int, int], kc: int, tuned: int) -> None:
    """Within a factor of two of what BLIS tuned by hand, where L1 alone gives 160 to 512."""
    assert cache_blocking(Core.named(name), *block).kc == kc
    assert 1 / 2 < kc / tuned < 2


def test_an_l2_too_slow_for_the_micro_kernel_leaves_the_bound_to_l1() -> None:
    """14x32 wants 6.57 bytes a cycle; 1x128, with 8 FMAs a step, 64.5."""
    fed, starved = with_l2(ZEN4, bytes_per_cycle=6.6), with_l2(ZEN4, bytes_per_cycle=6.5)
    assert cache_blocking(fed, 14, 32).kc == 676
    published = cache_blocking(as_published(ZEN4), 14, 32)
    assert cache_blocking(starved, 14, 32) == published
    assert published.bounds["kc"] == "L1: Br stays beside a passing Ar"
    assert cache_blocking(ZEN4, 1, 128).kc == cache_blocking(as_published(ZEN4), 1, 128).kc


def test_a_larger_l2_makes_blocks_deeper_and_taller() -> None:
    sizes = [cache_blocking(with_l2(ZEN4, bytes=n << 20), 14, 32) for n in (1, 4)]
    assert sizes[1].kc == pytest.approx(2 * sizes[0].kc, rel=0.01)
    assert sizes[1].mc == pytest.approx(2 * sizes[0].mc, rel=0.25)


def traffic(core: Core, m: int, k: int, blocks: int) -> float:
    """Elements that pass per element of C beyond L2, counted again."""
    kc = -(-k // blocks)
    mc = cache_blocking(core, 14, 32, pinned={"kc": kc}).mc
    return 2 * (blocks - 1) + k * -(-m // mc) / m


@pytest.mark.parametrize("m", [28, 196, 784, 12544])
@pytest.mark.parametrize("k", [64, 576, 1024, 2304, 4608])
def test_no_other_number_of_blocks_has_less_traffic(m: int, k: int) -> None:
    chosen = -(-k // cache_blocking(ZEN4, 14, 32, m=m, k=k).kc)
    least = min(traffic(ZEN4, m, k, blocks) for blocks in range(1, 12))
    assert traffic(ZEN4, m, k, chosen) <= 1.02 * least


def test_all_of_k_where_a_block_of_all_rows_fits() -> None:
    blocking = cache_blocking(ZEN4, 14, 32, m=28, k=2304)
    assert blocking.kc == 2304
    assert blocking.bounds["kc"] == "all of k" and blocking.bounds["mc"] == "all of m"


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("order", ["B3A2C0", "A3B2C0"])
def test_a_transposed_product_has_transposed_blocks(name: str, order: str) -> None:
    core, other = Core.named(name), {"B3A2C0": "A3B2C0", "A3B2C0": "B3A2C0"}[order]
    one = cache_blocking(core, 8, 12, loop_order=order, m=500, n=900, k=3000)
    two = cache_blocking(core, 12, 8, loop_order=other, m=900, n=500, k=3000)
    assert (one.mc, one.nc, one.kc) == (two.nc, two.mc, two.kc)
