"""Cache blocking: loop orders, problem sizes and pins, then properties over random cores."""

import math
from dataclasses import replace

import pytest
from blocking_sizes import as_published, sizes, with_caches
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tvm_blislike.cost_models import LOOP_ORDERS, cache_blocking, roles
from tvm_blislike.cost_models.cache_room import ABSENT_CACHE_BYTES
from tvm_blislike.hardware import Cache, Core, names
from tvm_blislike.hardware.corefile import CACHE_POLICIES

# ---------------------------------------------------------------- loop orders


@pytest.mark.parametrize(
    ("loop_order", "expected"),
    [
        ("B3A2C0", ("B", "A", "C", "n", "k", "m")),
        ("A3B2C0", ("A", "B", "C", "m", "k", "n")),
        ("C3B2A0", ("C", "B", "A", "m", "n", "k")),
        ("C3A2B0", ("C", "A", "B", "n", "m", "k")),
        ("B3C2A0", ("B", "C", "A", "k", "n", "m")),
        ("A3C2B0", ("A", "C", "B", "k", "m", "n")),
    ],
)
def test_roles(loop_order, expected):
    assert roles(loop_order) == expected


def test_swapping_a_and_b_swaps_m_and_n():
    # C^T = B^T A^T: A3B2C0 with a 12x8 block is B3A2C0 with 8x12, read transposed.
    for name in names():
        mc, nc, kc = sizes(Core.named(name), 8, 12)
        assert sizes(Core.named(name), 12, 8, loop_order="A3B2C0") == (nc, mc, kc)


def test_carmel_c3b2a0():
    # A (8x4) in registers, the micro-kernel runs along n: C panels 8 x nc stay in L1, B panels
    # 4 x nc stream. L1: ways_B = floor(3*4 / (8+4)) = 1; nc = 16384 / (4*4) = 1024 -> 85*12 = 1020
    # L2 (B): C panel 8*1020*4 = 32640 -> 1 way; 14 ways; kc = 14*131072 / 4080 = 449.8 -> 448
    # L3 (C), exclusive: 15 ways; mc = 15*262144 / 4080 = 963.8 -> 120*8 = 960
    blocking = cache_blocking(Core.named("carmel"), 8, 12, loop_order="C3B2A0")
    assert (blocking.mc, blocking.nc, blocking.kc) == (960, 1020, 448)
    assert [f.operand for f in blocking.footprint] == ["Ar", "Cr", "Br", "Bc", "Cc"]


def test_unknown_loop_order_names_the_known_ones():
    with pytest.raises(ValueError, match=r"B3A1C0.*B3A2C0, A3B2C0"):
        cache_blocking(Core.named("carmel"), 8, 12, loop_order="B3A1C0")


# ---------------------------------------------------------------- problem sizes, pins, types


def test_blocks_are_balanced_over_the_problem():
    # Carmel 896, 1920, 512. k = 520: two blocks of 260. With kc = 260 L2 holds
    # mc = 14*131072 / 1040 = 1764.4 -> 1760; m = 2000: two of 1000. n = 24 is one block.
    assert sizes(Core.named("carmel"), 8, 12, m=2000, n=24, k=520) == (1000, 24, 260)


def test_small_problems_are_one_tile():
    assert sizes(Core.named("carmel"), 8, 12, m=1, n=1, k=1) == (8, 12, 1)
    assert sizes(Core.named("carmel"), 8, 12, m=8, n=12, k=7) == (8, 12, 7)


def test_a_pinned_block_stays_and_the_others_adapt():
    # kc = 256 on Haswell as BLIS tunes it: Br = 16384 -> 1 way; mc = 6*32768/1024 = 192;
    # Ac = 196608 -> 1 way; nc = 14*524288 / 1024 = 7168 = 448*16
    assert sizes(Core.named("haswell"), 6, 16, pinned={"kc": 256}) == (192, 7168, 256)
    assert sizes(Core.named("haswell"), 6, 16, pinned={"mc": 72})[0] == 72
    assert sizes(Core.named("haswell"), 6, 16, pinned={"nc": 4080})[1] == 4080
    assert sizes(Core.named("haswell"), 6, 16, pinned={"kc": 254})[2] == 254  # exactly


def test_pins_are_cut_to_whole_tiles_and_to_the_problem():
    assert sizes(Core.named("haswell"), 6, 16, pinned={"mc": 100, "nc": 7})[:2] == (96, 16)
    assert sizes(Core.named("haswell"), 6, 16, pinned={"kc": 256}, k=100)[2] == 100
    # Not balanced: 300 = 256 + 44 is what the user asked for.
    assert sizes(Core.named("haswell"), 6, 16, pinned={"kc": 256}, k=300)[2] == 256


def test_wrong_pins_and_sizes_are_errors():
    carmel = Core.named("carmel")
    with pytest.raises(ValueError, match=r"cannot pin mr; only mc, nc and kc"):
        cache_blocking(carmel, 8, 12, pinned={"mr": 4})
    with pytest.raises(ValueError, match="kc is 0"):
        cache_blocking(carmel, 8, 12, pinned={"kc": 0})
    with pytest.raises(ValueError, match="mr is 0"):
        cache_blocking(carmel, 0, 12)
    with pytest.raises(ValueError, match="k is -1"):
        cache_blocking(carmel, 8, 12, k=-1)


def test_halving_the_element_doubles_kc():
    assert sizes(Core.named("carmel"), 8, 12, dtype="float16")[2] == 1024
    assert sizes(Core.named("carmel"), 8, 12, dtype="float64")[2] == 256


# ---------------------------------------------------------------- properties

caches = st.builds(
    Cache,
    level=st.just(0),  # numbered below
    bytes=st.one_of(
        st.integers(1, 2**26), st.sampled_from([2**15, 3 * 2**14, 2**20, 5 * 2**18, 0])
    ),
    ways=st.integers(1, 20),
    line_bytes=st.sampled_from([32, 64, 128]),
    shared_by=st.integers(1, 64),
    policy=st.sampled_from(CACHE_POLICIES),
)


@st.composite
def random_cores(draw):
    levels = draw(st.lists(caches, min_size=0, max_size=4))
    numbered = tuple(replace(c, level=i + 1) for i, c in enumerate(levels))
    return with_caches(*numbered)


# A thread's part of L2 holds panels of two steps of k, but not of three.
_SMALL_SHARES = with_caches(
    Cache(1, 1, ways=1, line_bytes=32, bytes_per_cycle=0.0),
    Cache(2, 65031, ways=4, line_bytes=32, bytes_per_cycle=3.0, shared_by=4),
)
tiles = st.integers(1, 64)
problem = st.one_of(st.none(), st.integers(1, 5000))


@settings(max_examples=400, deadline=None)
@given(
    core=random_cores(),
    mr=tiles,
    nr=tiles,
    unroll=st.sampled_from([1, 2, 4, 8]),
    loop_order=st.sampled_from(LOOP_ORDERS),
    threads=st.integers(1, 128),
    dtype=st.sampled_from(["float32", "float16", "int8", "float64"]),
    m=problem,
    n=problem,
    k=problem,
)
@example(Core.named("cortex-a57"), 8, 12, 4, "B3A2C0", 4, "float32", 1, 1, 1)
@example(_SMALL_SHARES, 58, 34, 2, "B3A2C0", 45, "float32", None, None, 267)
def test_any_core_gets_usable_blocks(core, mr, nr, unroll, loop_order, threads, dtype, m, n, k):
    blocking = cache_blocking(
        *(core, mr, nr),
        **dict(unroll=unroll, loop_order=loop_order, threads=threads, dtype=dtype, m=m, n=n, k=k),
    )
    mc, nc, kc = blocking.mc, blocking.nc, blocking.kc
    assert mc >= mr and mc % mr == 0
    assert nc >= nr and nc % nr == 0
    assert kc >= 1 and (kc % unroll == 0 or kc < unroll or kc == k)
    for block, size, tile in ((mc, m, mr), (nc, n, nr), (kc, k, 1)):
        assert size is None or block < size + tile
    role = roles(loop_order)
    block, tile = {"m": mc, "n": nc, "k": kc}, {"m": mr, "n": nr, "k": unroll}
    registers, stationary, streaming, middle, outer = blocking.footprint
    assert registers.operand == f"{role.registers}r" and registers.level == 0
    # Both micro-panels fit in this thread's L1 share, unless they are as short as can be.
    if stationary.level is not None and block[role.inner] > max(tile[role.inner], 1):
        assert stationary.fraction + streaming.fraction <= 1 + 1e-9
    # A block of more than one tile leaves room for C in its cache.
    for entry, dimension in ((middle, role.middle), (outer, role.outer)):
        if entry.level is not None and block[dimension] > tile[dimension]:
            assert entry.fraction < 1
        if entry.level is None and block[dimension] > tile[dimension]:
            assert entry.bytes <= ABSENT_CACHE_BYTES


@settings(max_examples=100, deadline=None)
@given(core=random_cores(), mr=tiles, nr=tiles, size=st.integers(1, 5000))
def test_the_last_block_is_not_tiny(core, mr, nr, size):
    core = as_published(core)
    free = cache_blocking(core, mr, nr)
    cut = cache_blocking(core, mr, nr, k=size)
    blocks = math.ceil(size / cut.kc)
    assert cut.kc <= max(free.kc, 1)
    assert blocks == math.ceil(size / free.kc)  # no more blocks than without balancing
    # Every block but the last is cut.kc long; the last is shorter by less than one unrolling
    # per block.
    assert size - (blocks - 1) * cut.kc > cut.kc - 4 * blocks


@settings(max_examples=100, deadline=None)
@given(core=random_cores(), mr=tiles, nr=tiles, threads=st.integers(1, 64))
def test_more_threads_never_get_larger_blocks(core, mr, nr, threads):
    alone = cache_blocking(core, mr, nr, pinned={"kc": 64})
    together = cache_blocking(core, mr, nr, pinned={"kc": 64}, threads=threads)
    assert together.mc <= alone.mc
    shared = cache_blocking(core, mr, nr, pinned={"kc": 64, "mc": mr}, threads=threads)
    assert shared.nc <= cache_blocking(core, mr, nr, pinned={"kc": 64, "mc": mr}).nc


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(("mr", "nr"), [(8, 12), (6, 16), (14, 32)])
def test_every_described_core_holds_its_blocks(name, mr, nr):
    core = Core.named(name)
    for loop_order in LOOP_ORDERS:
        for threads in (1, core.cores):
            blocking = cache_blocking(core, mr, nr, loop_order=loop_order, threads=threads)
            assert all(f.fraction is None or f.fraction <= 1 for f in blocking.footprint[1:])
