"""Winograd configurations and their predicted time: what holds on any core, and reasons."""

from __future__ import annotations

import dataclasses
import math

import pytest
from conv_workloads import convolutions
from estimates import on_every
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_winograd import candidates
from tvm_blislike.cost_models.conv2d_winograd import estimate as winograd
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, TILES, WinogradConfig
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.conv2d_winograd.nests import NEST
from tvm_blislike.cost_models.conv2d_winograd_1d import candidates as candidates_1d
from tvm_blislike.cost_models.conv2d_winograd_1d.config import Winograd1dConfig
from tvm_blislike.cost_models.conv2d_winograd_1d.geometry import Winograd1dGeometry
from tvm_blislike.cost_models.moving import share_bytes
from tvm_blislike.cost_models.roofline import clock_hz
from tvm_blislike.hardware import Core, names
from tvm_blislike.microkernels import kernel_of
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.config import Config
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules import get_implementation

CORES = [Core.named(name) for name in names()]
AVX512 = Core.named("sapphirerapids")
SAME = (1, 1, 1, 1)
LAYER = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=SAME)
ODD = [
    Conv2dWorkload(1, 16, 1, 1, 16, 3, 3, padding=SAME),
    Conv2dWorkload(3, 32, 13, 17, 48, 5, 5, padding=(2, 0, 1, 2)),
    Conv2dWorkload(1, 16, 7, 229, 32, 1, 7, padding=(0, 3, 0, 3)),
    Conv2dWorkload(1, 32, 29, 1, 32, 3, 1, padding=(1, 0, 1, 0)),
    Conv2dWorkload(1, 64, 224, 224, 64, 3, 3, padding=SAME),
    Conv2dWorkload(1, 512, 7, 7, 512, 3, 3, padding=SAME),
    Conv2dWorkload(1, 64, 57, 55, 128, 3, 3, (2, 2), SAME),
    Conv2dWorkload(2, 24, 29, 31, 57, 5, 7, (2, 2), (2, 3, 2, 3)),
    Conv2dWorkload(1, 64, 29, 31, 64, 3, 3, (1, 2), SAME),
]


def workloads(lanes: int) -> st.SearchStrategy[Conv2dWorkload]:
    whole = st.integers(1, 24).map(lambda count: lanes * count)
    channels = st.one_of(whole, st.integers(8, 100))
    return convolutions(channels=channels, image=80, stride=2, dilation=1, most_macs=math.inf)


def room(core: Core, threads: int) -> float:
    """What L2, or L1 where there is no other, has beyond a way for C."""
    return share_bytes(core, 2, threads) or share_bytes(core, 1, threads)


def loses_little(workload: Conv2dWorkload, config: Config, core: Core, threads: int) -> bool:
    """Whether blocks beyond L2 are of a core that has the next level near."""
    cycles = dict(winograd.estimate(workload, config, core, threads).cycles)
    lost = cycles.pop("crowding")
    return lost <= 0.0301 * (sum(cycles.values()) - cycles.pop("fork"))


def passes_by(geo: WinogradGeometry, core: Core, threads: int) -> bool:
    """Whether a block may go beyond L2: V of a point stays there, and V and P pass seldom."""
    stays = geo.v_bytes / geo.multiplications <= room(core, threads)
    few = geo.chunks <= candidates.MOST_PASSES and geo.config.oc_parts == 1
    return stays and few and geo.v_bytes + geo.p_bytes <= candidates.MOST_PASSING


def check(workload: Conv2dWorkload, config: Config, core: Core, threads: int) -> None:
    """Raise AssertionError when a configuration or its estimate cannot be right."""
    geo = WinogradGeometry(workload, config)
    kernel = kernel_of(core, config.mr, config.nr)
    assert keeps_registers(core, kernel, NEST)
    assert config.mr <= config.mc == geo.block_h * geo.block_w
    assert geo.block_h <= geo.tiles_h and geo.block_w <= geo.tiles_w
    empty = -workload.co % config.nc
    assert config.nc % config.nr == 0 and empty < core.lanes()
    assert empty == 0 or config.out_layout == "NHWC"
    assert max(geo.points_hw) <= candidates.MOST_POINTS["float32"]
    assert min(candidates.taps_of_phases(workload)) == 1 or config.tile_h == config.tile_w
    assert config.loop_order in (TILES, CHANNELS)
    if config.loop_order == TILES:
        fits = geo.v_bytes + geo.p_bytes <= room(core, threads)
        assert (
            fits or loses_little(workload, config, core, threads) or passes_by(geo, core, threads)
        )
    else:
        assert geo.p_bytes <= room(core, threads)
        assert geo.v_bytes * geo.blocks <= candidates.MOST_KEPT_V
    estimate = winograd.estimate(workload, config, core, threads)
    assert all(math.isfinite(c) and c >= 0 for c in estimate.cycles.values()), estimate
    assert estimate.cycles["fma"] > 0
    assert estimate.seconds == pytest.approx(sum(estimate.cycles.values()) / clock_hz(core))
    # Fewer multiplications than direct convolution, but never fewer than one for each point.
    saved = config.tile_h * config.tile_w * workload.kh * workload.kw / geo.multiplications
    assert 0 < estimate.peak_fraction <= saved
    for name, level, size, fraction in estimate.footprint:
        assert size > 0 and math.isfinite(fraction), name
        assert (core.cache(level) is None) == (level == 0)
    assert winograd.workspace_bytes(workload, config, threads) >= geo.v_bytes + geo.p_bytes


def check_all(workload: Conv2dWorkload, core: Core, threads: int) -> list[Config]:
    offered = list(candidates.configs(workload, core, threads))
    assert len(set(offered)) == len(offered)
    for config in offered:
        check(workload, config, core, threads)
    return offered


@on_every(CORES)
def test_odd_shapes_on_every_core(core: Core, threads: int) -> None:
    for workload in ODD:
        assert candidates.applies(workload, core) == ""
        assert check_all(workload, core, threads), f"nothing on offer for {workload}"


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(CORES), st.integers(1, 4))
def test_any_workload_on_any_core(data: st.DataObject, core: Core, threads: int) -> None:
    workload = data.draw(workloads(core.lanes()))
    assume(candidates.applies(workload, core) == "")
    check_all(workload, core, threads)


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_core_without_caches(core: Core) -> None:
    """Nothing fits nowhere; what is on offer still has an estimate."""
    bare = dataclasses.replace(core, caches=core.caches[:1])
    assert check_all(ODD[0], bare, 2)


def test_fp16_transforms_stay_small() -> None:
    core, half = Core.named("cortex-a76"), dataclasses.replace(LAYER, types=Types.of("float16"))
    assert candidates.applies(half, core) == ""
    assert tile_sizes(half, core) == {(2, 2)}
    long = dataclasses.replace(half, ci=512)
    assert "512 products" in candidates.applies(long, core)
    assert "no float16 transforms" in candidates_1d.applies(half, core)
    wide = dataclasses.replace(half, kh=5, kw=5)
    assert "no transform for 5x5" in candidates.applies(wide, core)
    config = next(candidates.configs(half, core, 1))
    small, usual = WinogradGeometry(half, config), WinogradGeometry(LAYER, config)
    assert (2 * small.v_bytes, 2 * small.p_bytes) == (usual.v_bytes, usual.p_bytes)


def tile_sizes(workload: Conv2dWorkload, core: Core = AVX512) -> set[tuple[int, int]]:
    return {(c.tile_h, c.tile_w) for c in candidates.configs(workload, core, 1)}


@pytest.mark.parametrize(
    "kernel, sizes",
    [
        ((3, 3), {(2, 2), (4, 4), (6, 6)}),
        ((5, 5), {(2, 2), (4, 4)}),
        ((3, 5), {(2, 2), (4, 4)}),
        ((7, 7), {(2, 2)}),
        ((1, 3), {(1, 2), (1, 4), (1, 6)}),
        ((3, 1), {(2, 1), (4, 1), (6, 1)}),
        ((1, 7), {(1, 2)}),
        ((5, 1), {(2, 1), (4, 1)}),
    ],
)
def test_offers_every_tile_of_at_most_eight_points(
    kernel: tuple[int, int], sizes: set[tuple[int, int]]
) -> None:
    workload = Conv2dWorkload(1, 32, 28, 28, 32, *kernel)
    assert tile_sizes(workload) == sizes


@pytest.mark.parametrize(
    "kernel, stride, products",
    [
        ((3, 3), (2, 2), {25, 49, 81}),
        ((3, 3), (2, 1), {20, 35, 54}),
        ((5, 5), (2, 2), {49, 81, 121}),
        ((3, 1), (2, 1), {5, 7, 9}),
    ],
)
def test_strided_ones_have_as_many_products_as_inputs(
    kernel: tuple[int, int], stride: tuple[int, int], products: set[int]
) -> None:
    workload = Conv2dWorkload(1, 64, 56, 56, 64, *kernel, stride)
    offered = candidates.configs(workload, AVX512, 1)
    assert {WinogradGeometry(workload, c).multiplications for c in offered} == products


def test_offers_both_orders_and_chunks() -> None:
    offered = list(candidates.configs(LAYER, AVX512, 2))
    assert {c.loop_order for c in offered} == {TILES, CHANNELS}
    for order in (TILES, CHANNELS):
        assert len({c.nc for c in offered if c.loop_order == order}) > 1


def test_threads_may_take_parts_of_the_channels() -> None:
    """Never more parts than threads, which would transform patches several times, nor uneven."""
    for threads, parts in ((1, {1}), (2, {1, 2}), (3, {1}), (4, {1, 2, 4}), (6, {1, 2})):
        offered = list(candidates.configs(LAYER, AVX512, threads))
        assert {c.oc_parts for c in offered if c.loop_order == TILES} == parts
        assert {c.oc_parts for c in offered if c.loop_order == CHANNELS} == {1}
        assert all(WinogradGeometry(LAYER, c).chunks % c.oc_parts == 0 for c in offered)


def test_parts_divide_weights_and_repeat_the_input_transform() -> None:
    """256 channels of 14x14, whose weights come from memory: one block of 16 tiles, two threads."""
    layer = Conv2dWorkload(1, 256, 14, 14, 256, 3, 3, padding=SAME)
    fields = {"tile_h": 4, "tile_w": 4, "mr": 8, "nr": 32, "mc": 16, "nc": 32, "oh_block": 4}
    config = WinogradConfig(out_layout="NCHW16c", data_layout="NCHW16c", **fields)
    one = winograd.estimate(layer, config, AVX512, 1).cycles
    two = winograd.estimate(layer, config.with_fields(oc_parts=2), AVX512, 2).cycles
    assert two["fma"] == one["fma"] / 2
    assert two["output transform"] == pytest.approx(one["output transform"] / 2, rel=0.05)
    assert two["input transform"] == pytest.approx(one["input transform"], rel=0.05)
    assert two["weights"] < one["weights"]
    # Blocks of half the tiles divide the same work, but each thread reads all weights.
    halves = config.with_fields(mc=8, oh_block=2)
    by_tiles = winograd.estimate(layer, halves, AVX512, 2).cycles
    assert by_tiles["weights"] > 1.5 * two["weights"]


@pytest.mark.parametrize(
    "workload, reason",
    [
        (dataclasses.replace(LAYER, stride=(3, 3)), "only for strides up to 2"),
        (dataclasses.replace(LAYER, stride=(1, 4)), "only for strides up to 2"),
        (dataclasses.replace(LAYER, kh=1, kw=2, stride=(1, 2)), "no transform for 1x2 kernels"),
        (dataclasses.replace(LAYER, dilation=(2, 1)), "without dilation"),
        (dataclasses.replace(LAYER, groups=8), "8 channels: transforms would take longer"),
        (dataclasses.replace(LAYER, groups=64), "1 channels: transforms would take longer"),
        (dataclasses.replace(LAYER, ci=72, co=72, groups=3), "3 groups of 24 output channels"),
        (dataclasses.replace(LAYER, groups=4, stride=(2, 2)), "strided groups of 16 channels"),
        (dataclasses.replace(LAYER, ci=3), "3 channels: transforms would take longer"),
        (dataclasses.replace(LAYER, co=7), "7 channels: transforms would take longer"),
        (dataclasses.replace(LAYER, kh=1, kw=1), "no transform for 1x1 kernels"),
        (dataclasses.replace(LAYER, kh=11, kw=11), "no transform for 11x11 kernels"),
        (dataclasses.replace(LAYER, kh=8, kw=3), "no transform for 8x3 kernels"),
        (dataclasses.replace(LAYER, types=Types.of("int8")), "no int8 micro-kernels"),
    ],
    ids=str,
)
def test_refuses_with_a_reason(workload: Conv2dWorkload, reason: str) -> None:
    assert reason in candidates.applies(workload, AVX512)


def test_channels_that_fill_no_vectors_are_for_two_dimensions() -> None:
    workload = dataclasses.replace(LAYER, ci=24, co=57)
    assert candidates.applies(workload, AVX512) == ""
    assert "no multiple of 16" in candidates_1d.applies(workload, AVX512)
    offered = check_all(workload, AVX512, 1)
    assert {(c.data_layout, c.out_layout, c.nc) for c in offered} == {("NHWC", "NHWC", 64)}
    mixed = check_all(dataclasses.replace(LAYER, ci=24), AVX512, 2)
    assert {(c.data_layout, c.out_layout) for c in mixed} == {("NHWC", "NCHW16c")}


def test_24_channels_fill_the_vectors_of_other_cores() -> None:
    workload = dataclasses.replace(LAYER, ci=24, co=24)
    assert candidates_1d.applies(workload, Core.named("haswell")) == ""
    assert candidates_1d.applies(workload, Core.named("cortex-a72")) == ""


@pytest.mark.parametrize(
    "padding, tiles", [(SAME, (14, 14)), ((0, 0, 0, 0), (14, 14)), ((2, 1, 1, 3), (15, 15))]
)
def test_tiles_cover_the_result(padding: tuple[int, ...], tiles: tuple[int, int]) -> None:
    workload = dataclasses.replace(LAYER, padding=padding)
    config = next(c for c in candidates.configs(workload, AVX512, 1) if c.tile_h == 4)
    geo = WinogradGeometry(workload, config)
    assert (geo.tiles_h, geo.tiles_w) == tiles
    assert geo.blocks_h * geo.block_h >= geo.tiles_h > (geo.blocks_h - 1) * geo.block_h


def test_matrices_by_hand() -> None:
    """F(4, 3), two rows of 14 tiles, a chunk of two panels of 16 channels, two threads.

    V: 36 matrices of 28 x 64, 112 vectors and one more: 36 * 113 * 64 bytes.
    P: 36 matrices of 28 x 32, 56 vectors and one more: 36 * 57 * 64 bytes.
    """
    fields = {"tile_h": 4, "tile_w": 4, "mr": 14, "nr": 16, "mc": 28, "nc": 32, "oh_block": 2}
    config = WinogradConfig(loop_order=TILES, out_layout="NCHW16c", data_layout="NCHW16c", **fields)
    geo = WinogradGeometry(LAYER, config)
    assert (geo.v_bytes, geo.p_bytes) == (260_352, 131_328)
    assert geo.packed_shape == (2, 6, 6, 2, 64, 16)
    assert winograd.workspace_bytes(LAYER, config, 2) == 2 * (260_352 + 131_328)
    whole = config.with_fields(loop_order=CHANNELS)
    # Seven blocks of V once, and a P for each thread.
    assert winograd.workspace_bytes(LAYER, whole, 2) == 7 * 260_352 + 2 * 131_328


def test_matrices_of_a_strided_one_by_hand() -> None:
    """F(4, 3) of stride 2: 9 x 9 products, added up in 5 x 5 points, of all four phases."""
    workload = dataclasses.replace(LAYER, stride=(2, 2))
    fields = {"tile_h": 4, "tile_w": 4, "mr": 14, "nr": 16, "mc": 14, "nc": 32, "oh_block": 2}
    config = WinogradConfig(loop_order=TILES, out_layout="NCHW16c", data_layout="NCHW16c", **fields)
    geo = WinogradGeometry(workload, config)
    assert (geo.points_hw, geo.phases, geo.last_phases) == ((5, 5), (2, 2), (1, 1))
    # 14 x 64 elements are 56 vectors, 14 x 32 are 28; one more makes them odd.
    assert (geo.v_bytes, geo.p_bytes) == (81 * 57 * 64, 25 * 29 * 64)
    assert geo.packed_shape == (2, 9, 9, 2, 64, 16)
    wide = WinogradGeometry(dataclasses.replace(workload, kh=4, kw=4), config)
    assert (wide.points_hw, wide.last_phases) == ((5, 5), (2, 2))


def test_large_strided_layers_are_faster_by_phases() -> None:
    workload = Conv2dWorkload(1, 128, 104, 104, 256, 3, 3, (2, 2), SAME)
    direct = get_implementation("conv2d_direct")
    offered = direct.configs(workload, AVX512, 1)
    best = min(direct.estimate(workload, c, AVX512, 1).seconds for c in offered)
    assert fastest(workload) < best / 1.2


def fastest(workload: Conv2dWorkload, threads: int = 1) -> float:
    offered = candidates.configs(workload, AVX512, threads)
    return min(winograd.estimate(workload, c, AVX512, threads).seconds for c in offered)


@pytest.mark.parametrize("tile, wins", [(2, True), (4, False), (6, False)])
def test_flat_transforms_pay_where_all_points_fit_into_registers(tile: int, wins: bool) -> None:
    config = next(c for c in candidates.configs(LAYER, AVX512, 1) if c.tile_h == tile)
    seconds = winograd.estimate(LAYER, config, AVX512, 1).seconds
    flat = winograd.estimate(LAYER, config.with_fields(transform="flat"), AVX512, 1).seconds
    assert (flat < seconds) == wins


@pytest.mark.parametrize("sizes", [("ci",), ("co",), ("h", "w"), ("n",)])
def test_more_work_takes_longer(sizes: tuple[str, ...]) -> None:
    more = dataclasses.replace(LAYER, **{size: 2 * getattr(LAYER, size) for size in sizes})
    assert fastest(more) > 1.3 * fastest(LAYER)


def test_two_threads_take_less_time_for_a_large_layer() -> None:
    assert fastest(LAYER, 2) < 0.7 * fastest(LAYER, 1)


def test_rows_beyond_the_ways_of_l1_come_from_l2_again() -> None:
    """512 channels: rows 2 KiB apart share two sets of 11 ways each that V may use."""
    layer = Conv2dWorkload(1, 512, 7, 7, 512, 3, 3, padding=SAME)

    def from_l2(mr: int, nr: int) -> float:
        config = Winograd1dConfig(
            mr=mr,
            nr=nr,
            mc=28,
            nc=nr,
            data_layout="NCHW16c",
            out_layout="NCHW16c",
            tile_w=2,
            oh_block=7,
            prefetch=1,
        )
        return winograd.estimate(layer, config, AVX512, 1, Winograd1dGeometry).cycles["L2"]

    # Else a tenth of the panels' way shows.
    assert max(from_l2(10, 32), from_l2(14, 16)) < 1.5e5
    assert from_l2(28, 16) > 1e6
