"""Predicted time of the direct convolution: properties on any core, and one layer by hand."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
from conv_workloads import LARGE_CHANNELS, ODD_CONVOLUTIONS, convolutions
from estimates import (
    AVX512,
    CORES,
    KINDS,
    assert_more_work_takes_longer,
    assert_threads_cost_a_fork_at_most,
    check_all,
    check_registers,
    cores,
    doubled,
    fastest,
    late,
    loads,
    odd_shapes,
    on_every,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_direct.candidates import layouts
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_direct.estimate import L2_PLANNED
from tvm_blislike.cost_models.issue import FMA_EFFICIENCY, calls_in_flight
from tvm_blislike.cost_models.moving import bytes_per_cycle, missing_share, uses_as_it_comes
from tvm_blislike.hardware import Core
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_direct.definition import IMPLEMENTATION

SAME = (1, 1, 1, 1)
ODD = [*ODD_CONVOLUTIONS, Conv2dWorkload(1, 240, 14, 14, 240, 1, 1, groups=3)]


workloads = partial(
    convolutions,
    channels=LARGE_CHANNELS,
    groups=(1, 1, 1, 2, 3),
    image=80,
    stride=2,
    most_macs=math.inf,
)


@on_every(KINDS)
def test_odd_shapes_on_every_core(core: Core, threads: int) -> None:
    for workload, config in odd_shapes(IMPLEMENTATION, ODD, core, threads):
        check_registers(config, core)
        assert config.tile_h * config.tile_w == config.mr
        assert config.tile_h <= workload.oh and config.tile_w <= workload.ow


@settings(max_examples=60, deadline=None)
@given(workloads(), cores(), st.integers(1, 8))
def test_any_workload_on_any_core(workload: Conv2dWorkload, core: Core, threads: int) -> None:
    assume(IMPLEMENTATION.applies(workload, core) == "")
    for config in check_all(IMPLEMENTATION, workload, core, threads):
        check_registers(config, core)


@settings(max_examples=60, deadline=None)
@given(workloads(), cores(), st.sampled_from(["n", "ci", "co", "h", "w"]))
def test_more_work_takes_longer(workload: Conv2dWorkload, core: Core, size: str) -> None:
    more = doubled(workload, size)
    assume(more.macs > workload.macs)
    assume(not IMPLEMENTATION.applies(workload, core) and not IMPLEMENTATION.applies(more, core))
    # The width of a group decides which blocks fit it exactly.
    assume(workload.groups == 1 or size != "co")
    # Another layout of the image is another way to compute it.
    assume(layouts(workload, core.lanes()) == layouts(more, core.lanes()))
    assert_more_work_takes_longer(IMPLEMENTATION, workload, more, core)


def level(estimate: Estimate, operand: str) -> int:
    return next(entry[1] for entry in estimate.footprint if entry[0] == operand)


@settings(max_examples=60, deadline=None)
@given(workloads(), cores(), st.integers(2, 8))
def test_threads_cost_a_fork_at_most(workload: Conv2dWorkload, core: Core, threads: int) -> None:
    assume(IMPLEMENTATION.applies(workload, core) == "")
    assume(threads <= core.cores)  # Others take turns, and push each other's operands out.
    one, several = (fastest(IMPLEMENTATION, workload, core, n) for n in (1, threads))
    # Threads that share L2 may push each other's images out of it.
    kept = level(several, "input slab") == level(one, "input slab")
    assume(kept or core.cache(2) is None or core.cache(2).shared_by == 1)
    assert_threads_cost_a_fork_at_most(one, several, core)


def test_two_threads_halve_a_large_layer() -> None:
    layer = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=SAME)
    one, two = (fastest(IMPLEMENTATION, layer, AVX512, threads) for threads in (1, 2))
    assert two.seconds < 0.6 * one.seconds


# --- one layer by hand: the second of ResNet-18, blocks of 1x14 pixels by 32 channels ----------

LAYER = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=SAME)
CONFIG = DirectConfig(
    mr=14,
    nr=32,
    loop_order="rows",
    data_layout="NCHW16c",
    out_layout="NCHW16c",
    tile_h=1,
    tile_w=14,
    oh_block=8,
)
L2 = 2 * 2**20
PANEL = 64 * 3 * 3 * 32 * 4  # 73,728 bytes: more than L1
SLAB = (8 + 2) * (56 + 2) * 64 * 4  # eight rows of outputs read ten of the padded image


def test_footprint_by_hand() -> None:
    estimate = IMPLEMENTATION.estimate(LAYER, CONFIG, AVX512, 1)
    assert estimate.footprint == (
        ("weight panel", 2, PANEL, PANEL / L2),
        ("input slab", 2, SLAB, SLAB / L2),
        ("weights", 2, 2 * PANEL, 2 * PANEL / L2),
    )


def test_time_of_the_fmas_by_hand() -> None:
    """56 columns are four whole blocks: nothing is wasted at an edge, loads take their part."""
    estimate = IMPLEMENTATION.estimate(LAYER, CONFIG, AVX512, 1)
    vectors = 64 * 64 * 9 * 56 * 56 / 16
    assert estimate.cycles["fma"] == pytest.approx(vectors / 2 / FMA_EFFICIENCY)
    busy = 14 / FMA_EFFICIENCY + loads(14, 2)
    step = late(busy, 4 / calls_in_flight(AVX512, 14, 2, 576))
    beside = vectors / 28 * (step - 14 / FMA_EFFICIENCY)
    assert estimate.cycles["loads and edges"] == pytest.approx(beside)
    assert estimate.cycles["fork"] == 0
    half = IMPLEMENTATION.estimate(LAYER, CONFIG.with_fields(oh_block=7), AVX512, 2)
    assert half.cycles["fma"] == pytest.approx(estimate.cycles["fma"] / 2)


def test_cut_blocks_cost_what_the_missing_pixels_would() -> None:
    """57 columns: a fifth block of one column, whose FMAs wait for one another."""
    wider = Conv2dWorkload(1, 64, 56, 57, 64, 3, 3, padding=SAME)
    estimate = IMPLEMENTATION.estimate(wider, CONFIG, AVX512, 1)
    # One row of two vectors: the latency of an FMA, 4 cycles, for the two FMAs of each step, as
    # far as the next call does not start meanwhile.
    latency = 4 / calls_in_flight(AVX512, 1, 2, 576)
    step = late(1 / FMA_EFFICIENCY + loads(1, 2), latency)
    waiting = 56 * 2 * 576 * (step - 1 / FMA_EFFICIENCY)
    beside = IMPLEMENTATION.estimate(LAYER, CONFIG, AVX512, 1).cycles["loads and edges"]
    assert estimate.cycles["loads and edges"] == pytest.approx(waiting + beside, rel=1e-6)


def test_workspace_is_the_padded_copy() -> None:
    assert IMPLEMENTATION.workspace_bytes(LAYER, CONFIG, 1) == SLAB
    assert IMPLEMENTATION.workspace_bytes(LAYER, CONFIG, 2) == 2 * SLAB
    channels = CONFIG.with_fields(loop_order="channels", oh_block=56)
    assert IMPLEMENTATION.workspace_bytes(LAYER, channels, 2) == 64 * 58 * 58 * 4
    bare = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3)
    assert IMPLEMENTATION.workspace_bytes(bare, CONFIG, 2) == 0


def test_weights_of_the_last_layers_come_from_memory() -> None:
    """7x7 images of 512 channels: 9.4 MB of weights pass L2 once, and show."""
    layer = Conv2dWorkload(1, 512, 7, 7, 512, 3, 3, padding=SAME)
    estimate = fastest(IMPLEMENTATION, layer, AVX512, 1)
    assert level(estimate, "weights") == 3
    assert estimate.cycles["weights"] > 0.15 * estimate.cycles["fma"]
    near = fastest(IMPLEMENTATION, LAYER, AVX512, 1)
    assert near.peak_fraction > estimate.peak_fraction


def test_boards_without_a_third_level_read_from_memory() -> None:
    board = Core.named("cortex-a72")
    layer = Conv2dWorkload(1, 512, 14, 14, 512, 3, 3, padding=SAME)
    levels = {
        entry[1]
        for config in IMPLEMENTATION.configs(layer, board, 1)
        for entry in IMPLEMENTATION.estimate(layer, config, board, 1).footprint
    }
    assert levels <= {0, 1, 2} and 0 in levels


def test_first_layers_are_offered_no_block_that_spills() -> None:
    """14x32 with a 3x3 kernel: LLVM keeps overlapping windows in registers that do not exist."""
    layer = Conv2dWorkload(1, 3, 224, 224, 32, 3, 3, padding=SAME)
    blocks = {(c.mr, c.nr) for c in IMPLEMENTATION.configs(layer, AVX512, 1)}
    assert (7, 32) in blocks and (14, 32) not in blocks
    plain = Conv2dWorkload(1, 64, 224, 224, 32, 3, 3, padding=SAME)
    assert (14, 32) in {(c.mr, c.nr) for c in IMPLEMENTATION.configs(plain, AVX512, 1)}


@pytest.mark.parametrize(
    "workload, expected",
    [
        (Conv2dWorkload(1, 3, 9, 9, 64, 3, 3), ("NCHW", "NCHW16c")),
        (Conv2dWorkload(1, 3, 9, 9, 24, 3, 3), ("NCHW", "NHWC")),
        (Conv2dWorkload(1, 3, 9, 9, 64, 1, 1), ("NHWC", "NCHW16c")),
        (Conv2dWorkload(1, 1, 9, 9, 64, 1, 1), ("NCHW", "NCHW16c")),
        (Conv2dWorkload(1, 64, 9, 9, 57, 3, 3), ("NCHW16c", "NHWC")),
        (Conv2dWorkload(1, 64, 9, 9, 96, 3, 3, groups=2), ("NCHW16c", "NCHW16c")),
        (Conv2dWorkload(1, 64, 9, 9, 48, 3, 3, groups=2), ("NHWC", "NHWC")),
    ],
    ids=str,
)
def test_layouts(workload: Conv2dWorkload, expected: tuple[str, str]) -> None:
    assert layouts(workload, 16) == expected


def test_bursts_of_lines_from_beyond_l2_are_waited_for() -> None:
    """128 channels of 55x55 to 16: 28x16 blocks took 1.2 times as long as 8x16 blocks."""
    layer = Conv2dWorkload(1, 128, 55, 55, 16, 1, 1)

    def input_cycles(workload: Conv2dWorkload, mr: int) -> float:
        config = CONFIG.with_fields(
            mr=mr, nr=16, tile_w=mr, loop_order="channels", oh_block=workload.oh
        )
        return IMPLEMENTATION.estimate(workload, config, AVX512, 1).cycles["input"]

    image = 4 * 128 * 55 * 55
    between = 2 * image + 4 * 16 * 55 * 55
    late = missing_share(between, L2_PLANNED * L2) * image * (1 - 8 / 28)
    # The rest of its way is the same for all blocks.
    burst = input_cycles(layer, 28) - input_cycles(layer, 8)
    assert burst == pytest.approx(late / bytes_per_cycle(AVX512, 3))
    assert input_cycles(dataclasses.replace(layer, h=14, w=14), 14) == 0


def test_a_panel_streams_from_l2_as_long_as_the_next_one_and_the_slab_fit_too() -> None:
    """512 channels of 7x7: two panels of 0.84 MiB and 0.16 MiB of image in 2 MiB."""
    narrow = Conv2dWorkload(1, 512, 7, 7, 512, 3, 3, padding=SAME)
    config = CONFIG.with_fields(mr=1, nr=48, tile_w=1, oh_block=7)
    fits = IMPLEMENTATION.estimate(narrow, config, AVX512, 1)
    too_large = IMPLEMENTATION.estimate(dataclasses.replace(narrow, h=28, w=28), config, AVX512, 1)
    assert too_large.cycles["L2"] > 2 * 16 * fits.cycles["L2"] > 0


BYTES = Types("uint8", "int8", "int32", "int32")


def bytes_of(size: int, channels: int) -> Conv2dWorkload:
    """A layer of bytes."""
    return Conv2dWorkload(1, channels, size, size, channels, 3, 3, padding=SAME, types=BYTES)


def block_of(mr: int, nr: int, tile_h: int, **fields: int) -> DirectConfig:
    """A block of bytes over whole rows of 7 pixels."""
    return CONFIG.with_fields(
        mr=mr, nr=nr, ks=4, tile_h=tile_h, tile_w=mr // tile_h, oh_block=4, prefetch=0
    ).with_fields(data_layout="NHWC", out_layout="NHWC", **fields)


def test_narrow_panels_from_memory_wait_for_their_lines() -> None:
    """512 channels of 7x7 on Zen 4, of the peak: 14x32 0.98, 14x16 0.81, 21x16 0.69."""
    layer, zen4 = bytes_of(7, 512), Core.named("zen4")
    blocks = (block_of(14, 32, 2), block_of(14, 16, 2), block_of(21, 16, 3, oh_block=3))
    wide, narrow, tall = (IMPLEMENTATION.estimate(layer, b, zen4, 1).seconds for b in blocks)
    assert wide < narrow < tall
    asked = IMPLEMENTATION.estimate(layer, blocks[2].with_fields(prefetch=1), zen4, 1)
    unknown = dataclasses.replace(zen4, loads_in_flight=None)
    assert asked.cycles["weights"] < 0.5 * wide * zen4.ghz * 1e9
    assert IMPLEMENTATION.estimate(layer, blocks[2], unknown, 1).seconds == asked.seconds < tall


@pytest.mark.parametrize("core", CORES, ids=lambda core: core.name)
def test_panels_of_floats_are_asked_for_where_several_blocks_use_them(core: Core) -> None:
    for size in (1, 2, 7):
        layer = Conv2dWorkload(1, 96, size, size, 96, 3, 3, padding=SAME)
        configs = list(IMPLEMENTATION.configs(layer, core, 1))
        assert configs
        for c in configs:
            several = c.oh_block * math.ceil(size / c.tile_w) > 1
            assert c.prefetch == int(several or not uses_as_it_comes(core, c.mr))
        alone = core.prefetch_streams == 1
        assert (size > 1 or not alone) == any(c.prefetch for c in configs)


def test_panels_of_bytes_are_asked_for_where_many_blocks_use_them() -> None:
    zen4 = Core.named("zen4")
    few = IMPLEMENTATION.configs(bytes_of(7, 512), zen4, 1)
    many = IMPLEMENTATION.configs(bytes_of(56, 64), zen4, 1)
    assert {c.prefetch for c in many if c.oh_block * 56 >= 8 * c.tile_w} == {1}
    assert {c.prefetch for c in few if c.tile_h >= 2} == {0}
    board = Core.named("cortex-a76")
    signed = dataclasses.replace(bytes_of(56, 64), types=Types("int8", "int8", "int32", "int32"))
    assert {c.prefetch for c in IMPLEMENTATION.configs(signed, board, 1)} == {0}


def test_pixels_of_bytes_wait_for_their_lines_where_nothing_follows_rows() -> None:
    """1024 channels of 14x14 to 256 on Zen 4, of the peak: 0.93 with 14x16, 0.95 with 7x16."""
    layer, zen4 = Conv2dWorkload(1, 1024, 14, 14, 256, 1, 1, types=BYTES), Core.named("zen4")

    def apart(mr: int, core: Core, layer: Conv2dWorkload = layer) -> float:
        block = block_of(mr, 16, 1, oh_block=layer.oh, loop_order="channels")
        return IMPLEMENTATION.estimate(layer, block, core, 1).cycles["rows apart"]

    assert apart(14, zen4) > 0 == apart(7, zen4)
    assert apart(14, dataclasses.replace(zen4, follows_rows=True)) == 0
    near = dataclasses.replace(layer, ci=64)
    assert apart(14, zen4, near) == 0
