"""Cycles of a quantized layer's epilogue: by hand, on any core, and what they decide."""

from __future__ import annotations

import dataclasses

import pytest
from estimates import CORES, fastest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.requantizing import (
    INSTRUCTIONS,
    is_requantized,
    pieces,
    requantizing_cycles,
)
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of, kernels_for
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.conv2d_direct.definition import IMPLEMENTATION

ZEN4 = Core.named("zen4")
BYTES = Types("uint8", "int8", "int32", "int32")
KERNELS = [
    (core, kernel)
    for core in CORES
    for kernel in kernels_for(core, BYTES)
    if is_requantized(kernel)
]


def block(mr: int, nr: int) -> Microkernel:
    return kernel_of(ZEN4, mr, nr, BYTES, 4)


def cycles(mr: int, nr: int) -> float:
    return requantizing_cycles(ZEN4, block(mr, nr), mr, nr // 16)


def test_all_stays_in_registers_by_hand() -> None:
    """16 sums, 4 vectors of B, one of A: 11 registers for 4 scales, 4 biases, 2 constants."""
    assert INSTRUCTIONS == 4.25
    assert cycles(4, 64) == 16 * 4.25 / 2 + 4


def test_reloads_by_hand() -> None:
    """28 sums, 2 vectors of B, one of A: one register for 2 scales, 2 biases, 2 constants."""
    assert cycles(14, 32) == 28 * 4.25 / 2 + 14 + 5


@pytest.mark.parametrize(
    ("vectors", "stores"), [(1, 1), (2, 1), (3, 2), (4, 1), (5, 2), (6, 2), (7, 3), (8, 2)]
)
def test_pieces_of_a_row(vectors: int, stores: int) -> None:
    assert pieces(vectors) == stores


@settings(deadline=None)
@given(st.sampled_from(KERNELS), st.data())
def test_whole_blocks_take_longer_than_cut_ones(
    offered: tuple[Core, Microkernel], data: st.DataObject
) -> None:
    core, kernel = offered
    rows = data.draw(st.integers(1, kernel.mr))
    whole = requantizing_cycles(core, kernel, kernel.mr, kernel.vectors)
    assert 0 < requantizing_cycles(core, kernel, rows, kernel.vectors) <= whole
    # No unit starts more.
    sums = rows * kernel.vectors
    least = sums * INSTRUCTIONS / (core.vectors_per_cycle or core.fma_per_cycle)
    assert requantizing_cycles(core, kernel, rows, kernel.vectors) > least


def test_which_results_become_bytes_by_packs() -> None:
    assert {core.isa.packs != "" for core, _ in KERNELS} == {True}
    floats = kernels_for(ZEN4, Types("float32", "float32", "float32", "float32"))
    assert floats and not any(map(is_requantized, floats))
    arm = [k for core in CORES if not core.isa.packs for k in kernels_for(core, BYTES)]
    assert not any(map(is_requantized, arm))
    tiles = [k for core in CORES for k in kernels_for(core, BYTES) if k.tiles is not None]
    assert not any(map(is_requantized, tiles))


@pytest.mark.parametrize("channels", [64, 256])
def test_short_sums_get_blocks_that_reload_nothing(channels: int) -> None:
    """64 channels to as many and to 256, Zen 4: 4x64 0.87 of the peak, 14x32 0.83 and 0.84."""
    layer = Conv2dWorkload(1, 64, 56, 56, channels, 1, 1, types=BYTES)
    best = min(
        IMPLEMENTATION.configs(layer, ZEN4, 1),
        key=lambda config: IMPLEMENTATION.estimate(layer, config, ZEN4, 1).seconds,
    )
    sums, vectors = best.mr * best.nr // 16, best.nr // 16
    assert sums + vectors + 1 + 2 * vectors + 2 <= ZEN4.vector_registers
    assert fastest(IMPLEMENTATION, layer, ZEN4, 1).cycles["epilogue"] > 0


def test_rows_of_the_call_before_take_room_beside_a_panel() -> None:
    """Where calls wait for them: 16 KB of weights and twice 7 KB of pixels, of 32 KB."""
    layer = Conv2dWorkload(1, 1024, 14, 14, 512, 1, 1, types=BYTES)
    config = DirectConfig(
        mr=7,
        nr=16,
        ks=4,
        unroll=4,
        data_layout="NHWC",
        out_layout="NHWC",
        tile_h=1,
        tile_w=7,
        loop_order="channels",
        oh_block=14,
        prefetch=1,
    )
    follows = dataclasses.replace(ZEN4, follows_rows=True)
    alone, beside = (IMPLEMENTATION.estimate(layer, config, core, 1) for core in (follows, ZEN4))
    assert beside.cycles["L2"] > 2 * alone.cycles["L2"]
