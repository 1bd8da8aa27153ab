"""Predicted time of the im2col convolution: properties on any core, and one layer by hand."""

from __future__ import annotations

import itertools
import math
import time
from functools import partial

import pytest
from conv_workloads import LARGE_CHANNELS, ODD_CONVOLUTIONS, convolutions
from estimates import (
    AVX512,
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

from tvm_blislike.cost_models.conv2d_im2col import estimate as im2col
from tvm_blislike.cost_models.conv2d_im2col import geometry as im2col_geometry
from tvm_blislike.cost_models.conv2d_im2col.candidates import configs
from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import Im2colGeometry
from tvm_blislike.cost_models.conv2d_im2col.nests import nest_of
from tvm_blislike.cost_models.conv2d_im2col.packing import copy_cycles
from tvm_blislike.cost_models.conv2d_im2col.slicing import slicings
from tvm_blislike.cost_models.issue import CALL_CYCLES, FMA_EFFICIENCY
from tvm_blislike.cost_models.moving import LOSS, vector_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernel_of, kernels_for
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_im2col.definition import IMPLEMENTATION

SAME = (1, 1, 1, 1)
LAYER = Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, padding=SAME)
DEEP = Conv2dWorkload(1, 512, 7, 7, 512, 3, 3, padding=SAME)


workloads = partial(convolutions, channels=LARGE_CHANNELS, image=80, stride=2, most_macs=math.inf)
grouped = partial(workloads, groups=(1, 2, 6))


def check_geometry(config: Config, workload: Conv2dWorkload, core: Core) -> None:
    """Raise AssertionError when blocks are not alike or a kernel may spill."""
    geo = Im2colGeometry(workload, config)
    assert geo.rows * geo.blocks_h == workload.oh
    assert geo.channels * geo.sets == workload.ci
    assert geo.channels % geo.slab_channels == 0
    assert config.mc % geo.filters == 0
    assert geo.filter_blocks * geo.block_tiles >= geo.filter_tiles
    kernel = kernel_of(core, config.mr, config.nr)
    assert keeps_registers(core, kernel, nest_of(config.columns))


@on_every(KINDS)
def test_odd_shapes_on_every_core(core: Core, threads: int) -> None:
    for workload, config in odd_shapes(IMPLEMENTATION, ODD_CONVOLUTIONS, core, threads):
        check_registers(config, core)
        check_geometry(config, workload, core)


@settings(max_examples=40, deadline=None)
@given(grouped(), cores(), st.integers(1, 8))
def test_any_workload_on_any_core(workload: Conv2dWorkload, core: Core, threads: int) -> None:
    for config in check_all(IMPLEMENTATION, workload, core, threads):
        check_registers(config, core)


@settings(max_examples=40, deadline=None)
@given(workloads(), st.sampled_from(["n", "ci", "co"]))
def test_more_work_takes_longer(workload: Conv2dWorkload, size: str) -> None:
    # From fewer channels the input is the model's, and moving it is free.
    assume(size != "ci" or workload.ci >= im2col.FEW_CHANNELS)
    assert_more_work_takes_longer(IMPLEMENTATION, workload, doubled(workload, size), AVX512)


@settings(max_examples=40, deadline=None)
@given(workloads(), st.integers(2, 4))
def test_threads_help_or_cost_a_fork(workload: Conv2dWorkload, threads: int) -> None:
    one, several = (fastest(IMPLEMENTATION, workload, AVX512, t) for t in (1, threads))
    assert_threads_cost_a_fork_at_most(one, several, AVX512)


def test_channels_in_a_set_of_the_slicing_analysis_are_on_offer() -> None:
    """L1 of 48 KiB holds 6x64 tiles of 17 channels: four sets of 16."""
    n_c = slicings(LAYER, AVX512, 6, 64)[0].n_c
    offered = {c.kc for c in configs(LAYER, AVX512, 1) if (c.mr, c.nr) == (6, 64)}
    assert n_c == 16
    assert {9 * n_c, 9 * LAYER.ci} <= offered


def test_one_layer_by_hand() -> None:
    """FMAs of whole 8x48 tiles at full speed, and one line of a panel for 16 windows of a tap."""
    workload = Conv2dWorkload(1, 64, 48, 48, 64, 1, 1)
    config = Im2colConfig(mr=8, nr=48, mc=64, kc=64, loop_order="IS", oh_block=8)
    cycles = im2col.estimate(workload, config, AVX512, 1).cycles
    fma = workload.macs / 16 / AVX512.fma_per_cycle / FMA_EFFICIENCY
    assert cycles["fma"] == pytest.approx(fma)
    step = late(12 / FMA_EFFICIENCY + loads(8, 3), AVX512.fma_latency)
    beside = workload.macs / 16 / 24 * (step - 12 / FMA_EFFICIENCY)
    assert cycles["loads and edges"] == pytest.approx(beside)
    assert cycles["sums"] == cycles["fork"] == 0.0
    vectors = 64 * 48 * 48 / 16
    # A store a cycle, and a line to L2.
    line = 64 / AVX512.cache(2).bytes_per_cycle
    assert cycles["packing"] == pytest.approx(vectors * LOSS * (1 + line))
    moved = (64 + 64) * 48 * 48
    # 16x16 blocks: four shuffles of a vector. Source and result are in L3.
    transposed = moved / 16 * LOSS * 4
    streamed = 2 * moved * 4 / AVX512.cache(3).bytes_per_cycle
    assert cycles["layouts"] == pytest.approx(transposed + streamed)


def test_a_layer_with_filters_in_the_lanes_by_hand() -> None:
    """14x14 pixels are 28 rows of 7: no tile is cut, and every vector is transposed."""
    workload = Conv2dWorkload(1, 64, 14, 14, 96, 1, 1)
    config = Im2colConfig(mr=7, nr=48, kc=64, loop_order="IS", oh_block=14)
    config = config.with_fields(columns="filters", packing="in place")
    cycles = im2col.estimate(workload, config, AVX512, 1).cycles
    fma = workload.macs / 16 / AVX512.fma_per_cycle / FMA_EFFICIENCY
    assert cycles["fma"] == pytest.approx(fma)
    assert cycles["packing"] == 0.0
    stores = 14 * 14 * 96 / 16 / AVX512.stores_per_cycle
    turned = (im2col.STORE_LOSS + LOSS * im2col.TURN_SHUFFLES) * stores
    assert cycles["calls"] == pytest.approx(28 * 2 * CALL_CYCLES + turned)


@pytest.mark.parametrize(
    "workload, columns",
    [
        (Conv2dWorkload(1, 64, 28, 28, 64, 1, 1), {"", "filters"}),
        (Conv2dWorkload(1, 64, 14, 14, 64, 1, 1), {"filters"}),
        (Conv2dWorkload(1, 64, 28, 28, 64, 1, 1, (2, 2)), set()),
        (Conv2dWorkload(1, 64, 28, 28, 64, 1, 1, padding=SAME), set()),
        (Conv2dWorkload(1, 64, 28, 28, 64, 1, 3), set()),
    ],
    ids=str,
)
def test_windows_are_read_in_place(workload: Conv2dWorkload, columns: set[str]) -> None:
    """Where they are neighbours, and no vector of them is cut: 196 pixels are 12.25 vectors."""
    offered = configs(workload, AVX512, 1)
    assert {c.columns for c in offered if c.packing == "in place"} == columns


def test_groups_are_products_of_their_own() -> None:
    """Four groups take four times what one takes, but for moving images between layouts."""
    config = Im2colConfig(mr=8, nr=48, mc=64, kc=64, loop_order="IS", oh_block=8)
    one, four = (
        im2col.estimate(
            Conv2dWorkload(1, 64 * g, 48, 48, 64 * g, 1, 1, groups=g), config, AVX512, 1
        )
        for g in (1, 4)
    )
    same = ("fma", "loads and edges", "L2", "calls", "sums")
    assert {k: 4 * one.cycles[k] for k in same} == pytest.approx({k: four.cycles[k] for k in same})


def test_neon_loops_want_panels() -> None:
    offered = configs(Conv2dWorkload(1, 64, 28, 28, 64, 1, 1), Core.named("cortex-a72"), 1)
    assert {c.packing for c in offered} == {"", "tile"}


@pytest.mark.parametrize("h, co", [(14, 1024), (7, 512)])
def test_pixels_that_fill_no_vectors_are_rows(h: int, co: int) -> None:
    workload = Conv2dWorkload(1, 256, h, h, co, 1, 1)
    offered = configs(workload, AVX512, 1)
    best = min(offered, key=lambda c: im2col.estimate(workload, c, AVX512, 1).seconds)
    assert best.columns == "filters"


def test_shifts_are_chosen_where_loads_limit() -> None:
    """Cortex-A53: a load in two cycles, and a quarter of the vectors cross a line; stores alike."""

    def chosen(core: Core) -> Config:
        offered = configs(LAYER, core, 1)
        return min(offered, key=lambda c: im2col.estimate(LAYER, c, core, 1).seconds)

    assert chosen(Core.named("cortex-a53")).packing == "shift"
    assert chosen(AVX512).packing == ""


@pytest.mark.parametrize("name, ratio", [("cortex-a53", 2.0 / 2.5), (AVX512.name, 1.0)])
def test_a_shifted_vector_by_hand(name: str, ratio: float) -> None:
    core = Core.named(name)
    kernel = max(kernels_for(core), key=lambda k: k.nr)
    config = Im2colConfig(mr=kernel.mr, nr=kernel.nr, oh_block=4, packing="shift")
    cycles = copy_cycles(Im2colGeometry(LAYER, config), kernel, core)
    assert cycles == pytest.approx(vector_cycles(core) * ratio)


@pytest.mark.parametrize(
    "workload",
    [
        Conv2dWorkload(1, 64, 56, 56, 64, 1, 1),
        Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, (2, 2), SAME),
        Conv2dWorkload(1, 64, 56, 56, 64, 3, 1),
        Conv2dWorkload(1, 64, 7, 7, 64, 3, 3, padding=SAME),
        Conv2dWorkload(1, 64, 56, 56, 64, 3, 3, dilation=(8, 8)),
    ],
    ids=str,
)
def test_nothing_to_shift(workload: Conv2dWorkload) -> None:
    """One column, a stride, rows narrower than a vector, taps a vector apart."""
    assert "shift" not in {c.packing for c in configs(workload, AVX512, 1)}


def test_workspace_is_panels_rows_and_sums() -> None:
    config = Im2colConfig(mr=8, nr=48, mc=64, kc=288, loop_order="IS", oh_block=7)
    panels = 4 * 9 * 48 * 288  # 392 pixels are nine tiles
    rows = 4 * 9 * 58 * 4  # 9 rows of 58 for 4 of 32 channels at a time: below 16 KiB
    sums = 4 * 9 * 48 * 64
    for threads in (1, 2):
        size = im2col.workspace_bytes(LAYER, config, threads)
        assert size == threads * (panels + rows + sums)


def test_layers_between_blocked_layouts_stay_with_direct_convolution() -> None:
    """Faster kernels on NCHWc, and no image to move."""
    from tvm_blislike.schedules.conv2d_direct.definition import IMPLEMENTATION as DIRECT

    for workload in (LAYER, DEEP, Conv2dWorkload(1, 256, 14, 14, 1024, 1, 1)):
        ours, direct = (fastest(i, workload, AVX512, 1).seconds for i in (IMPLEMENTATION, DIRECT))
        assert direct < ours


def _counted(pixels: int, windows: int, width: int, lanes: int) -> int:
    """Vectors of pixels that tiles and rows cut, piece by piece."""
    cuts = {*range(0, pixels, windows), *range(0, pixels, width or pixels), pixels}
    sizes = [end - start for start, end in itertools.pairwise(sorted(cuts))]
    return sum(math.ceil(size / min(lanes, 1 << (size.bit_length() - 1))) for size in sizes)


@given(st.integers(1, 600), st.integers(1, 70), st.integers(0, 130), st.sampled_from([4, 8, 16]))
def test_pieces_of_rows_and_tiles(pixels: int, windows: int, width: int, lanes: int) -> None:
    assert im2col_geometry._vectors(pixels, windows, width, lanes) == _counted(
        pixels, windows, width, lanes
    )


def test_the_height_of_an_image_costs_no_time() -> None:
    tall = Conv2dWorkload(1, 3, 10**7, 8, 8, 3, 3, padding=SAME)
    started = time.monotonic()
    assert list(configs(tall, AVX512, 1))
    assert time.monotonic() - started < 20
