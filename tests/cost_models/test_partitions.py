"""Parts of the threads: what any number of them may wait for each other, and what they share."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tvm_blislike.cost_models.conv2d_winograd import candidates
from tvm_blislike.cost_models.conv2d_winograd import estimate as winograd
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.moving import bytes_per_cycle, share_bytes, sharers
from tvm_blislike.cost_models.parallel import share, spanned
from tvm_blislike.cost_models.roofline import SHARED_CORES
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload

ZEN4 = Core.named("zen4")
# The 3x3 layers of resnet18 and vgg16: channels and size.
LAYERS = [(64, 56), (128, 28), (256, 14), (512, 7), (64, 224), (128, 112), (256, 56), (512, 28)]


def layer(channels: int, size: int, images: int = 1) -> Conv2dWorkload:
    return Conv2dWorkload(images, channels, size, size, channels, 3, 3, padding=(1, 1, 1, 1))


def chip(cores: int) -> Core:
    return dataclasses.replace(ZEN4, cores=cores)


@pytest.mark.parametrize("threads", [2, 4, 8, 16, 64])
@pytest.mark.parametrize("channels, size", LAYERS)
def test_no_thread_of_a_winograd_layer_waits_for_long(
    channels: int, size: int, threads: int
) -> None:
    """The busiest thread has at most 1.3 equal parts of the tiles, those it fills up included."""
    workload, core = layer(channels, size), chip(threads)
    best = min(
        candidates.configs(workload, core, threads),
        key=lambda c: winograd.estimate(workload, c, core, threads).seconds,
    )
    geo = WinogradGeometry(workload, best)
    assert share(geo.parts, threads) * threads <= 1.3
    if best.loop_order == CHANNELS:
        assert geo.transform_share(threads) * threads <= 1.3


def test_blocks_are_made_even_for_many_threads() -> None:
    """38x38 tiles for 16 threads: rows leave a fifth idle, 19 rows of 5 tiles a twentieth."""
    workload = layer(32, 152)
    even = [
        (c.oh_block, c.mc // c.oh_block)
        for c in candidates.configs(workload, chip(16), 16)
        if c.tile_h == 4 and c.oh_block > 1 and c.mc < c.oh_block * 38
    ]
    assert (19, 5) in even
    assert not [
        c for c in candidates.configs(workload, chip(16), 1) if (c.oh_block, c.mc) == (19, 95)
    ]


@pytest.mark.parametrize("parts, threads, group", [(8, 2, 4), (6, 4, 3), (5, 2, 5), (12, 5, 4)])
def test_groups_that_a_run_touches(parts: int, threads: int, group: int) -> None:
    run = math.ceil(parts / threads)
    runs = [range(start, min(start + run, parts)) for start in range(0, parts, run)]
    assert spanned(parts, threads, group) == max(len({i // group for i in r}) for r in runs)
    assert share(parts, threads) == max(map(len, runs)) / parts


def test_threads_share_what_a_level_delivers() -> None:
    l3 = dataclasses.replace(ZEN4.caches[2], bytes_per_cycle=20.0, all_bytes_per_cycle=40.0)
    core = dataclasses.replace(
        ZEN4, caches=(*ZEN4.caches[:2], l3), memory_gb_per_s=60.0, memory_core_gb_per_s=30.0
    )
    assert bytes_per_cycle(core, 0) == bytes_per_cycle(core, 0, 2) == 30.0 / core.ghz
    assert bytes_per_cycle(core, 0, 8) == 7.5 / core.ghz
    assert [bytes_per_cycle(core, 3, n) for n in (1, 2, 4, 8)] == [20, 20, 10, 5]
    # Each core has its own.
    assert bytes_per_cycle(core, 2, 8) == bytes_per_cycle(core, 2)


def test_hardware_threads_share_a_core_and_its_caches() -> None:
    l2 = ZEN4.cache(2)
    assert [sharers(ZEN4, l2, n) for n in (1, 8, 16)] == [1, 1, 2]
    assert share_bytes(ZEN4, 2, 16) == l2.bytes // 2
    workload = layer(64, 56)
    config = next(candidates.configs(workload, ZEN4, 8))
    eight, sixteen = (winograd.estimate(workload, config, ZEN4, n) for n in (8, 16))
    assert SHARED_CORES not in eight.cycles and sixteen.cycles[SHARED_CORES] > 0
    # A second thread on each core has no FMA unit of its own.
    assert sixteen.seconds > 0.9 * eight.seconds


def test_memory_for_all_decides_between_transforms() -> None:
    """Weights of F(4, 3) are 36 values for 9: where all cores get little from memory, F(2, 3)."""
    workload = layer(512, 7)

    def tile(core: Core) -> int:
        return min(
            candidates.configs(workload, core, 8),
            key=lambda c: winograd.estimate(workload, c, core, 8).seconds,
        ).tile_h

    slow = dataclasses.replace(ZEN4, memory_gb_per_s=10.0)
    fast = dataclasses.replace(ZEN4, memory_gb_per_s=8e3, memory_core_gb_per_s=1e3)
    assert tile(slow) == 2 < tile(fast)
