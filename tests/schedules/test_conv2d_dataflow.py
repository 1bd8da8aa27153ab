"""Convolution by dataflows against the slow reference: every anchor, every stationarity, forced."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import tvm_ffi
from conv_checks import (
    assert_non_finite_pixels_stay_where_they_are,
    assert_packed_once_and_alike,
    assert_threads_do_not_change_a_bit,
    best,
    epilogues,
    result,
)
from conv_harness import build, error
from conv_workloads import NATIVE, RUNNABLE, convolutions
from effort import examples, in_turn
from hypothesis import assume, given
from hypothesis import strategies as st
from tvm.s_tir import TensorIntrin

from tvm_blislike.cost_models.conv2d_dataflow.anchors import period
from tvm_blislike.cost_models.conv2d_dataflow.config import INPUT, OUTPUT, WEIGHT, DataflowConfig
from tvm_blislike.cost_models.conv2d_dataflow.geometry import DataflowGeometry
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernel_of, kernels_for
from tvm_blislike.model.space import Space
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.operators import operator_of
from tvm_blislike.schedules.conv2d_dataflow.definition import IMPLEMENTATION
from tvm_blislike.schedules.conv2d_dataflow.intrin import _register, pass_intrin

TOLERANCE = 1e-5
SAME = (1, 1, 1, 1)
BYTE_CHANNELS = st.sampled_from([4, 8, 12, 16, 20, 32, 48, 64])
ANCHORS = (OUTPUT, WEIGHT, INPUT)


def drawn(space: Space, anchor: str, rng: Random) -> DataflowConfig:
    """Draw a configuration of one anchor, half of the time with all registers in use."""
    config = space.start
    for axis in space.axes:
        values = list(axis.values(config))
        if axis.name == "anchor":
            values = [(anchor,)]
        if axis.name == "registers" and rng.random() < 0.5:
            values = [max(values, key=lambda value: (sum(value), rng.random()))]
        config = axis.put(config, rng.choice(values))
    return config


@pytest.mark.parametrize("anchor", ANCHORS)
def test_random_workloads_and_allocations(anchor: str) -> None:
    @given(
        convolutions(most_macs=2e6),
        st.sampled_from(RUNNABLE),
        st.sampled_from([1, 2]),
        st.integers(0, 999),
        epilogues(3),
    )
    @examples(25)
    def check(
        workload: Conv2dWorkload, core: Core, threads: int, seed: int, steps: list[str]
    ) -> None:
        assume(IMPLEMENTATION.applies(workload, core) == "")
        config = drawn(IMPLEMENTATION.space(workload, core, threads), anchor, Random(seed))
        assert error(workload, config, core, threads, steps) < TOLERANCE, config

    check()


CORNERS = {
    "one pixel": Conv2dWorkload(1, 64, 1, 1, 96, 1, 1),
    "one channel, one pixel, one tap": Conv2dWorkload(1, 1, 1, 1, 1, 1, 1),
    "fewer channels than lanes": Conv2dWorkload(1, 16, 9, 11, 3, 3, 3, padding=SAME),
    "one column": Conv2dWorkload(1, 32, 21, 1, 32, 3, 1, padding=(1, 0, 1, 0)),
    "one row": Conv2dWorkload(1, 32, 1, 21, 32, 1, 3, padding=(0, 1, 0, 1)),
    "kernel larger than the image": Conv2dWorkload(1, 16, 3, 2, 32, 7, 7, padding=(3, 3, 3, 3)),
    "more padding than kernel": Conv2dWorkload(1, 16, 4, 4, 16, 3, 3, padding=(5, 4, 3, 6)),
    "padding that no output reads": Conv2dWorkload(1, 16, 8, 8, 16, 3, 3, (3, 3), (0, 0, 1, 1)),
    "stride beyond the kernel": Conv2dWorkload(1, 16, 13, 13, 16, 1, 1, (3, 2)),
    "stride 2, window of 5": Conv2dWorkload(1, 3, 23, 23, 32, 5, 5, (2, 2), (2, 2, 2, 2)),
    "stride 3, window of 4": Conv2dWorkload(1, 16, 25, 25, 16, 4, 4, (3, 3)),
    "dilated rows": Conv2dWorkload(1, 16, 14, 14, 16, 3, 3, padding=SAME, dilation=(2, 1)),
    "dilated columns, stride": Conv2dWorkload(1, 16, 14, 15, 16, 3, 3, (2, 2), SAME, (1, 3)),
    "prime sizes": Conv2dWorkload(1, 37, 17, 19, 53, 3, 3, padding=SAME),
    "batch of three on two threads": Conv2dWorkload(3, 16, 9, 9, 48, 3, 3, padding=SAME),
}


@pytest.mark.parametrize("name, threads", in_turn(list(CORNERS), (1, 2)))
def test_corners(name: str, threads: int) -> None:
    workload = CORNERS[name]
    assert IMPLEMENTATION.applies(workload, NATIVE) == ""
    space = IMPLEMENTATION.space(workload, NATIVE, threads)
    for anchor in ANCHORS:
        config = drawn(space, anchor, Random(threads))
        assert error(workload, config, NATIVE, threads, ["bias", "relu"]) < TOLERANCE, config


@pytest.mark.parametrize("anchor", ANCHORS)
def test_every_number_of_registers(anchor: str) -> None:
    """Each allocation of one kind by itself: none, some, a whole window."""
    workload = Conv2dWorkload(1, 16, 8, 9, 16, 3, 3, (1, 2), SAME)
    space = IMPLEMENTATION.space(workload, NATIVE, 1)
    config = DataflowConfig(
        **dict(mr=1, nr=16, data_layout="NCHW16c", out_layout="NCHW16c", tile_h=4, tile_w=5),
        **dict(loop_order="rows", anchor=anchor),
    )
    if NATIVE.lanes() != 16:
        pytest.skip("blocks of 16 channels")
    seen = 0
    for kind in ("weights", "inputs", "outputs"):
        for kept in range(1, 13):
            one = config.with_fields(**{kind: kept})
            one = one.with_fields(unroll=period(DataflowGeometry(workload, one).sizes, one))
            if one in space:
                seen += 1
                assert error(workload, one, NATIVE) < TOLERANCE, one
    assert seen > 12


BYTES = quantized_types(NATIVE)


@pytest.mark.skipif(not kernels_for(NATIVE, BYTES), reason="runs no integer micro-kernels")
@pytest.mark.skipif(BYTES.is_masked, reason="the algorithm has no masked products")
@pytest.mark.parametrize("anchor", ANCHORS)
def test_bytes_are_exact(anchor: str) -> None:
    @given(convolutions(channels=BYTE_CHANNELS, most_macs=2e6), st.integers(0, 999))
    @examples(12)
    def check(workload: Conv2dWorkload, seed: int) -> None:
        w = replace(workload, types=BYTES)
        assume(IMPLEMENTATION.applies(w, NATIVE) == "")
        config = drawn(IMPLEMENTATION.space(w, NATIVE, 1), anchor, Random(seed))
        operator = operator_of(w)
        data, weights = operator.random(w)
        found = result(w, config, [data, weights])
        np.testing.assert_array_equal(found, operator.reference(w, data, weights), str(config))

    check()


@pytest.mark.parametrize("name, instruction", [("neoverse-n1", "sdot"), ("cortex-a72", "sadalp")])
def test_bytes_on_boards_are_dot_products(name: str, instruction: str) -> None:
    core = Core.named(name)
    workload = Conv2dWorkload(1, 16, 9, 9, 16, 3, 3, types=quantized_types(core))
    for config in IMPLEMENTATION.configs(workload, core, 1):
        asm = build(workload, config, core).mod.inspect_source("asm")
        assert asm.count(instruction) >= len(DataflowGeometry(workload, config).sizes.taps)
        assert config.weights + config.outputs > 0


# --- the contract ------------------------------------------------------------------------------


def test_infinities_and_nan_stay_where_they_are() -> None:
    assert_non_finite_pixels_stay_where_they_are(IMPLEMENTATION)


def test_one_thread_and_two_give_the_same_bits() -> None:
    workload = Conv2dWorkload(1, 32, 13, 17, 48, 3, 3, padding=SAME)
    assert_threads_do_not_change_a_bit(workload, best(IMPLEMENTATION, workload))


@pytest.mark.parametrize("name", ["prime sizes", "one pixel", "fewer channels than lanes"])
def test_weights_are_packed_once_and_alike_at_run_time(name: str) -> None:
    workload = CORNERS[name]
    config = best(IMPLEMENTATION, workload)
    packed = assert_packed_once_and_alike(IMPLEMENTATION, workload, config)
    assert packed.shape == DataflowGeometry(workload, config).packed_shape


def test_intrinsics_are_registered_by_name_alike() -> None:
    """Traces of schedules name them, and are replayed in other processes."""
    for types in (Types(), BYTES):
        workload = Conv2dWorkload(1, 16, 8, 9, 16, 3, 3, (1, 2), types=types)
        for config in IMPLEMENTATION.configs(workload, NATIVE, 1):
            kernel = kernel_of(NATIVE, 1, config.nr, types, config.ks)
            name = pass_intrin(kernel, DataflowGeometry(workload, config).sizes, config)
            before = TensorIntrin.get(name)
            _register.cache_clear()
            IMPLEMENTATION.register_named(name)
            assert not before.same_as(TensorIntrin.get(name))
            assert tvm_ffi.structural_equal(before.impl, TensorIntrin.get(name).impl)
    IMPLEMENTATION.register_named("blislike_avx512_f32_14x32_1x14_k16u4_rows_s1_1_d1")


@pytest.mark.parametrize(
    "workload, reason",
    [
        (Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, types=Types.of("int8")), "no int8 micro-kernels"),
        (Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, groups=2), "2 groups of channels"),
        (Conv2dWorkload(1, 32, 39, 39, 32, 13, 13), "kernel 13x13 too large"),
        (Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, types=Types.of("float16")), "not of float16"),
    ],
)
def test_refuses_with_a_reason(workload: Conv2dWorkload, reason: str) -> None:
    assert reason in IMPLEMENTATION.applies(workload, Core.named("sapphirerapids"))


def test_refuses_bytes_that_are_no_whole_groups() -> None:
    core = Core.named("sapphirerapids")
    workload = Conv2dWorkload(1, 30, 9, 9, 32, 3, 3, types=quantized_types(core))
    assert "30 input channels are not whole groups" in IMPLEMENTATION.applies(workload, core)
