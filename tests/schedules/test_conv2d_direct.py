"""Direct convolution against the slow reference: random workloads, and the corners by name."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from conv_checks import (
    EPILOGUES,
    assert_non_finite_pixels_stay_where_they_are,
    assert_packed_once_and_alike,
    assert_result_may_be_broadcast,
    assert_threads_do_not_change_a_bit,
    best,
    epilogues,
)
from conv_harness import build, error
from conv_workloads import NATIVE, RUNNABLE, convolutions, one_config
from effort import every_second, examples
from hypothesis import given
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernel_of
from tvm_blislike.model.config import Config
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_direct.definition import IMPLEMENTATION

AVX512 = Core.named("sapphirerapids")
TOLERANCE = 1e-5
SAME = (1, 1, 1, 1)
FIELDS = ("loop_order", "nr", "tile_h", "tile_w", "oh_block", "prefetch")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Core, Conv2dWorkload, Config, int, list[str]]:
    core, threads = draw(st.sampled_from(RUNNABLE)), draw(st.sampled_from([1, 2]))
    workload = draw(convolutions(groups=(1, 1, 1, 2, 3)))
    config = one_config(draw, IMPLEMENTATION, workload, core, threads, FIELDS)
    return core, workload, config, threads, draw(epilogues(4))


@examples(120)
@given(cases())
def test_random_workloads_and_configs(case) -> None:
    core, workload, config, threads, steps = case
    assert error(workload, config, core, threads, steps) < TOLERANCE


@st.composite
def filters_of_sound(draw: st.DrawFn) -> tuple[Core, Conv2dWorkload, Config, int, list[str]]:
    core, threads = draw(st.sampled_from(RUNNABLE)), draw(st.sampled_from([1, 2]))
    taps, stride, windows = draw(
        st.tuples(st.integers(12, 500), st.integers(1, 450), st.integers(1, 40))
    )
    left, right = draw(st.tuples(st.integers(0, taps - 1), st.integers(0, taps - 1)))
    width = max(1, taps + (windows - 1) * stride + draw(st.integers(0, stride - 1)) - left - right)
    workload = Conv2dWorkload(
        draw(st.integers(1, 2)),
        1,
        1,
        width,
        draw(st.integers(1, 60)),
        1,
        taps,
        (1, stride),
        (0, left, 0, max(right, taps - width - left)),
    )
    config = one_config(draw, IMPLEMENTATION, workload, core, threads, FIELDS)
    return core, workload, config, threads, draw(epilogues(4))


@examples(30)
@given(filters_of_sound())
def test_random_filters_of_sound(case) -> None:
    core, workload, config, threads, steps = case
    assert error(workload, config, core, threads, steps) < TOLERANCE


CORNERS = {
    "one pixel": Conv2dWorkload(1, 64, 1, 1, 96, 1, 1),
    "one channel, one pixel, one tap": Conv2dWorkload(1, 1, 1, 1, 1, 1, 1),
    "one input channel, 1x1 kernel": Conv2dWorkload(1, 1, 9, 11, 24, 1, 1),
    "one input channel, column kernel": Conv2dWorkload(2, 1, 12, 9, 16, 5, 1, padding=SAME),
    "three input channels, 1x1 kernel": Conv2dWorkload(1, 3, 9, 11, 64, 1, 1),
    "three input channels, column kernel": Conv2dWorkload(1, 3, 9, 11, 32, 3, 1),
    "three input channels, row kernel": Conv2dWorkload(1, 3, 9, 11, 32, 1, 3),
    "fewer channels than lanes": Conv2dWorkload(1, 16, 9, 11, 3, 3, 3, padding=SAME),
    "one output channel": Conv2dWorkload(1, 32, 9, 11, 1, 3, 3, padding=SAME),
    "one column": Conv2dWorkload(1, 32, 21, 1, 32, 3, 1, padding=(1, 0, 1, 0)),
    "one row": Conv2dWorkload(1, 32, 1, 21, 32, 1, 3, padding=(0, 1, 0, 1)),
    "two columns": Conv2dWorkload(1, 16, 14, 2, 32, 3, 3, padding=SAME),
    "kernel larger than the image": Conv2dWorkload(1, 16, 3, 2, 32, 7, 7, padding=(3, 3, 3, 3)),
    "kernel as large as the image": Conv2dWorkload(2, 24, 5, 7, 48, 5, 7),
    "more padding than kernel": Conv2dWorkload(1, 16, 4, 4, 16, 3, 3, padding=(5, 4, 3, 6)),
    "padding that no output reads": Conv2dWorkload(1, 16, 8, 8, 16, 3, 3, (3, 3), (0, 0, 1, 1)),
    "stride beyond the kernel": Conv2dWorkload(1, 16, 13, 13, 16, 1, 1, (3, 2)),
    "stride skips all but one pixel": Conv2dWorkload(1, 16, 3, 3, 16, 1, 1, (3, 3)),
    "first layer": Conv2dWorkload(1, 3, 31, 33, 32, 3, 3, (2, 2), (0, 0, 1, 1)),
    "first layer, 7x7": Conv2dWorkload(1, 3, 30, 30, 64, 7, 7, (2, 2), (3, 3, 3, 3)),
    "dilated first layer": Conv2dWorkload(1, 3, 20, 20, 24, 3, 3, dilation=(2, 2)),
    "prime sizes": Conv2dWorkload(1, 37, 17, 19, 53, 3, 3, padding=SAME),
    "24 channels": Conv2dWorkload(1, 24, 14, 14, 56, 3, 3, padding=SAME),
    "groups in NHWC": Conv2dWorkload(1, 12, 9, 9, 20, 3, 3, padding=SAME, groups=4),
    "groups in blocks": Conv2dWorkload(1, 64, 9, 9, 96, 3, 3, padding=SAME, groups=2),
    "batch of three on two threads": Conv2dWorkload(3, 16, 9, 9, 48, 3, 3, padding=SAME),
}


def spread(configs: Iterable[Config]) -> list[Config]:
    """One config of each loop order and nr: the tallest, the widest and the smallest block."""
    found = {}
    for config in configs:
        for name, size in (
            ("tall", config.tile_h),
            ("wide", config.tile_w),
            ("small", -config.mr),
        ):
            key = (config.loop_order, config.nr, name)
            if key not in found or found[key][0] < size:
                found[key] = (size, config)
    return list(dict.fromkeys(config for _, config in found.values()))


@pytest.mark.parametrize(
    ("name", "threads"),
    [
        (name, threads)
        for number, name in enumerate(CORNERS)
        for threads in every_second((1, 2), number)
    ],
)
def test_corners(name: str, threads: int) -> None:
    workload = CORNERS[name]
    assert IMPLEMENTATION.applies(workload, NATIVE) == ""
    configs = spread(IMPLEMENTATION.configs(workload, NATIVE, threads))
    chosen = configs[:: max(1, len(configs) // 6)]
    errors = {c: error(workload, c, NATIVE, threads, ["bias", "relu"]) for c in chosen}
    assert {c: e for c, e in errors.items() if not e < TOLERANCE} == {}


@pytest.mark.parametrize("out_layout", ["NHWC", "blocked"])
@pytest.mark.parametrize("steps", EPILOGUES, ids="+".join)
def test_epilogues_in_any_order(steps: list[str], out_layout: str) -> None:
    channels = 57 if out_layout == "NHWC" else 4 * NATIVE.lanes()
    workload = Conv2dWorkload(2, 16, 9, 11, channels, 3, 3, padding=SAME)
    config = best(IMPLEMENTATION, workload, threads=2)
    assert (config.out_layout == "NHWC") == (out_layout == "NHWC")
    assert error(workload, config, NATIVE, 2, steps) < TOLERANCE


def test_result_broadcast_by_its_reader() -> None:
    workload = Conv2dWorkload(2, 32, 1, 1, 3 * NATIVE.lanes(), 1, 1)
    assert_result_may_be_broadcast(workload, best(IMPLEMENTATION, workload, threads=2))


def test_activations_are_vector_arithmetic() -> None:
    """LLVM would call the C library's exp for each lane."""
    workload = Conv2dWorkload(1, 16, 9, 11, 4 * NATIVE.lanes(), 1, 1)
    config = best(IMPLEMENTATION, workload)
    library = build(workload, config, NATIVE, 1, ["bias", "silu", "sigmoid"])
    calls = re.findall(r"^\s+(?:callq?|bl)\s+(\S+)", library.mod.inspect_source("asm"), re.M)
    assert [name for name in calls if "exp" in name] == []


def test_infinities_and_nan_stay_where_they_are() -> None:
    assert_non_finite_pixels_stay_where_they_are(IMPLEMENTATION)


def test_one_thread_and_two_give_the_same_bits() -> None:
    workload = Conv2dWorkload(1, 32, 13, 17, 48, 3, 3, padding=SAME)
    assert_threads_do_not_change_a_bit(workload, best(IMPLEMENTATION, workload))


@pytest.mark.parametrize(
    "name", ["prime sizes", "groups in NHWC", "groups in blocks", "first layer"]
)
def test_weights_are_packed_once_and_alike_at_run_time(name: str) -> None:
    workload = CORNERS[name]
    config = best(IMPLEMENTATION, workload)
    packed = assert_packed_once_and_alike(IMPLEMENTATION, workload, config)
    assert packed.shape == DirectGeometry(workload, config).packed_shape


@pytest.mark.parametrize(
    "workload, reason",
    [
        (Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, types=Types.of("int8")), "no int8 micro-kernels"),
        (Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, groups=32), "one input channel per group"),
    ],
)
def test_refuses_with_a_reason(workload: Conv2dWorkload, reason: str) -> None:
    assert reason in IMPLEMENTATION.applies(workload, AVX512)


def test_offers_listed_kernels_and_tiles_that_fit_the_image() -> None:
    for workload in CORNERS.values():
        for config in IMPLEMENTATION.configs(workload, AVX512, 2):
            kernel = kernel_of(AVX512, config.mr, config.nr)
            assert kernel.mr == config.tile_h * config.tile_w
            assert config.tile_h <= workload.oh and config.tile_w <= workload.ow
            assert config.loop_order in ("rows", "channels")
