"""Convolution slicing: examples by hand, what SConv reports, then properties over any cache."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_im2col.slicing import (
    INPUT_STATIONARY,
    WEIGHT_STATIONARY,
    Slicing,
    Tiles,
    line_cycles,
    slicing,
    slicings,
)
from tvm_blislike.cost_models.moving import bytes_per_cycle
from tvm_blislike.hardware import Cache, Core, names
from tvm_blislike.model.workload import Conv2dWorkload


def with_caches(*caches: Cache) -> Core:
    return replace(Core.named("skylake-avx512"), caches=caches)


def table_1(line_bytes: int) -> Core:
    """The caches that table 1 gives both machines: 32 kB, 1 MB, 4 MB."""
    return with_caches(
        Cache(1, 2**15, 8, line_bytes, 16),
        Cache(2, 2**20, 16, line_bytes, 16),
        Cache(3, 2**22, 16, line_bytes, 16),
    )


# 16 windows, and 24 filters (section 5.2) or 8 (section 5.1). Lines of 64 and 128 bytes.
X86, POWER10 = (table_1(64), 24, 16), (table_1(128), 8, 16)


def conv(ci: int, h: int, co: int, k: int, **more) -> Conv2dWorkload:
    return Conv2dWorkload(1, ci, h, h, co, k, k, padding=(k // 2,) * 4, **more)


RESNET_2A = conv(64, 56, 64, 3)

# ---------------------------------------------------------------- worked examples


def test_tiles_by_hand():
    # (1) per channel: IN 16*9*4 = 576, FS 24*9*4 = 864; OUT = 16*24*4 = 1536
    # (2) 1440 n_c + 1536 <= 0.9*32768 = 29491.2 -> n_c <= 19.4; ceil(64/19) = 4 sets of 16
    # (3) #IN = 56*56/16 = 196, #FS = ceil(64/24) = 3
    for s in slicings(RESNET_2A, *X86):
        assert (s.n_win, s.n_f, s.n_c, s.channel_sets) == (16, 24, 16, 4)
        assert s.inputs == (196, 9216) and s.filters == (3, 13824) and s.out_bytes == 1536
        assert s.footprint[0] == 9216 + 13824 + 1536


def test_input_stationary_by_hand():
    # (4) 9216 + k2 (13824 + 1536) <= 0.9*2^20 = 943718.4 -> 60, but there are only 3 = k2
    # (5) 9216 k3 + 3*13824 + 3*1536 k3 <= 0.9*2^22 = 3774873.6 -> 270, so all 196 = k3
    s, _ = slicings(RESNET_2A, *X86)
    assert (s.schedule, s.k2, s.k3) == (INPUT_STATIONARY, 3, 196)
    assert s.footprint[1:] == (9216 + 3 * 15360, 196 * 9216 + 3 * 13824 + 3 * 196 * 1536)
    # (8) 4 (196*9216 + 3*13824) / 64; (9), (12) 3/3 - 1 = 0, so (11) and (13) are 0
    # (14) 4 * 195 * 3*13824 / 64
    assert s.lines == (115488, 0, 505440)


def test_weight_stationary_by_hand():
    # (4) 13824 + k2 (9216 + 1536) <= 943718.4 -> 86; ceil(196/86) = 3 sets -> ceil(196/3) = 66
    # (5) 13824 k3 + 66*9216 + 66*1536 k3 <= 3774873.6 -> 27, so all 3
    _, s = slicings(RESNET_2A, *X86)
    assert (s.schedule, s.k2, s.k3) == (WEIGHT_STATIONARY, 66, 3)
    # (9) min(3 - 1, 1) = 1 but (10) 3/3 - 1 = 0: (11) is 0. (13) 4 * 2 * 3*13824 / 64
    # (14) 4 * (3 - 1) * 196*9216 / 64
    assert s.lines == (115488, 5184, 225792)
    assert slicing(RESNET_2A, *X86) == s


def test_reloads_from_memory_by_hand():
    # conv 512-512 on 14x14 with L2 of 256 KiB and L3 of 512 KiB, 8 x 16 blocks:
    # (1) per channel: IN 576, FS 288; OUT 512. (2) 864 n_c + 512 <= 29491.2 -> 33; 16 sets of 32
    # IN = 18432, FS = 9216; (3) #IN = ceil(196/16) = 13, #FS = 64
    # (4) 18432 + k2 (9216 + 512) <= 235929.6 -> 22; 3 sets -> 22
    # (5) k3 18432 + 22*9216 + 22 k3 512 <= 471859.2 -> 9; 2 sets -> 7
    core = with_caches(
        Cache(1, 2**15, 8, 64, 16), Cache(2, 2**18, 8, 64, 16), Cache(3, 2**19, 16, 64, 16)
    )
    s, _ = slicings(conv(512, 14, 512, 3), core, 8, 16)
    assert (s.n_c, s.channel_sets, s.k2, s.k3) == (32, 16, 22, 7)
    assert s.inputs == (13, 18432) and s.filters == (64, 9216)
    # (8) 16 (13*18432 + 64*9216)/64 = 207360; (9) min(2, 1); (10) 2 - 1 = 1
    # (11) 16 * 1 * 1 * 64*9216/64 = 147456; (13) 16 * 2 * 13*18432/64 = 119808
    # (14) 16 * 12 * 64*9216/64 = 1769472
    assert s.lines == (207360 + 147456, 119808, 1769472)


def test_cost_by_hand():
    core = X86[0]
    s = slicing(RESNET_2A, *X86)
    memory, l3, l2 = (64 / bytes_per_cycle(core, level) for level in (0, 3, 2))
    assert s.cycles == pytest.approx(115488 * memory + 5184 * l3 + 225792 * l2)


# ---------------------------------------------------------------- what the paper reports

# (ci, h, co, k): VGG-16, ResNet-18 and the pointwise convolutions of ResNet-50.
LAYERS = [
    *[(64, 224, 64, 3), (64, 112, 128, 3), (128, 112, 128, 3), (128, 56, 256, 3)],
    *[(256, 56, 256, 3), (256, 28, 512, 3), (512, 28, 512, 3), (512, 14, 512, 3)],
    *[(64, 56, 64, 3), (128, 28, 128, 3), (256, 14, 256, 3), (512, 7, 512, 3)],
    *[(64, 56, 256, 1), (256, 56, 64, 1), (256, 28, 512, 1), (512, 28, 128, 1)],
    *[(1024, 14, 256, 1), (256, 14, 1024, 1), (512, 7, 2048, 1), (2048, 7, 512, 1)],
]


@pytest.mark.parametrize("layer", LAYERS)
def test_section_7_2(layer):
    """The larger filter tile selects weight stationary on x86, input stationary on POWER10."""
    assert slicing(conv(*layer), *X86).schedule == WEIGHT_STATIONARY
    assert slicing(conv(*layer), *POWER10).schedule == INPUT_STATIONARY


def halved(limit, fits):
    while limit > 1 and not fits(limit):
        limit = math.ceil(limit / 2)
    return limit


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("machine", [X86, POWER10], ids=["x86", "power10"])
def test_never_more_sets_of_channels_than_halving_finds(machine, layer):
    (core, n_f, n_win), workload = machine, conv(*layer)
    per_channel = (n_f + n_win) * workload.kh * workload.kw * 4

    def fits(n_c):
        return per_channel * n_c + 4 * n_f * n_win <= 0.9 * core.caches[0].bytes

    s = slicing(workload, core, n_f, n_win)
    assert s.channel_sets <= math.ceil(workload.ci / halved(workload.ci, fits))


def test_binary_search_needs_fewer_sets_where_halving_overshoots():
    # 24 x 16, 1x1: 160 n_c + 1536 <= 29491.2 -> 174. Of 512 halving takes 128: 4 sets, here 3.
    assert slicing(conv(512, 28, 128, 1), *X86).channel_sets == 3


# ---------------------------------------------------------------- unusual cores and workloads


def test_without_l3_its_tiles_come_from_memory():
    core = with_caches(Cache(1, 2**15, 8, 64, 16), Cache(2, 2**18, 8, 64, 16))
    s, _ = slicings(conv(512, 14, 512, 3), core, 8, 16)
    # As above, but nothing bounds k3: filters come from memory once, input tiles 1 + 2 times.
    assert (s.k2, s.k3) == (22, 13)
    assert s.lines == (207360, 119808, 1769472)
    assert line_cycles(core, 3) == line_cycles(core, 0) > line_cycles(core, 2)
    memory, l2 = line_cycles(core, 0), line_cycles(core, 2)
    assert s.cycles == pytest.approx((207360 + 119808) * memory + 1769472 * l2)


def test_without_any_cache():
    s = slicing(RESNET_2A, with_caches(), *X86[1:])
    assert s.n_c == 64 and s.channel_sets == 1


def test_threads_share_a_level():
    core = X86[0]
    shared = with_caches(*core.caches[:2], replace(core.caches[2], shared_by=8))
    alone, four = (slicings(conv(128, 112, 128, 3), shared, 8, 16, threads=t)[0] for t in (1, 4))
    quarter = with_caches(*core.caches[:2], replace(core.caches[2], bytes=2**20))
    assert four == slicings(conv(128, 112, 128, 3), quarter, 8, 16)[0]
    assert four.k3 < alone.k3


def test_groups_and_images_repeat():
    one = slicing(conv(32, 14, 32, 3), *X86)
    four = slicing(conv(128, 14, 128, 3, groups=4), *X86)
    batch = slicing(replace(conv(32, 14, 32, 3), n=4), *X86)
    assert four == batch == replace(one, repeats=4, lines=four.lines, cycles=four.cycles)
    assert four.cycles == pytest.approx(4 * one.cycles, rel=1e-3)


def test_strides_padding_and_kernels_that_are_not_square():
    workload = Conv2dWorkload(1, 3, 224, 224, 64, 7, 5, stride=(2, 2), padding=(3, 2, 3, 2))
    s = slicing(workload, *X86)
    assert s.inputs == (112 * 112 // 16, 16 * 3 * 35 * 4)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mr": 0, "nr": 16}, "mr and nr must be at least 1"),
        ({"mr": 8, "nr": -1}, "mr and nr must be at least 1"),
        ({"mr": 8, "nr": 16, "fractions": (0.9, 0.0, 0.9)}, "each must be above 0 and at most 1"),
        ({"mr": 8, "nr": 16, "fractions": (0.9, 0.9, 1.1)}, "each must be above 0 and at most 1"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        slicings(RESNET_2A, X86[0], **arguments)


# ---------------------------------------------------------------- properties

WORKLOADS = st.builds(
    conv,
    st.integers(1, 700),
    st.integers(7, 230),
    st.integers(1, 700),
    st.sampled_from([1, 3, 5, 7]),
)
BLOCKS = st.tuples(st.integers(1, 32), st.integers(1, 64))


@st.composite
def cores(draw, fewest=0):
    """Cores of at most three levels, each larger than the one before."""
    size, caches = 2 ** draw(st.integers(12, 17)), []
    for level in range(1, draw(st.integers(fewest, 3)) + 1):
        caches.append(Cache(level, size, 8, draw(st.sampled_from([32, 64, 128])), 16))
        size *= 2 ** draw(st.integers(1, 5))
    return with_caches(*caches)


def ordered(s: Slicing) -> tuple[Tiles, Tiles]:
    """Return stationary and streamed operand of a slicing."""
    return (s.inputs, s.filters) if s.schedule == INPUT_STATIONARY else (s.filters, s.inputs)


@given(WORKLOADS, cores(), BLOCKS)
@settings(max_examples=300, deadline=None)
def test_positive_within_bounds_and_complete(workload, core, block):
    for s in slicings(workload, core, *block):
        kept, passed = ordered(s)
        assert 1 <= s.n_c <= workload.ci and 1 <= s.k2 <= passed.count and 1 <= s.k3 <= kept.count
        assert s.n_c * (s.channel_sets - 1) < workload.ci <= s.n_c * s.channel_sets
        assert s.inputs.count * s.n_win >= workload.oh * workload.ow
        assert s.filters.count * s.n_f >= workload.co
        memory, l3, l2 = s.lines
        weights = workload.co * workload.ci * workload.kh * workload.kw * 4
        line = core.line_bytes
        assert memory * line >= weights and l3 >= 0 and l2 >= 0 and s.cycles > 0
    assert slicing(workload, core, *block).cycles == min(
        s.cycles for s in slicings(workload, core, *block)
    )


@given(WORKLOADS, cores(), BLOCKS)
@settings(max_examples=300, deadline=None)
def test_footprint_fits_every_level(workload, core, block):
    for s in slicings(workload, core, *block):
        for cache, size, number in zip(core.caches, s.footprint, (s.n_c, s.k2, s.k3), strict=False):
            assert size <= 0.9 * cache.bytes or number == 1


@given(WORKLOADS, cores(fewest=3), BLOCKS)
@settings(max_examples=300, deadline=None)
def test_fewer_sets_would_not_fit(workload, core, block):
    """The search finds the maximum: with one set less of anything, its cache overflows."""
    l1, l2, l3 = (0.9 * cache.bytes for cache in core.caches)
    for s in slicings(workload, core, *block):
        kept, passed = ordered(s)
        if s.channel_sets > 1:
            n_c = math.ceil(workload.ci / (s.channel_sets - 1))
            assert (s.inputs.bytes + s.filters.bytes) // s.n_c * n_c + s.out_bytes > l1
        if (sets := math.ceil(passed.count / s.k2)) > 1:
            k2 = math.ceil(passed.count / (sets - 1))
            assert kept.bytes + k2 * (passed.bytes + s.out_bytes) > l2
        if (sets := math.ceil(kept.count / s.k3)) > 1:
            k3 = math.ceil(kept.count / (sets - 1))
            assert k3 * kept.bytes + s.k2 * (passed.bytes + k3 * s.out_bytes) > l3


@given(st.sampled_from(names()), st.integers(1, 8), WORKLOADS)
@settings(max_examples=100, deadline=None)
def test_every_described_core(name, threads, workload):
    s = slicing(workload, Core.named(name), 8, 16, threads=threads)
    assert s.n_c >= 1 and math.isfinite(s.cycles) and s.cycles > 0
