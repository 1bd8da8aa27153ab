"""Groups of few channels against the slow reference; their code: shuffles instead of gathers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conv_checks import (
    EPILOGUES,
    assert_packed_once_and_alike,
    assert_threads_do_not_change_a_bit,
    epilogues,
    result,
)
from conv_harness import arrays, build, error
from conv_workloads import NATIVE, RUNNABLE, one_config
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.conv2d_depthwise.geometry import CODE_BYTES, DepthwiseGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.schedules.conv2d_grouped.definition import IMPLEMENTATION

AVX512 = Core.named("sapphirerapids")
SAME = (1, 1, 1, 1)
TOLERANCE = 1e-5


def layer(per_group: int, groups: int, size: int, **fields: object) -> Conv2dWorkload:
    """A 3x3 layer with as many output as input channels."""
    channels = per_group * groups
    whole = {"stride": (1, 1), "padding": SAME, "groups": groups, **fields}
    return Conv2dWorkload(1, channels, size, size, channels, 3, 3, **whole)


def best(workload: Conv2dWorkload, core: Core = NATIVE, threads: int = 1) -> Config:
    assert IMPLEMENTATION.applies(workload, core) == ""
    return IMPLEMENTATION.configs(workload, core, threads)[0]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Core, Conv2dWorkload, Config, int, list[str]]:
    core = draw(st.sampled_from(RUNNABLE))
    threads, lanes = draw(st.sampled_from([1, 2])), core.lanes()
    co_group = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n < lanes]))
    # The inputs of a vector's groups are at most a vector.
    ci_group = draw(st.sampled_from([n for n in (2, 4, 8) if n <= co_group] or [2]))
    assume(ci_group <= co_group)
    groups = lanes // ci_group * draw(st.integers(1, 2))
    size, kernel, step = st.integers(1, 14), st.integers(1, 5), st.integers(1, 2)
    workload = Conv2dWorkload(
        n=draw(st.integers(1, 2)),
        ci=groups * ci_group,
        h=draw(size),
        w=draw(size),
        co=groups * co_group,
        kh=draw(kernel),
        kw=draw(kernel),
        stride=(draw(step), draw(step)),
        padding=draw(st.tuples(*[st.integers(0, 3)] * 4)),
        dilation=(draw(step), draw(step)),
        groups=groups,
    )
    assume(workload.oh > 0 and workload.ow > 0)
    config = one_config(
        draw, IMPLEMENTATION, workload, core, threads, ("loop_order", "tile_h", "tile_w")
    )
    return core, workload, config, threads, draw(epilogues(3))


@examples(25)
@given(cases())
def test_agrees_with_the_reference(
    case: tuple[Core, Conv2dWorkload, Config, int, list[str]],
) -> None:
    core, workload, config, threads, steps = case
    assert error(workload, config, core, threads, steps) <= TOLERANCE


@pytest.mark.parametrize("steps", EPILOGUES, ids="-".join)
def test_epilogues(steps: list[str]) -> None:
    workload = layer(NATIVE.lanes() // 4, 8, 9)
    assert error(workload, best(workload), NATIVE, steps=steps) <= TOLERANCE


@pytest.mark.parametrize("order", ["channels", "rows"])
def test_threads_do_not_change_a_bit(order: str) -> None:
    workload = layer(NATIVE.lanes() // 4, 8, 9)
    config = best(workload, threads=2).with_fields(loop_order=order)
    assert_threads_do_not_change_a_bit(workload, config)


def test_weights_are_packed_once_and_alike_at_run_time() -> None:
    workload = layer(4, 8, 9)
    config = best(workload, AVX512)
    packed = assert_packed_once_and_alike(IMPLEMENTATION, workload, config)
    assert packed.shape == (2, 4, 3, 3, 16)


def test_a_pixel_that_is_not_finite_stays_in_its_group() -> None:
    workload = layer(4, 8, 5)
    if IMPLEMENTATION.applies(workload, NATIVE):
        pytest.skip("4 channels fill this machine's vectors")
    data, weights = arrays(workload)
    data[0, 5, 2, 2] = np.nan
    finite = np.isfinite(result(workload, best(workload), [data, weights])[0])
    touched = np.zeros_like(finite)
    touched[4:8, 1:4, 1:4] = True
    np.testing.assert_array_equal(finite, ~touched)


@pytest.mark.parametrize(
    "workload, reason",
    [
        (GemmWorkload(4, 4, 4), "gemm is not a convolution"),
        (layer(16, 1, 9), "not several groups of several channels"),
        (layer(1, 32, 9), "not several groups of several channels"),
        (layer(16, 4, 9), "16 output channels per group: no part of a vector of 16"),
        (layer(6, 8, 9), "6 output channels per group: no part of a vector of 16"),
        (layer(4, 6, 9), "channels that are no multiple of 16"),
        (
            Conv2dWorkload(1, 64, 9, 9, 32, 3, 3, groups=8),
            "8 input channels per group: the lanes' inputs are not one vector",
        ),
        (layer(4, 8, 9, types=Types.of("float64")), "no float64 micro-kernels for avx512"),
        (
            Conv2dWorkload(1, 64, 99, 99, 64, 30, 30, groups=8),
            "7200 products per output are too many to unroll",
        ),
    ],
)
def test_does_not_apply(workload: Conv2dWorkload | GemmWorkload, reason: str) -> None:
    assert IMPLEMENTATION.applies(workload, AVX512) == reason


@pytest.mark.parametrize("per_group, groups, size", [(4, 32, 56), (8, 32, 28), (8, 32, 56)])
def test_is_chosen_for_resnext(per_group: int, groups: int, size: int) -> None:
    choice = Strategy(AVX512, 1).choose(layer(per_group, groups, size))
    assert choice.config.implementation == "conv2d_grouped"
    # So that the pointwise layers around it need no transform.
    assert choice.config.data_layout == choice.config.out_layout == "NCHW16c"


def test_code_is_bounded_and_padding_copied_where_borders_would_exceed_it() -> None:
    for size in (7, 28, 55):
        for stride in ((1, 1), (2, 2)):
            workload = layer(8, 32, size, stride=stride)
            for config in IMPLEMENTATION.configs(workload, AVX512, 1):
                geo = DepthwiseGeometry(workload, config)
                assert geo.code_bytes <= CODE_BYTES
                copied = IMPLEMENTATION.workspace_bytes(workload, config, 1)
                assert (copied > 0) == geo.copies


@pytest.mark.skipif(NATIVE.isa.name != "avx512", reason="reads AVX-512 assembly")
@pytest.mark.parametrize("per_group", [2, 4, 8])
def test_lanes_are_permuted_not_gathered(per_group: int) -> None:
    workload = layer(per_group, 64 // per_group, 12, padding=(0, 0, 0, 0))
    config = best(workload)
    assembly = build(workload, config, NATIVE).mod.inspect_source("asm")
    multiplied = len(re.findall(r"vfmadd\w+ps[^\n]*zmm", assembly))
    products = len(re.findall(r"vmulps[^\n]*zmm", assembly))
    tiles = config.tile_h * config.tile_w
    assert multiplied + products >= tiles * 9 * per_group
    assert not re.findall(r"vgather|vinsertps|vpinsrd|vunpcklps", assembly)
    # A permutation serves every output that reads its pixel.
    permuted = len(re.findall(r"v(?:perm|shuf|movs[lh]dup)\w*[^\n]*zmm", assembly))
    assert 0 < permuted <= 0.75 * multiplied
