"""Predicted time of the depthwise convolution: properties on any core, and one layer by hand."""

from __future__ import annotations

import pytest
from estimates import (
    AVX512,
    CORES,
    assert_more_work_takes_longer,
    assert_threads_cost_a_fork_at_most,
    check_all,
    cores,
    doubled,
    fastest,
    odd_shapes,
    on_every,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_depthwise import estimate as depthwise
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.issue import FMA_EFFICIENCY, LOAD_EFFICIENCY
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_depthwise.definition import IMPLEMENTATION


def layer(
    channels: int, size: int, kernel: int = 3, stride: int = 1, times: int = 1, n: int = 1
) -> Conv2dWorkload:
    """A depthwise layer as networks have them: square, padded to keep the size."""
    return Conv2dWorkload(
        n,
        channels,
        size,
        size,
        channels * times,
        kernel,
        kernel,
        (stride, stride),
        (kernel // 2,) * 4,
        groups=channels,
    )


ODD = [
    layer(2, 1),
    layer(3, 7, 5),
    layer(57, 13, 3, 2),
    layer(24, 112, 3, 2, times=2),
    layer(960, 7, 5, n=3),
    layer(32, 224),
    Conv2dWorkload(1, 16, 149, 1, 16, 7, 1, (2, 1), (0, 1, 3, 0), (2, 1), groups=16),
]

workloads = st.builds(
    layer,
    st.one_of(st.sampled_from([2, 16, 24, 32, 96, 512]), st.integers(2, 300)),
    st.integers(1, 120),
    kernel=st.sampled_from([1, 2, 3, 5, 7]),
    stride=st.integers(1, 2),
    times=st.sampled_from([1, 1, 2, 3]),
    n=st.integers(1, 3),
)


@on_every(CORES)
def test_odd_shapes_on_every_core(core: Core, threads: int) -> None:
    for _workload, config in odd_shapes(IMPLEMENTATION, ODD, core, threads):
        assert config.tile_h * config.tile_w < core.vector_registers
        assert config.nr <= core.lanes()


@settings(max_examples=60, deadline=None)
@given(workloads, cores(), st.integers(1, 8))
def test_any_layer_on_any_core(workload: Conv2dWorkload, core: Core, threads: int) -> None:
    assume(IMPLEMENTATION.applies(workload, core) == "")
    check_all(IMPLEMENTATION, workload, core, threads)


@settings(max_examples=60, deadline=None)
@given(workloads, cores(), st.sampled_from([("n",), ("h",), ("w",), ("ci", "co", "groups")]))
def test_more_work_takes_longer(
    workload: Conv2dWorkload, core: Core, sizes: tuple[str, ...]
) -> None:
    more = doubled(workload, *sizes)
    assume(more.macs > workload.macs and IMPLEMENTATION.applies(more, core) == "")
    assert_more_work_takes_longer(IMPLEMENTATION, workload, more, core)


@settings(max_examples=60, deadline=None)
@given(workloads, cores(), st.integers(2, 8))
def test_threads_cost_a_fork_at_most(workload: Conv2dWorkload, core: Core, threads: int) -> None:
    assume(IMPLEMENTATION.applies(workload, core) == "")
    assume(threads <= core.cores)  # Others take turns, and push each other's operands out.
    one, several = (fastest(IMPLEMENTATION, workload, core, n) for n in (1, threads))
    assert_threads_cost_a_fork_at_most(one, several, core)


# --- one layer by hand: the second depthwise layer of MobileNet-v1's size, tiles of 2x7 --------

LAYER = layer(32, 112)
CONFIG = DepthwiseConfig(
    mr=14,
    nr=16,
    loop_order="channels",
    data_layout="NCHW16c",
    out_layout="NCHW16c",
    tile_h=2,
    tile_w=7,
)
IMAGE = 32 * 112 * 112 * 4
L1, L2 = 49152, 2 * 2**20


def test_footprint_by_hand() -> None:
    """A tile of two rows reads four, of the 16 channels of its vector."""
    rows = 4 * 112 * 16 * 4
    estimate = IMPLEMENTATION.estimate(LAYER, CONFIG, AVX512, 1)
    assert estimate.footprint == (
        ("input rows", 1, rows, rows / L1),
        ("input", 2, IMAGE, IMAGE / L2),
        ("output", 2, IMAGE, IMAGE / L2),
    )


def test_channels_innermost_reads_rows_of_all_channels() -> None:
    estimate = IMPLEMENTATION.estimate(LAYER, CONFIG.with_fields(loop_order="rows"), AVX512, 1)
    rows = 4 * 112 * 32 * 4
    assert estimate.footprint[0] == ("input rows", 2, rows, rows / L2)


def test_arithmetic_by_hand() -> None:
    """112 is a multiple of 2 and of 7; 36 loads for 126 FMAs leave the FMAs the limit."""
    cycles = IMPLEMENTATION.estimate(LAYER, CONFIG, AVX512, 1).cycles
    outputs = 2 * 112 * 112  # vectors
    assert cycles["fma"] == pytest.approx(outputs * 9 / 2 / FMA_EFFICIENCY)
    assert cycles["loads"] == cycles["edges"] == 0
    assert cycles["fork"] == 0


def test_single_pixels_wait_for_loads() -> None:
    """A tile of one pixel loads each of its nine inputs for one FMA."""
    single = CONFIG.with_fields(mr=1, tile_h=1, tile_w=1)
    cycles = IMPLEMENTATION.estimate(LAYER, single, AVX512, 1).cycles
    # Two tiles in flight: nine FMAs of four cycles' latency each.
    limit = max(9 / (2 * LOAD_EFFICIENCY), 9 * 4 / 2)
    total = 2 * 112 * 112 * limit
    assert cycles["fma"] + cycles["loads"] == pytest.approx(total)


def test_cut_tiles_cost_more_per_pixel() -> None:
    """113 columns: a last tile of 2x1."""
    wider = Conv2dWorkload(1, 32, 112, 113, 32, 3, 3, padding=(1, 1, 1, 1), groups=32)
    edges = IMPLEMENTATION.estimate(wider, CONFIG, AVX512, 1).cycles["edges"]
    assert edges > 0
    assert depthwise.tile_sizes(wider, CONFIG) == [(2, 7, 56 * 16), (2, 1, 56)]


def test_images_beyond_the_caches_are_limited_by_memory() -> None:
    board = Core.named("cortex-a72")
    layers = [layer(32, size) for size in (28, 224)]
    near, far = (fastest(IMPLEMENTATION, w, board, 1) for w in layers)
    assert far.peak_fraction < 0.7 * near.peak_fraction
    assert far.footprint[1][1] == 0


def test_registers_bound_the_tile() -> None:
    """Filter, tile and eight more on 32 registers; a filter that is too large shares them."""
    assert depthwise.accumulators(LAYER, AVX512) == 32 - 9 - 8
    assert depthwise.accumulators(layer(32, 14, 5), AVX512) == 15
    assert depthwise.accumulators(LAYER, Core.named("haswell")) == 7
    # Less on NEON, least for strides, in order, and filters that do not fit.
    strided, large = layer(32, 14, 3, 2), layer(32, 14, 5)
    neon, in_order = Core.named("cortex-a72"), Core.named("cortex-a53")
    counts = [depthwise.accumulators(w, neon) for w in (LAYER, strided, large)]
    assert counts == [12, 10, 8]
    assert depthwise.accumulators(LAYER, in_order) == 10
    assert depthwise.widest(neon) < depthwise.widest(AVX512)


def test_threads_split_large_images_by_rows_and_small_ones_by_channels() -> None:
    """As the layers before them do; cores that share their L2 need not care."""

    def order(core: str, channels: int, size: int, threads: int) -> str:
        layer = Conv2dWorkload(
            1, channels, size, size, channels, 3, 3, padding=(1, 1, 1, 1), groups=channels
        )
        return IMPLEMENTATION.configs(layer, Core.named(core), threads)[0].loop_order

    assert order("skylake-avx512", 128, 56, 2) == "rows"
    assert order("skylake-avx512", 512, 14, 2) == "channels"
    assert order("skylake-avx512", 128, 56, 1) == "channels"
    assert order("cortex-a72", 512, 14, 4) == "channels"
