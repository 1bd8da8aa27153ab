"""Winograd configurations that a core's measurements decided, layer by layer."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from tvm_blislike.cost_models.conv2d_winograd import candidates
from tvm_blislike.cost_models.conv2d_winograd import estimate as winograd
from tvm_blislike.cost_models.conv2d_winograd.config import TILES, WinogradConfig
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.moving import share_bytes, uses_as_it_comes
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules import get_implementation

AVX512 = Core.named("sapphirerapids")
ZEN4 = Core.named("zen4")


def slower_beyond_l2(core: Core, times: float) -> Core:
    """Return a core whose L3 and memory give fewer bytes."""
    third = core.cache(3)
    rates = third.bytes_per_cycle / times, third.all_bytes_per_cycle
    rates = rates[0], rates[1] and rates[1] / times
    third = dataclasses.replace(third, bytes_per_cycle=rates[0], all_bytes_per_cycle=rates[1])
    memory = {
        "memory_gb_per_s": core.memory_gb_per_s / times,
        "memory_core_gb_per_s": core.memory_core_gb_per_s and core.memory_core_gb_per_s / times,
    }
    return dataclasses.replace(core, caches=(*core.caches[:2], third), **memory)


SLOWER = [slower_beyond_l2(ZEN4, times) for times in (1, 3, 10, 30)]


def layer(channels: int, size: int, co: int | None = None) -> Conv2dWorkload:
    return Conv2dWorkload(1, channels, size, size, co or channels, 3, 3, padding=(1, 1, 1, 1))


def fastest(workload: Conv2dWorkload, core: Core, threads: int) -> WinogradConfig:
    configs = candidates.configs(workload, core, threads)
    return min(configs, key=lambda c: winograd.estimate(workload, c, core, threads).seconds)


@pytest.mark.parametrize(
    "workload, threads",
    [
        # ms by F(4, 3) and F(6, 3), each the best of its blocks.
        (layer(64, 56), 1),  # 0.771, 0.717
        (layer(32, 28), 1),  # 0.0727, 0.0660
        (layer(64, 28, 96), 1),  # 0.300, 0.277
        (layer(64, 56), 2),  # 0.399, 0.379
        (layer(96, 28, 128), 2),  # 0.319, 0.275
        (layer(32, 28), 2),  # 0.0529, 0.0419
        (layer(64, 28, 96), 2),  # 0.172, 0.148
    ],
    ids=str,
)
def test_largest_tiles_where_spilled_passes_are_no_slower(
    workload: Conv2dWorkload, threads: int
) -> None:
    spilling = dataclasses.replace(ZEN4, spilled_passes=1.7)
    assert fastest(workload, ZEN4, threads).tile_w == 6
    assert fastest(workload, spilling, threads).tile_w == 4


def test_blocks_go_beyond_l2_where_the_next_level_is_near() -> None:
    """Zen 4, two threads: 49 tiles in two parts are faster than blocks of 14 (0.33 and 0.39 ms).

    Of F(4, 3): where F(6, 3) is no slower per vector, all its 25 tiles are in a block either way.
    """
    near, workload = dataclasses.replace(ZEN4, spilled_passes=1.7), layer(128, 28)
    far = dataclasses.replace(near, l2_crowding=0.6)
    found = {}
    for core in (near, far):
        config = fastest(workload, core, 2)
        geo = WinogradGeometry(workload, config)
        found[core.l2_crowding] = (geo.v_bytes + geo.p_bytes) / share_bytes(core, 2, 2)
        said = candidates.derivation(workload, config, core, 2)[0]
        assert said.endswith("as the level beyond is near") == (core is near)
    assert found[near.l2_crowding] > 1 > 0.5 > found[far.l2_crowding]


def test_threads_pass_parts_of_v_where_that_is_fast() -> None:
    """Zen 5: cores of one complex 0.155 ms by channels, 0.176 by tiles; of two 0.29 and 0.195."""
    near, workload = Core.named("zen5"), layer(128, 28)
    far = dataclasses.replace(near, is_virtual=True)
    assert fastest(workload, near, 2).loop_order == "channels"
    assert fastest(workload, far, 2).loop_order == "tiles"


@pytest.mark.parametrize("threads", [1, 2])
def test_many_channels_let_blocks_pass_by_l2(threads: int) -> None:
    """Zen 4: 195 ms in blocks of 16 tiles and more, 326 in those of 4 that fit into L2.

    Two threads 107 to 118.
    """
    workload = layer(2048, 64, 512)
    config = fastest(workload, ZEN4, threads)
    geo = WinogradGeometry(workload, config)
    passing = geo.v_bytes + geo.p_bytes
    assert passing > 2 * share_bytes(ZEN4, 2, threads) and config.mc >= 11
    assert winograd.estimate(workload, config, ZEN4, threads).seconds < 0.24 / threads
    said = candidates.derivation(workload, config, ZEN4, threads)[0]
    assert said.endswith("so that weights do so less often")


def test_blocks_that_pass_by_take_the_time_of_their_bytes() -> None:
    """A slower level beyond L2 makes them slower."""
    workload = layer(1024, 32, 512)
    config = fastest(workload, ZEN4, 1)
    passing = [winograd.estimate(workload, config, core, 1).cycles["crowding"] for core in SLOWER]
    assert all(less < more for less, more in itertools.pairwise(passing))


GOLDEN_COVE = [
    # ci = co, size, threads, and which forms measured within a tenth of the fastest.
    (64, 56, 1, [("tiles", 4), ("tiles", 6)]),
    (64, 224, 1, [("tiles", 4), ("tiles", 6)]),
    (128, 28, 1, [("tiles", 4), ("channels", 4), ("channels", 6)]),
    (64, 112, 1, [("tiles", 4), ("tiles", 6)]),
    (128, 112, 1, [("tiles", 4), ("tiles", 6)]),
    (128, 56, 1, [("tiles", 4), ("tiles", 6)]),
    (256, 56, 1, [("channels", 6), ("channels", 4), ("tiles", 4)]),
    (512, 28, 1, [("channels", 4)]),
    (512, 14, 1, [("channels", 2)]),
    (64, 56, 2, [("tiles", 4)]),
    (128, 28, 2, [("tiles", 4)]),
    (512, 14, 2, [("channels", 2)]),
]


@pytest.mark.parametrize("channels, size, threads, fast", GOLDEN_COVE, ids=str)
def test_choice_is_one_that_measured_fast_on_golden_cove(
    channels: int, size: int, threads: int, fast: list[tuple[str, int]]
) -> None:
    workload = layer(channels, size)
    best = fastest(workload, AVX512, threads)
    assert (best.loop_order, best.tile_w) in fast
    geo = WinogradGeometry(workload, best)
    if best.loop_order == TILES:
        # Half of L2 leaves room for the weights.
        level = share_bytes(AVX512, 2, threads)
        assert geo.v_bytes + geo.p_bytes <= 0.6 * level


@pytest.mark.parametrize("name", ["conv2d_winograd", "conv2d_winograd_1d"])
def test_panels_that_a_single_call_uses_are_not_asked_for(name: str) -> None:
    workload = layer(64, 14)
    configs = list(get_implementation(name).configs(workload, ZEN4, 1))
    assert {c.prefetch for c in configs} == {0, 1}
    for c in configs:
        assert c.prefetch == int(c.mc > c.mr or not uses_as_it_comes(ZEN4, c.mr))
    # Where requests from several places bring more than prefetchers alone.
    assert {c.prefetch for c in get_implementation(name).configs(workload, AVX512, 1)} == {1}


def test_few_rows_use_panels_as_they_come() -> None:
    """Zen 4: a line is used in as many cycles as rows, and comes from memory in 9.6."""
    assert [uses_as_it_comes(ZEN4, rows) for rows in (1, 9, 10, 16)] == [True, True, False, False]
    slower = dataclasses.replace(ZEN4, memory_core_gb_per_s=15.0, name="slower")
    assert uses_as_it_comes(slower, 16) and not uses_as_it_comes(slower, 20)
    assert not uses_as_it_comes(dataclasses.replace(ZEN4, prefetch_streams=2, name="parts"), 1)
