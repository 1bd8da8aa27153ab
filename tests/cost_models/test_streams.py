"""What passes through the caches, and what of it shows: terms that follow the facts of a core."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, WinogradConfig
from tvm_blislike.cost_models.moving import bytes_per_cycle, late_share, missing_share
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.schedules import get_implementation

SAME = (1, 1, 1, 1)
# As a probe finds one: loads beside multiply-adds cost nothing, L3 is farther than described.
_DESCRIBED = Core.named("emeraldrapids")
CORE = dataclasses.replace(
    _DESCRIBED,
    element_load_cycles=0.0,
    vector_load_cycles=0.0,
    lines_in_flight=11,
    ghz=2.75,
    memory_core_gb_per_s=16.0,
    caches=(*_DESCRIBED.caches[:2], dataclasses.replace(_DESCRIBED.caches[2], bytes_per_cycle=8.0)),
)


def estimated(workload: Conv2dWorkload, config: Config, core: Core = CORE) -> Estimate:
    return get_implementation(config.implementation).estimate(workload, config, core, 1)


def chosen(workload: Conv2dWorkload, core: Core, name: str) -> Config:
    implementation = get_implementation(name)
    return min(
        implementation.configs(workload, core, 1),
        key=lambda c: implementation.estimate(workload, c, core, 1).seconds,
    )


def with_l2(core: Core, factor: int) -> Core:
    caches = [
        dataclasses.replace(c, bytes=c.bytes * (factor if c.level == 2 else 1)) for c in core.caches
    ]
    return dataclasses.replace(core, caches=tuple(caches))


@pytest.mark.parametrize("size", [1.01, 1.2, 2.0, 7.0])
def test_what_a_cache_loses_is_what_random_replacement_loses(size: float) -> None:
    share = missing_share(1000 * size, 1000)
    assert 0 < share < 1
    assert 1 - share == pytest.approx(math.exp(-share * size), rel=1e-3)
    assert share > missing_share(1000 * size, 1010)


def test_what_fits_is_kept_and_nothing_without_room() -> None:
    assert missing_share(1000, 1000) == 0.0
    assert missing_share(1, 0) == 1.0
    assert missing_share(1e9, 1) == pytest.approx(1.0)


def test_lines_in_flight_come_in_time() -> None:
    assert late_share(CORE, 5) == 0.0
    assert late_share(CORE, 11) == pytest.approx(0.5)
    assert late_share(dataclasses.replace(CORE, lines_in_flight=64), 28) == 0.0


# --- V of a Winograd convolution from beyond L2 ------------------------------------------------

LAYER = Conv2dWorkload(1, 256, 56, 56, 256, 3, 3, padding=SAME)
MANY_LINES = dataclasses.replace(CORE, lines_in_flight=64)


def winograd(mr: int, nr: int) -> WinogradConfig:
    return WinogradConfig(
        mr=mr,
        nr=nr,
        mc=50,
        nc=64,
        tile_h=6,
        tile_w=6,
        oh_block=5,
        loop_order=CHANNELS,
        data_layout="NCHW16c",
        out_layout="NCHW16c",
        prefetch=1,
    )


def test_tall_blocks_wait_for_rows_of_v_from_beyond_l2() -> None:
    """6.6 ms with 6x64 blocks, 7.4 with 13x32."""
    low, tall = (estimated(LAYER, winograd(*block)) for block in ((6, 64), (13, 32)))
    assert tall.cycles["V"] > 1.5 * low.cycles["V"]
    assert tall.seconds > low.seconds
    near, far = (estimated(LAYER, winograd(13, 32), core) for core in (MANY_LINES, CORE))
    assert near.cycles["V"] < far.cycles["V"]
    assert estimated(LAYER, winograd(13, 32), with_l2(CORE, 8)).cycles["V"] == 0


def test_the_lines_in_flight_decide_the_height_of_blocks() -> None:
    few = chosen(LAYER, CORE, "conv2d_winograd")
    many = chosen(LAYER, MANY_LINES, "conv2d_winograd")
    assert few.mr < many.mr


def test_weights_that_exceed_l2_a_little_stay_in_part() -> None:
    """64 to 192 channels of 56x56: 1.8 MB of weights for each block of tiles."""
    layer = Conv2dWorkload(1, 64, 56, 56, 192, 3, 3, padding=SAME)
    config = winograd(10, 32).with_fields(
        tile_h=4, tile_w=4, mc=28, nc=32, oh_block=2, loop_order="tiles"
    )
    sizes = [estimated(layer, config, with_l2(CORE, n)).cycles["weights"] for n in (1, 2, 4)]
    assert sizes[0] > sizes[1] == sizes[2]  # what is left comes from memory, once
    smaller = dataclasses.replace(CORE, caches=with_l2(CORE, 1).caches[:1] + CORE.caches[2:])
    assert estimated(layer, config, smaller).cycles["weights"] > sizes[0]


# --- images that pass through L2 ---------------------------------------------------------------


def direct(mr: int, nr: int, oh_block: int = 1) -> DirectConfig:
    return DirectConfig(
        mr=mr,
        nr=nr,
        tile_h=1,
        tile_w=mr,
        oh_block=oh_block,
        loop_order="rows",
        data_layout="NCHW16c",
        out_layout="NCHW16c",
    )


def test_computation_hides_most_of_an_image() -> None:
    """256 channels of 56x56 to 64 take as long as their FMAs, though 3.2 MB come from L3."""
    layer = Conv2dWorkload(1, 256, 56, 56, 64, 1, 1)
    way = 4 * 256 * 56 * 56 / bytes_per_cycle(CORE, 3)
    assert 0 < estimated(layer, direct(4, 64)).cycles["input"] < 0.25 * way
    assert estimated(layer, direct(4, 64), with_l2(CORE, 4)).cycles["input"] == 0


def test_a_slab_comes_once_for_one_tile_of_channels() -> None:
    """288 channels of 35x35 to 64: 0.262 ms with 5x64 blocks of the image, 0.271 with 5x32."""
    layer = Conv2dWorkload(1, 288, 35, 35, 64, 1, 1)
    one, two = (direct(5, nr, 35).with_fields(loop_order="channels") for nr in (64, 32))
    assert estimated(layer, one).cycles["input"] == 0
    assert estimated(layer, two).cycles["input"] > 0


def test_strided_pixels_are_waited_for() -> None:
    """512 channels of 28x28 to 1024, stride 2: 5x64 blocks 1.20 ms, 14x32 blocks 1.27."""
    layer = Conv2dWorkload(1, 512, 28, 28, 1024, 1, 1, stride=(2, 2))

    def tall_to_low(workload: Conv2dWorkload, core: Core) -> float:
        low, tall = (estimated(workload, direct(mr, nr, 7), core) for mr, nr in ((5, 64), (14, 32)))
        return tall.seconds / low.seconds

    dense = dataclasses.replace(layer, h=14, w=14, stride=(1, 1))
    assert tall_to_low(layer, CORE) > 1.04 * tall_to_low(dense, CORE)
    assert tall_to_low(layer, CORE) > 1.04 * tall_to_low(layer, MANY_LINES)


# --- filters of im2col from memory -------------------------------------------------------------

SMALL = Conv2dWorkload(1, 832, 7, 7, 128, 1, 1)


def im2col(mr: int, nr: int, core: Core) -> Estimate:
    implementation = get_implementation("conv2d_im2col")
    blocks = [c for c in implementation.configs(SMALL, core, 1) if (c.mr, c.nr) == (mr, nr)]
    return min(
        (implementation.estimate(SMALL, c, core, 1) for c in blocks), key=lambda e: e.seconds
    )


def test_filters_come_while_the_first_windows_meet_them() -> None:
    """Where those want them faster than memory delivers, all of their way shows."""
    way = 4 * 832 * 128 / bytes_per_cycle(CORE, 0)
    fast = dataclasses.replace(CORE, memory_core_gb_per_s=20 * CORE.memory_core_gb_per_s)
    assert im2col(13, 32, CORE).cycles["filters"] > 0.8 * way
    assert im2col(13, 32, fast).cycles["filters"] < 0.05 * way


def test_small_images_of_many_channels_are_convolved_directly() -> None:
    """832 channels of 7x7 to 128: 0.044 ms, by im2col 0.051 (two threads)."""
    best = {
        name: estimated(SMALL, chosen(SMALL, CORE, name)).seconds
        for name in ("conv2d_direct", "conv2d_im2col")
    }
    assert best["conv2d_direct"] < best["conv2d_im2col"]


# --- sums of A of products by Strassen's algorithm ---------------------------------------------


def test_sums_of_a_by_tiles_wait_for_rows() -> None:
    """By products all sums of a product follow one another."""
    product, implementation = GemmWorkload(197, 768, 768), get_implementation("gemm_strassen")

    def fastest(core: Core, order: str) -> float:
        offered = implementation.configs(product, CORE, 1)
        return min(
            implementation.estimate(product, c, core, 1).seconds
            for c in offered
            if c.loop_order == order and c.mr == 13
        )

    assert fastest(CORE, "tiles") > 1.02 * fastest(MANY_LINES, "tiles")
    assert fastest(CORE, "products") == fastest(MANY_LINES, "products")
