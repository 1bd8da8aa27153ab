"""Cache blocking: worked examples by hand, loop order B3A2C0.

Published values are those of Low et al. (2016) evaluated for the same micro-kernel; BLIS's own
hand-tuned sizes are named where they tell something. way = bytes / ways, S = 4 bytes.
"""

from dataclasses import replace

from blocking_sizes import as_published, sizes, with_caches

from tvm_blislike.cost_models import cache_blocking
from tvm_blislike.hardware import Cache, Core


def test_carmel_8x12():
    # L1 64K/4w: way 16384; ways_Ar = floor(3 / (1 + 12/8)) = 1; kc = 16384 / (8*4) = 512
    # L2 2M/16w: way 131072; Br = 512*12*4 = 24576 -> 1 way; ways_Ac = 16-1-1 = 14
    #            mc = 14*131072 / (512*4) = 896 = 112*8
    # L3 4M/16w, exclusive: way 262144; Ac needs no room; ways_Bc = 16-1 = 15
    #            nc = 15*262144 / 2048 = 1920 = 160*12
    # Low et al. 896, 1020, 512: they take an inclusive L3 and subtract Ac (see the next test).
    assert sizes(Core.named("carmel"), 8, 12) == (896, 1920, 512)


def test_carmel_8x12_as_published_with_an_inclusive_l3():
    # Ac = 896*512*4 = 1835008 -> 7 ways; ways_Bc = 16-1-7 = 8; nc = 8*262144/2048 = 1024
    # -> 85*12 = 1020, the published value.
    carmel = Core.named("carmel")
    inclusive = (*carmel.caches[:2], replace(carmel.caches[2], policy="inclusive"))
    assert sizes(replace(carmel, caches=inclusive), 8, 12) == (896, 1020, 512)


def test_carmel_8x12_two_and_eight_threads():
    # Two threads share one L2 of 2 MiB and use half of L3:
    #   mc = 14*65536 / 2048 = 448; nc = 15*131072 / 2048 = 960 = 80*12
    assert sizes(Core.named("carmel"), 8, 12, threads=2) == (448, 960, 512)
    # Eight threads still share L2 in pairs; L3: nc = 15*32768 / 2048 = 240 = 20*12
    assert sizes(Core.named("carmel"), 8, 12, threads=8) == (448, 240, 512)


def test_cortex_a57_8x12_two_way_l1_and_no_l3():
    # L1 32K/2w: way 16384; ways_Ar = floor(1 / 2.5) = 0: the paper's kc is 0. Ours: Br takes the
    #   way that Ar and C do not need, kc = min(16384/12, 16384/8) / 4 = 341 -> 340 = 85*4
    # L2 2M/16w: way 131072; Br = 340*12*4 = 16320 -> 1 way; 14 ways
    #   mc = 14*131072 / (340*4) = 1349.3 -> 168*8 = 1344
    # no L3: nc = 4 MiB / 1360 = 3084.05 -> 257*12 = 3084 (BLIS: 3072)
    assert sizes(Core.named("cortex-a57"), 8, 12) == (1344, 3084, 340)


def test_cortex_a72_8x12_two_way_l1_and_no_l3():
    # L1 as Cortex-A57. L2 1M/16w: mc = 14*65536 / 1360 = 674.6 -> 84*8 = 672, as published.
    # Published kc is 341: ours is rounded to the unrolling of 4.
    assert sizes(Core.named("cortex-a72"), 8, 12) == (672, 3084, 340)
    # Four threads share L2: mc = 14*16384 / 1360 = 168.7 -> 168
    assert sizes(Core.named("cortex-a72"), 8, 12, threads=4) == (168, 3084, 340)


def test_two_way_l1_with_the_streaming_panel_the_wider_one():
    # 12x8 instead of 8x12: now Ar limits, kc = min(16384/8, 16384/12) / 4 = 341 -> 340
    assert sizes(Core.named("cortex-a72"), 12, 8)[2] == 340


def test_cortex_a53_8x12_victim_l2():
    # L1 32K/4w: way 8192; ways_Ar = floor(3 / 2.5) = 1; kc = 8192 / 32 = 256
    # L2 512K/16w: way 32768; a victim of L1, so Br needs no second copy: 15 ways
    #   mc = 15*32768 / (256*4) = 480 (Low et al. 448: one way more for Br)
    # no L3: nc = 4 MiB / 1024 = 4096 -> 341*12 = 4092
    assert sizes(Core.named("cortex-a53"), 8, 12) == (480, 4092, 256)


def test_cortex_a53_8x12_as_published_with_an_inclusive_l2():
    # 14 ways: mc = 14*32768 / 1024 = 448
    a53 = Core.named("cortex-a53")
    inclusive = (a53.caches[0], replace(a53.caches[1], policy="inclusive"))
    assert sizes(replace(a53, caches=inclusive), 8, 12)[0] == 448


def test_cortex_a76_8x12():
    # L1 64K/4w: kc = 512 as Carmel
    # L2 512K/8w: way 65536; Br -> 1 way; 6 ways; mc = 6*65536 / 2048 = 192
    # L3 2M/16w, exclusive: way 131072; 15 ways; nc = 15*131072 / 2048 = 960
    # Low et al. 192, 768, 512: an inclusive L3 gives Ac = 393216 = 3 ways, 12*131072/2048 = 768.
    a76 = Core.named("cortex-a76")
    assert sizes(a76, 8, 12) == (192, 960, 512)
    inclusive = (*a76.caches[:2], replace(a76.caches[2], policy="inclusive"))
    assert sizes(replace(a76, caches=inclusive), 8, 12) == (192, 768, 512)


def test_haswell_6x16():
    # L1 32K/8w: way 4096; ways_Ar = floor(7 / (1 + 16/6)) = 1; kc = 4096/24 = 170.7 -> 168
    #   (Low et al. 170, not a multiple of the unrolling; BLIS tuned 256)
    # L2 256K/8w: way 32768; Br = 168*16*4 = 10752 -> 1 way; 6 ways
    #   mc = 6*32768 / 672 = 292.6 -> 48*6 = 288, as published
    # L3 8M/16w, inclusive: way 524288; Ac = 288*672 = 193536 -> 1 way; 14 ways
    #   nc = 14*524288 / 672 = 10922.7 -> 682*16 = 10912 (Low et al. 10784, with kc = 170)
    assert sizes(Core.named("haswell"), 6, 16) == (288, 10912, 168)
    assert sizes(Core.named("haswell"), 6, 16, unroll=1) == (288, 10784, 170)  # exactly published


def test_skylake_avx512_32x12_one_slice_of_l3():
    # L1 32K/8w: way 4096; ways_Ar = floor(7 / (1 + 12/32)) = 5; kc = 5*4096 / 128 = 160
    # L2 1M/16w: way 65536; Br = 160*12*4 = 7680 -> 1 way; 14 ways
    #   mc = 14*65536 / 640 = 1433.6 -> 44*32 = 1408
    # L3, one slice of 1.375M/11w: way 131072; a victim cache: 10 ways
    #   nc = 10*131072 / 640 = 2048 -> 170*12 = 2040
    # Low et al. 1408, 612, 160: subtracting Ac = 901120 -> 7 ways leaves 3. BLIS's SVE formula,
    # which subtracts more, gives -312.
    skx = Core.named("skylake-avx512")
    slice_of_l3 = Cache(
        level=3, bytes=1441792, ways=11, line_bytes=64, bytes_per_cycle=16, policy="victim"
    )
    one_slice = replace(skx, caches=(*skx.caches[:2], slice_of_l3))
    assert sizes(one_slice, 32, 12) == (1408, 2040, 160)
    inclusive = (*skx.caches[:2], replace(slice_of_l3, policy="inclusive"))
    assert sizes(replace(skx, caches=inclusive), 32, 12) == (1408, 612, 160)


def test_skylake_avx512_32x12_whole_l3():
    # 27.5M/11w: way 2621440; nc = 10*2621440 / 640 = 40960 -> 3413*12 = 40956
    assert sizes(Core.named("skylake-avx512"), 32, 12) == (1408, 40956, 160)
    # All 20 cores: one slice each.
    assert sizes(Core.named("skylake-avx512"), 32, 12, threads=20) == (1408, 2040, 160)


def test_four_way_l1_with_a_wide_block():
    # 4x28 on Carmel, the best block of Alaejos et al. for layer 006: ways_Ar = floor(3*4/32) = 0.
    # kc = min(3*16384/28, 16384/4) / 4 = min(438.9, 1024) -> 436 = 109*4
    assert sizes(Core.named("carmel"), 4, 28)[2] == 436


def test_direct_mapped_l1_only():
    # Half of 8192 bytes for both panels: kc = 4096 / (8+4) / 4 = 85.3 -> 84; mc, nc from memory:
    # 4 MiB / 336 = 12483.04 -> 12480 (8), 12480 (4 divides 12483 -> 12480)
    core = with_caches(Cache(1, 8192, 1, 64, 16))
    blocking = cache_blocking(as_published(core), 8, 4)
    assert (blocking.mc, blocking.nc, blocking.kc) == (12480, 12480, 84)
    assert [f.level for f in blocking.footprint] == [0, 1, 1, None, None]


def test_no_cache_listed_is_planned_for_a_small_one():
    # Assumed L1 32K/4w as Cortex-A53: kc = 256, and the rest from memory.
    assert sizes(with_caches(), 8, 12) == (4096, 4092, 256)


def test_l2_of_two_ways_has_no_way_to_set_apart():
    # L2 64K/2w inclusive, Br = 256*12*4 = 12288 -> 1 way; 2-1-1 < 1, so half of what Br leaves:
    # (65536 - 12288) / 2 = 26624; mc = 26624 / 1024 = 26 -> 24
    core = with_caches(Cache(1, 32768, 4, 64, 16), Cache(2, 65536, 2, 64, 16))
    assert sizes(core, 8, 12)[0] == 24
    # L2 16K/2w: (16384 - 12288) / 2 / 1024 = 2 -> one micro-tile of 8, half of the cache
    core = with_caches(Cache(1, 32768, 4, 64, 16), Cache(2, 16384, 2, 64, 16))
    assert cache_blocking(as_published(core), 8, 12).footprint[3] == ("Ac", 2, 8 * 256 * 4, 0.5)


def test_l2_keeps_ways_for_the_stationary_panel_not_the_streaming_one():
    # Haswell's L1, 6x16, L2 64K/16w: way 4096; Br = 10752 -> 3 ways (Ar would be 1); 12 ways
    # mc = 12*4096 / 672 = 73.1 -> 72
    core = with_caches(Core.named("haswell").caches[0], Cache(2, 65536, 16, 64, 16))
    assert sizes(core, 6, 16)[0] == 72


def test_levels_are_taken_in_rising_order_and_gaps_do_not_matter():
    # Cortex-A55 as in RK3568: no L2; the L3 then takes Ac, and Bc streams from memory.
    # L3 512K/16w exclusive: mc = 15*32768 / 1024 = 480
    l1, l3 = Cache(1, 32768, 4, 64, 16), Cache(3, 524288, 16, 64, 16, policy="exclusive")
    for order in ((l1, l3), (l3, l1)):
        blocking = cache_blocking(as_published(with_caches(*order)), 8, 12)
        assert (blocking.mc, blocking.nc, blocking.kc) == (480, 4092, 256)
        assert [f.level for f in blocking.footprint] == [0, 1, 1, 3, None]


def test_senseless_ways_count_as_one():
    # As direct-mapped: kc = 16384 / 20 / 4 = 204.8 -> 204
    assert sizes(with_caches(Cache(1, 32768, 0, 64, 16)), 8, 12)[2] == 204


def test_footprint_of_carmel():
    registers, br, ar, ac, bc = cache_blocking(as_published(Core.named("carmel")), 8, 12).footprint
    assert registers == ("Cr", 0, 8 * 12 * 4, 24 / 32)  # 24 of 32 registers
    assert br == ("Br", 1, 512 * 12 * 4, 24576 / 65536)
    assert ar == ("Ar", 1, 512 * 8 * 4, 16384 / 65536)
    assert ac == ("Ac", 2, 896 * 512 * 4, 14 / 16)
    assert bc == ("Bc", 3, 1920 * 512 * 4, 15 / 16)
