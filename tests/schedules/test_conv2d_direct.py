"""Direct convolution against the slow reference: random workloads, and the corners by name."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pytest
import tvm
from conv_harness import STEPS, arrays, build, compiled, error, expected, nchw, placed, primfunc
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from tvm import runtime, te

from tvm_blislike.config import Config
from tvm_blislike.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.layouts import shape_in
from tvm_blislike.microkernels import get_kernel, kernel_name
from tvm_blislike.schedules.conv2d_direct import IMPLEMENTATION, pack_weights, pack_weights_te
from tvm_blislike.workload import Conv2dWorkload

NATIVE = Core.native()
AVX512 = Core.named("sapphirerapids")
# Cores whose kernels this machine runs.
RUNNABLE = [NATIVE, *([Core.named("x86-64-v3")] if NATIVE.isa == "avx512" else [])]
TOLERANCE = 1e-5
SAME = (1, 1, 1, 1)
# Enough for tiles, slabs and panels to be whole, cut and alone, and so little that compiling takes
# most of the time.
MOST_MACS = 5_000_000


@st.composite
def workloads(draw: st.DrawFn) -> Conv2dWorkload:
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels = st.one_of(st.sampled_from([3, 8, 16, 24, 32, 48, 57, 64]), st.integers(1, 70))
    kernel, stride = st.integers(1, 7), st.integers(1, 3)
    dilation, image = st.integers(1, 2), st.integers(1, 24)
    # Up to more than any kernel needs.
    padding = st.tuples(*[st.integers(0, 4)] * 4)
    workload = Conv2dWorkload(
        n=draw(st.integers(1, 3)),
        ci=groups * draw(channels),
        h=draw(image),
        w=draw(image),
        co=groups * draw(channels),
        kh=draw(kernel),
        kw=draw(kernel),
        stride=(draw(stride), draw(stride)),
        padding=draw(padding),
        dilation=(draw(dilation), draw(dilation)),
        groups=groups,
    )
    assume(workload.oh > 0 and workload.ow > 0 and workload.macs <= MOST_MACS)
    return workload


def narrowed(draw: st.DrawFn, configs: list[Config], field: str) -> list[Config]:
    """Keep one value of a field: every value as often as any other, however many configs it has."""
    value = draw(st.sampled_from(sorted({getattr(c, field) for c in configs})))
    return [c for c in configs if getattr(c, field) == value]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Core, Conv2dWorkload, Config, int, list[str]]:
    core = draw(st.sampled_from(RUNNABLE))
    threads = draw(st.sampled_from([1, 2]))
    workload = draw(workloads())
    assume(IMPLEMENTATION.applies(workload, core) == "")
    configs = list(IMPLEMENTATION.configs(workload, core, threads))
    for field in ("loop_order", "nr", "tile_h", "tile_w", "oh_block", "prefetch"):
        configs = narrowed(draw, configs, field)
    steps = draw(st.lists(st.sampled_from(STEPS), max_size=4))
    return core, workload, configs[0], threads, steps


@examples(120)
@given(cases())
def test_random_workloads_and_configs(case) -> None:
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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str, threads: int) -> None:
    workload = CORNERS[name]
    assert IMPLEMENTATION.applies(workload, NATIVE) == ""
    configs = spread(IMPLEMENTATION.configs(workload, NATIVE, threads))
    chosen = configs[:: max(1, len(configs) // 6)]
    errors = {c: error(workload, c, NATIVE, threads, ["bias", "relu"]) for c in chosen}
    assert {c: e for c, e in errors.items() if not e < TOLERANCE} == {}


@pytest.mark.parametrize("out_layout", ["NHWC", "blocked"])
@pytest.mark.parametrize("steps", [[step] for step in STEPS] + [
    ["bias", "residual", "relu"],
    ["bias", "relu", "residual"],
    ["residual_first", "bias", "silu"],
    ["scale", "bias", "hard_swish", "residual_first", "clip"],
], ids="+".join)  # fmt: skip
def test_epilogues_in_any_order(steps: list[str], out_layout: str) -> None:
    channels = 57 if out_layout == "NHWC" else 4 * NATIVE.lanes()
    workload = Conv2dWorkload(2, 16, 9, 11, channels, 3, 3, padding=SAME)
    config = best(workload, NATIVE, 2)
    assert (config.out_layout == "NHWC") == (out_layout == "NHWC")
    assert error(workload, config, NATIVE, 2, steps) < TOLERANCE


def best(workload: Conv2dWorkload, core: Core, threads: int) -> Config:
    configs = IMPLEMENTATION.configs(workload, core, threads)
    return min(configs, key=lambda c: IMPLEMENTATION.estimate(workload, c, core, threads).seconds)


def test_result_broadcast_by_its_reader() -> None:
    """Squeeze-and-excite: what follows is larger, so the convolution is stored and read again."""
    workload = Conv2dWorkload(2, 32, 1, 1, 3 * NATIVE.lanes(), 1, 1)
    config = best(workload, NATIVE, 2)
    shape = shape_in(config.out_layout, 2, workload.co, 5, 6)
    assert len(shape) == 5

    def scaled(gate: te.Tensor, image: te.Tensor) -> te.Tensor:
        return te.compute(
            shape, lambda n, c, y, x, i: image[n, c, y, x, i] * gate[n, c, 0, 0, i], name="scaled"
        )

    func = primfunc(workload, config, ["sigmoid"], (shape, scaled))
    library = compiled(func, NATIVE, 2)
    pixels = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    values = arrays(workload)
    arguments = [*placed(workload, config, [], values)[:2], pixels, np.full(shape, np.nan, "f4")]
    arguments = [runtime.tensor(a) for a in arguments]
    library["main"](*arguments)
    image, result = (
        nchw(a, config.out_layout, workload.co) for a in (pixels, arguments[-1].numpy())
    )
    np.testing.assert_allclose(result, expected(workload, ["sigmoid"], values) * image, atol=1e-5)


def test_activations_are_vector_arithmetic() -> None:
    """LLVM would call the C library's exp for each lane."""
    workload = Conv2dWorkload(1, 16, 9, 11, 4 * NATIVE.lanes(), 1, 1)
    library = build(workload, best(workload, NATIVE, 1), NATIVE, 1, ["bias", "silu", "sigmoid"])
    calls = re.findall(r"^\s+(?:callq?|bl)\s+(\S+)", library.mod.inspect_source("asm"), re.M)
    assert [name for name in calls if "exp" in name] == []


def test_infinities_and_nan_stay_where_they_are() -> None:
    """No pixel takes part in an output that does not read it, not even times zero."""
    workload = Conv2dWorkload(1, 32, 9, 11, 48, 3, 3, padding=SAME)
    config = best(workload, NATIVE, 1)
    values = arrays(workload)
    values[0][0, 5, 4, 6] = np.nan
    values[0][0, 7, 0, 0] = np.inf
    arguments = [runtime.tensor(a) for a in placed(workload, config, [], values)]
    build(workload, config, NATIVE)["main"](*arguments)
    finite = np.isfinite(nchw(arguments[-1].numpy(), config.out_layout, workload.co)[0])
    touched = np.zeros((9, 11), bool)
    touched[3:6, 5:8] = touched[:2, :2] = True
    np.testing.assert_array_equal(finite, np.broadcast_to(~touched, finite.shape))


def test_one_thread_and_two_give_the_same_bits() -> None:
    workload = Conv2dWorkload(1, 32, 13, 17, 48, 3, 3, padding=SAME)
    results = []
    for threads in (1, 2):
        config = best(workload, NATIVE, 1)
        arguments = [runtime.tensor(a) for a in placed(workload, config, [], arrays(workload))]
        build(workload, config, NATIVE, threads)["main"](*arguments)
        results.append(arguments[-1].numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    "name", ["prime sizes", "groups in NHWC", "groups in blocks", "first layer"]
)
def test_weights_packed_at_run_time_are_those_packed_before(name: str) -> None:
    workload = CORNERS[name]
    config = best(workload, NATIVE, 1)
    weights = arrays(workload)[1]
    operand = te.placeholder(weights.shape, name="weights")
    packed = pack_weights_te(workload, config, operand)
    library = tvm.compile(te.create_prim_func([operand, packed]), "llvm")
    out = runtime.tensor(np.full(DirectGeometry(workload, config).packed_shape, np.nan, "f4"))
    library["main"](runtime.tensor(weights), out)
    np.testing.assert_array_equal(out.numpy(), pack_weights(workload, config, weights))


def test_packed_panels_hold_every_weight_once_and_zeros() -> None:
    workload = CORNERS["groups in NHWC"]
    config = best(workload, NATIVE, 1)
    weights = np.abs(arrays(workload)[1]) + 1
    packed = pack_weights(workload, config, weights)
    assert packed.shape == DirectGeometry(workload, config).packed_shape
    assert sorted(packed[packed != 0]) == sorted(weights.ravel())


@pytest.mark.parametrize(
    "workload, reason",
    [
        (Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, dtype="int8"), "no int8 micro-kernels"),
        (Conv2dWorkload(1, 32, 9, 9, 32, 3, 3, groups=32), "one input channel per group"),
    ],
)
def test_refuses_with_a_reason(workload: Conv2dWorkload, reason: str) -> None:
    assert reason in IMPLEMENTATION.applies(workload, AVX512)


def test_offers_listed_kernels_and_tiles_that_fit_the_image() -> None:
    for workload in CORNERS.values():
        for config in IMPLEMENTATION.configs(workload, AVX512, 2):
            kernel = get_kernel(kernel_name("avx512", config.mr, config.nr))
            assert kernel.mr == config.tile_h * config.tile_w
            assert config.tile_h <= workload.oh and config.tile_w <= workload.ow
            assert config.loop_order in ("rows", "channels")
