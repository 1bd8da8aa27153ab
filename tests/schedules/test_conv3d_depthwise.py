"""Depthwise convolutions of volumes against the slow reference, fp32 and bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from conv_checks import EPILOGUES
from conv_harness import error
from conv_workloads import NATIVE, RUNNABLE, volumes
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from tvm_blislike.cost_models.conv2d_depthwise.candidates import row_groups
from tvm_blislike.cost_models.conv2d_depthwise.geometry import CODE_BYTES, DepthwiseGeometry
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.model.agreement import max_rel_error
from tvm_blislike.model.config import Config
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload, Conv3dWorkload, Workload
from tvm_blislike.operators import operator_of
from tvm_blislike.schedules.conv3d_depthwise.definition import IMPLEMENTATION
from tvm_blislike.tuning import operands
from tvm_blislike.tuning.kernels import CandidateGroup, build

BYTES = quantized_types(NATIVE)
LAYER = Conv3dWorkload(
    5, 40, 8, 9, 40, 3, 3, padding=(1, 1, 1, 1), groups=40, depth_taps=3, depth_padding=(1, 1)
)


def computed(workload: Conv3dWorkload, config: Config, core: Core, threads: int) -> np.ndarray:
    """Return what the compiled kernel makes of seeded operands, NCHW."""
    library = build(CandidateGroup(workload, (config,), core, threads))
    data, weights = operands.operands(workload)
    dtype = workload.types.out
    nothing = np.nan if np.dtype(dtype).kind == "f" else -77
    out = np.full(operands.result_shape(workload, config), nothing, dtype)
    packed = IMPLEMENTATION.pack(workload, config, weights)
    values = [operands.in_layout(workload, config.data_layout, data), packed, out]
    arguments = [tvm.runtime.tensor(value) for value in values]
    library["candidate_0"](*arguments)
    return operands.from_layout(workload, config, arguments[-1].numpy())


def expected(workload: Workload) -> np.ndarray:
    return operands.result(workload, *operands.operands(workload))


@st.composite
def cases(draw: st.DrawFn, *types: object) -> tuple[Conv3dWorkload, Config, Core, int]:
    core, threads = draw(st.sampled_from(RUNNABLE)), draw(st.sampled_from([1, 2]))
    workload = draw(volumes(types=draw(st.sampled_from(types))))
    core = core if workload.types == FLOAT32 else NATIVE
    assume(IMPLEMENTATION.applies(workload, core) == "")
    offered = IMPLEMENTATION.configs(workload, core, threads)
    config = draw(st.sampled_from(offered)).with_fields(
        tile_h=draw(st.integers(1, min(3, workload.oh))),
        tile_w=draw(st.integers(1, min(8, workload.ow))),
        ks=draw(st.sampled_from(row_groups(workload, core))),
    )
    return workload, config.with_fields(mr=config.tile_h * config.tile_w), core, threads


@examples(40)
@given(cases(FLOAT32))
def test_agrees_with_the_reference(case: tuple[Conv3dWorkload, Config, Core, int]) -> None:
    found = computed(*case)
    assert max_rel_error({"": found}, {"": expected(case[0])}) < 1e-5


@examples(30)
@given(cases(BYTES))
def test_bytes_are_exact(case: tuple[Conv3dWorkload, Config, Core, int]) -> None:
    np.testing.assert_array_equal(computed(*case), expected(case[0]))


@examples(30)
@given(volumes())
def test_the_reference_is_a_sum_over_slices(workload: Conv3dWorkload) -> None:
    data, weights = operand_values = operands.operands(workload)
    w = workload
    front, behind = w.depth_padding
    padded = np.pad(data, ((front, behind), (0, 0), (0, 0), (0, 0)))
    total = np.zeros(w.result_shape)
    for tap in range(w.kd):
        first = tap * w.depth_dilation
        seen = padded[first : first + (w.od - 1) * w.depth_stride + 1 : w.depth_stride]
        layer = Conv2dWorkload(
            w.od, w.ci, w.h, w.w, w.co, w.kh, w.kw, w.stride, w.padding, w.dilation, w.groups
        )
        total += operator_of(layer).reference(layer, seen, weights[:, :, tap])
    np.testing.assert_allclose(operator_of(w).reference(w, *operand_values), total, atol=1e-9)


@pytest.mark.parametrize("steps", EPILOGUES, ids="-".join)
def test_epilogues(steps: list[str]) -> None:
    config = IMPLEMENTATION.configs(LAYER, NATIVE, 2)[0]
    assert error(LAYER, config, NATIVE, threads=2, steps=steps) <= 1e-5


@pytest.mark.parametrize("order", ["channels", "rows"])
def test_threads_do_not_change_a_bit(order: str) -> None:
    workload = replace(LAYER, ci=32, co=32, groups=32)
    config = IMPLEMENTATION.configs(workload, NATIVE, 2)[0].with_fields(loop_order=order)
    one, two = (computed(workload, config, NATIVE, threads) for threads in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_slices_at_both_ends_have_code_of_their_own() -> None:
    config = IMPLEMENTATION.configs(LAYER, NATIVE, 1)[0]
    geo = DepthwiseGeometry(LAYER, config)
    assert geo.depth_borders == (1, 1)
    alone = DepthwiseGeometry(replace(LAYER, depth_padding=(0, 0)), config)
    assert alone.depth_borders == (0, 0)
    assert geo.variants(True) == 3 * alone.variants(True)
    for found in IMPLEMENTATION.configs(LAYER, NATIVE, 1):
        assert DepthwiseGeometry(LAYER, found).code_bytes <= CODE_BYTES


def test_says_why_it_does_not_apply() -> None:
    plain = Conv2dWorkload(1, 16, 8, 8, 16, 3, 3)
    assert "not depthwise" in IMPLEMENTATION.applies(plain, NATIVE)
    large = replace(LAYER, kh=40, kw=40, h=50, w=50, depth_taps=5)
    assert "kernel 5x40x40 too large" in IMPLEMENTATION.applies(large, NATIVE)


def test_a_workload_comes_back_from_json() -> None:
    assert Workload.from_json(LAYER.to_json()) == LAYER
    assert str(LAYER) == "conv 5x40x8x9 3x3 -> 40 p1,1,1,1 g40 depth 3 p1,1"
