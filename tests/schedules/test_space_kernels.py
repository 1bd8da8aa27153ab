"""Every point of a space is a kernel that is right, and every axis changes the kernel."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import tvm
import tvm_ffi
from conv_workloads import NATIVE, RUNNABLE, convolutions, volumes
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from tvm_blislike.hardware import Core
from tvm_blislike.model.agreement import max_rel_error
from tvm_blislike.model.config import Config
from tvm_blislike.model.space import Space
from tvm_blislike.model.workload import Conv2dWorkload, Conv3dWorkload, GemmWorkload, Workload
from tvm_blislike.passes.plan import Plan
from tvm_blislike.passes.schedule import schedule
from tvm_blislike.schedules import get_implementation
from tvm_blislike.tuning import operands
from tvm_blislike.tuning.kernels import CandidateGroup, build, functions
from tvm_blislike.tuning.searches.walks import Walks

CHANNELS = st.sampled_from([1, 3, 9, 16, 24, 32, 48, 57, 64])
WORKLOADS = {
    "gemm": st.builds(
        GemmWorkload,
        st.integers(1, 60),
        st.integers(1, 150),
        st.integers(1, 300),
        batch=st.sampled_from((1, 1, 3)),
    ),
    "gemm_strassen": st.builds(
        GemmWorkload, st.integers(1, 60), st.sampled_from([32, 64, 96, 192]), st.integers(1, 300)
    ),
    "conv2d_strassen": st.builds(
        Conv2dWorkload,
        st.just(1),
        st.sampled_from([32, 64, 96]),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from([32, 64, 96, 192]),
        st.just(1),
        st.just(1),
    ),
    "conv2d_direct": convolutions(channels=CHANNELS, groups=[1, 1, 2], most_macs=2e6),
    "conv2d_dataflow": convolutions(channels=CHANNELS, most_macs=2e6),
    "conv2d_im2col": convolutions(channels=CHANNELS, groups=[1, 1, 2], most_macs=2e6),
    "conv2d_winograd": convolutions(channels=CHANNELS, stride=1, dilation=1, most_macs=2e6),
    "conv2d_winograd_1d": convolutions(
        channels=st.sampled_from([16, 32, 48]), stride=1, dilation=1, most_macs=4e6
    ),
    "conv2d_depthwise": convolutions(channels=st.just(1), groups=[1, 16, 24, 32, 57]),
    "conv2d_grouped": convolutions(channels=st.sampled_from([4, 8]), groups=[4, 8]),
    "conv3d_depthwise": volumes(),
}


def error_of(workload: Workload, config: Config, core: Core, threads: int) -> float:
    """Build and run as tuning does; return the error relative to the largest result."""
    implementation = get_implementation(config.implementation)
    group = CandidateGroup(workload, (config,), core, threads)
    library = build(group)
    data, weights = operands.operands(workload)
    out = np.full(operands.result_shape(workload, config), np.nan, workload.types.out)
    packed = implementation.pack(workload, config, weights)
    values = [operands.in_layout(workload, config.data_layout, data), packed, out]
    arguments = [tvm.runtime.tensor(value) for value in values]
    library["candidate_0"](*arguments)
    found = operands.from_layout(workload, config, arguments[-1].numpy())
    return max_rel_error({"": found}, {"": operands.result(workload, data, weights)})


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_point_is_a_right_kernel(name: str) -> None:
    implementation = get_implementation(name)

    @given(WORKLOADS[name], st.sampled_from(RUNNABLE), st.sampled_from((1, 2)), st.integers(0, 999))
    @examples(6)
    def check(workload: Workload, core: Core, threads: int, seed: int) -> None:
        assume(not implementation.applies(workload, core))
        space = implementation.space(workload, core, threads)
        config = Walks([space], lambda _: True).draw(Random(seed))
        error = error_of(workload, config, core, threads)
        assert error < 2 * implementation.error_bound(workload, config) + 1e-5, config

    check()


# A workload for each implementation, with room for all of its choices.
ROOMY = {
    "gemm": GemmWorkload(40, 200, 150, batch=2),
    "gemm_strassen": GemmWorkload(80, 192, 150),
    "conv2d_strassen": Conv2dWorkload(1, 160, 8, 10, 192, 1, 1),
    "conv2d_direct": Conv2dWorkload(1, 32, 14, 14, 32, 3, 3, padding=(1, 1, 1, 1)),
    "conv2d_dataflow": Conv2dWorkload(1, 16, 6, 6, 32, 3, 3, padding=(1, 1, 1, 1)),
    "conv2d_im2col": Conv2dWorkload(2, 16, 8, 24, 64, 3, 3, padding=(1, 1, 1, 1)),
    "conv2d_winograd": Conv2dWorkload(1, 16, 24, 24, 64, 3, 3, padding=(1, 1, 1, 1)),
    "conv2d_winograd_1d": Conv2dWorkload(1, 16, 24, 24, 64, 3, 3, padding=(1, 1, 1, 1)),
    "conv2d_depthwise": Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, groups=32),
    "conv2d_grouped": Conv2dWorkload(1, 64, 9, 9, 64, 3, 3, groups=8),
    "conv3d_depthwise": Conv3dWorkload(4, 32, 9, 9, 32, 3, 3, groups=32, depth_taps=3),
}


@pytest.mark.parametrize("name", ROOMY)
def test_every_axis_changes_the_kernel(name: str) -> None:
    threads = 2
    space = get_implementation(name).space(ROOMY[name], NATIVE, threads)
    walks, rng = Walks([space], lambda _: True), Random(0)
    drawn = [c for c in (walks.draw(rng) for _ in range(200)) if c]
    most = max(sum(map(bool, _others(space, c))) for c in drawn)
    # Groups of channels have one pair of layouts.
    assert most == len(space.axes) - (name == "conv2d_grouped")
    able = [c for c in drawn if sum(map(bool, _others(space, c))) == most]
    # Small tiles compile fastest.
    one = min(able, key=lambda c: getattr(c, "tile_h", 1) * getattr(c, "tile_w", 1))
    code = _code(ROOMY[name], one, threads)
    for other in filter(None, _others(space, one)):
        assert not tvm_ffi.structural_equal(code, _code(ROOMY[name], other, threads)), (one, other)


def _code(workload: Workload, config: Config, threads: int) -> tvm.IRModule:
    """Return the scheduled kernel."""
    found = functions(CandidateGroup(workload, (config,), NATIVE, threads), 0, config)
    with tvm.target.Target(NATIVE.target_config(threads)):
        return schedule(tvm.IRModule(found), Plan(NATIVE, threads))


def _others(space: Space, config: Config) -> list[Config | None]:
    """Return for each axis a configuration that differs in it alone, None where there is none."""
    before, found = space.start, []
    for axis in space.axes:
        others = (axis.put(config, v) for v in axis.values(before) if v != axis.of(config))
        found.append(next((c for c in others if c in space), None))
        before = axis.put(before, axis.of(config))
    return found
