"""Integers: every implementation that has kernels for bytes, exact to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from conv_harness import compiled, in_layout, nchw, primfunc
from conv_workloads import NATIVE, convolutions, one_config
from effort import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from tvm import te, tirx

from tvm_blislike.cost_models.conv2d_depthwise.candidates import row_groups
from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.types import (
    MASKED,
    WORDS,
    WORDS_BY_BYTES,
    Types,
    data_range,
    weights_range,
)
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.operators import operator_of
from tvm_blislike.passes.constant_ranges import with_ranges
from tvm_blislike.runtime.runnable import why_not_runnable
from tvm_blislike.schedules import get_implementation
from tvm_blislike.tuning.kernels import CandidateGroup, build

BYTES = quantized_types(NATIVE)
RUNS = bool(kernels_for(NATIVE, BYTES))
pytestmark = pytest.mark.skipif(not RUNS, reason="this machine runs no integer micro-kernels")
# Cores with products of another kind: pairs of 16 bits, and AVX-VNNI.
OTHERS = [
    core
    for core in map(Core.named, ("x86-64-v3", "skylake-avx512", "golden-cove"))
    if why_not_runnable(core.target_config(1)) is None
]
# What quantized layers are there, and those of words, whose weights may be widened as they are
# loaded.
OF_WORDS = (WORDS, WORDS_BY_BYTES)
KINDS = {(core, quantized_types(core)): None for core in OTHERS}
KINDS |= {(core, t): None for core in OTHERS for t in OF_WORDS if kernels_for(core, t)}
OF_MASKS = Core.named("x86-64-v3")
of_masks = pytest.mark.skipif(OF_MASKS not in OTHERS, reason="this machine runs no AVX2")
on_other_cores = pytest.mark.parametrize(
    "core, types", KINDS, ids=[f"{core.name} {types.short}" for core, types in KINDS]
)
SAME = (1, 1, 1, 1)
NOTHING = np.iinfo(np.int32).min
FIELDS = ("loop_order", "nr", "tile_h", "tile_w", "oh_block", "prefetch")
# Direct convolutions: in place, and copied as rows or as pixels.
CORNERS = {
    "one element": Conv2dWorkload(1, 1, 1, 1, 1, 1, 1),
    "one channel": Conv2dWorkload(1, 1, 9, 11, 24, 3, 3, padding=SAME),
    "first layer, 7x7": Conv2dWorkload(1, 3, 30, 31, 64, 7, 7, (2, 2), (3, 3, 3, 3)),
    "first layer without padding": Conv2dWorkload(2, 3, 19, 21, 32, 3, 3, (2, 2)),
    "wide first layer": Conv2dWorkload(1, 3, 8, 900, 16, 3, 3, padding=SAME),
    "dilated, odd channels": Conv2dWorkload(1, 7, 14, 15, 20, 3, 3, (1, 1), SAME, (2, 2)),
    "1x1 in place": Conv2dWorkload(1, 64, 9, 11, 80, 1, 1),
    "1x1, odd channels, stride": Conv2dWorkload(2, 37, 9, 11, 33, 1, 1, (2, 2)),
    "3x3 in place": Conv2dWorkload(1, 12, 9, 11, 20, 3, 3, (1, 2)),
    "groups, odd channels": Conv2dWorkload(1, 10, 9, 11, 24, 3, 3, padding=SAME, groups=2),
    "groups in place": Conv2dWorkload(1, 32, 9, 9, 64, 3, 3, groups=4),
    "more padding than kernel": Conv2dWorkload(1, 16, 4, 4, 16, 3, 3, padding=(5, 4, 3, 6)),
    "padding that no output reads": Conv2dWorkload(1, 6, 8, 8, 16, 3, 3, (3, 3), (0, 0, 1, 1)),
}


def requantized(value: te.Tensor, scale: te.Tensor) -> te.Tensor:
    """A scale for each channel of an image in NHWC, rounded half to even into eight bits."""

    def at(n: Any, y: Any, x: Any, c: Any) -> Any:
        real = value[n, y, x, c].astype("float32") * scale[c] + tirx.const(3.0, "float32")
        rounded = tirx.nearbyint(real)
        low, high = tirx.const(0.0, "float32"), tirx.const(255.0, "float32")
        return te.max(te.min(rounded, high), low).astype("uint8")

    return te.compute(value.shape, at, name="requantized")


def some(workload: Workload, extreme: bool) -> tuple[np.ndarray, ...]:
    """Return random operands: of the whole range, or the least and the largest values only."""
    if not extreme:
        return operator_of(workload).random(workload)
    rng, types = np.random.default_rng(2), workload.types
    pairs = zip(workload.operands.values(), workload.operand_types, strict=True)
    ranges = data_range(types), weights_range(types)
    return tuple(
        rng.choice(limits, shape).astype(dtype)
        for limits, (shape, dtype) in zip(ranges, pairs, strict=True)
    )


def run(
    workload: Conv2dWorkload,
    config: Config,
    threads: int = 1,
    requantize: bool = False,
    core: Core = NATIVE,
    extreme: bool = False,
    told: bool = True,
):
    """Return what the compiled kernel makes of random bytes, and what is right, NCHW.

    The kernel is told of the scales that it requantizes by, or not.
    """
    w, operator = workload, operator_of(workload)
    implementation = get_implementation(config.implementation)
    data, weights = some(w, extreme)
    reader = ((w.co,), requantized) if requantize else None
    expected = operator.reference(w, data, weights)
    scale = np.random.default_rng(1).uniform(0.5, 1, w.co).astype(np.float32)
    scale *= 200 / np.float32(max(1, np.abs(expected).max()))
    # Of few bits: products are exact, and it is the same whether LLVM fuses them with the addition.
    mantissa, exponent = np.frexp(scale)
    scale = np.ldexp(np.rint(mantissa * 16) / 16, exponent).astype(np.float32)
    func = primfunc(w, config, (), reader)
    func = with_ranges(func, [[None, None, scale]]) if told and requantize else func
    library = compiled(func, core, threads)
    shape = Layout(config.out_layout).shape(w.n, w.co, w.oh, w.ow)
    out = np.full(shape, 77 if requantize else NOTHING, "uint8" if requantize else "int32")
    operands = [in_layout(data, config.data_layout), implementation.pack(w, config, weights)]
    arrays = [*operands, *([scale] if requantize else []), out]
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays]
    library["main"](*tensors)
    if requantize:
        real = expected.astype(np.float32) * scale[:, None, None] + np.float32(3)
        expected = np.clip(np.rint(real), 0, 255).astype(np.uint8)
    return nchw(tensors[-1].numpy(), config.out_layout, w.co), expected


@st.composite
def cases(
    draw: st.DrawFn, name: str, core: Core, types: Types
) -> tuple[Conv2dWorkload, Config, int, bool, Core, bool, bool]:
    threads = draw(st.sampled_from([1, 2]))
    workload = replace(draw(convolutions(groups=(1, 1, 1, 2, 3))), types=types)
    implementation = get_implementation(name)
    config = one_config(draw, implementation, workload, core, threads, FIELDS)
    flags = [draw(st.booleans()) for _ in range(3)]
    return workload, config, threads, flags[0], core, *flags[1:]


@examples(80)
@given(cases("conv2d_direct", NATIVE, BYTES))
def test_direct_convolutions_at_random(case) -> None:
    np.testing.assert_array_equal(*run(*case))


@of_masks
@examples(60)
@given(cases("conv2d_direct", OF_MASKS, MASKED))
def test_direct_convolutions_of_masks_at_random(case) -> None:
    np.testing.assert_array_equal(*run(*case))


@st.composite
def depthwise(draw: st.DrawFn) -> tuple[Conv2dWorkload, Config, int, bool]:
    threads = draw(st.sampled_from([1, 2]))
    w = draw(convolutions(channels=st.just(1), groups=(2, 7, 16, 24, 37, 64, 70)))
    workload = replace(w, co=w.ci, types=BYTES)
    implementation = get_implementation("conv2d_depthwise")
    assume(implementation.applies(workload, NATIVE) == "")
    # Any tile, and rows of the kernel by one and in groups, whatever is fastest.
    config = implementation.configs(workload, NATIVE, threads)[0].with_fields(
        tile_h=draw(st.integers(1, min(4, workload.oh))),
        tile_w=draw(st.integers(1, min(9, workload.ow))),
        ks=draw(st.sampled_from(row_groups(workload, NATIVE))),
    )
    config = config.with_fields(mr=config.tile_h * config.tile_w)
    return workload, config, threads, draw(st.booleans())


@examples(60)
@given(depthwise())
def test_depthwise_convolutions_at_random(case) -> None:
    np.testing.assert_array_equal(*run(*case))


def test_depthwise_convolution_of_padding_alone() -> None:
    workload = Conv2dWorkload(1, 16, 1, 1, 16, 1, 1, (2, 1), (1, 0, 0, 0), groups=16, types=BYTES)
    for config in get_implementation("conv2d_depthwise").configs(workload, NATIVE, 1):
        np.testing.assert_array_equal(*run(workload, config, 1, False))


@pytest.mark.parametrize("name", CORNERS)
def test_corners_of_direct_convolutions(name: str) -> None:
    workload = replace(CORNERS[name], types=BYTES)
    configs = list(get_implementation("conv2d_direct").configs(workload, NATIVE, 1))
    for number, config in enumerate(configs[:: max(1, len(configs) // 4)]):
        np.testing.assert_array_equal(*run(workload, config, 1 + number % 2, number % 2 == 0))


@on_other_cores
@pytest.mark.parametrize("name", CORNERS)
def test_corners_on_other_cores(name: str, core: Core, types: Types) -> None:
    workload = replace(CORNERS[name], types=types)
    configs = list(get_implementation("conv2d_direct").configs(workload, core, 1))
    for number, config in enumerate(configs[:: max(1, len(configs) // 3)]):
        np.testing.assert_array_equal(*run(workload, config, 1, number % 2 == 0, core))


@on_other_cores
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions_on_other_cores(stride: int, core: Core, types: Types) -> None:
    workload = Conv2dWorkload(
        1, 37, 9, 11, 37, 3, 3, (stride, stride), SAME, groups=37, types=types
    )
    configs = list(get_implementation("conv2d_depthwise").configs(workload, core, 1))
    for config in configs[:: max(1, len(configs) // 3)]:
        np.testing.assert_array_equal(*run(workload, config, 1, True, core))


@on_other_cores
@pytest.mark.parametrize(
    "m, n, k", [(1, 1, 1), (1, 70, 33), (7, 9, 5), (37, 53, 301), (64, 64, 64)]
)
def test_products_of_matrices_on_other_cores(
    m: int, n: int, k: int, core: Core, types: Types
) -> None:
    workload = GemmWorkload(m, n, k, types=types)
    configs = list(get_implementation("gemm").configs(workload, core, 1))
    for config in configs[:: max(1, len(configs) // 3)]:
        np.testing.assert_array_equal(*multiplied(workload, config, 1, core))


@st.composite
def products(
    draw: st.DrawFn, core: Core, types: Types
) -> tuple[GemmWorkload, Config, int, Core, bool]:
    sizes, threads = st.integers(1, 70), draw(st.sampled_from([1, 2]))
    depth = st.one_of(st.integers(1, 20), st.integers(1, 600))
    workload = GemmWorkload(draw(sizes), draw(sizes), draw(depth), types=types)
    gemm = get_implementation("gemm")
    fields = ("loop_order", "mr", "nr", "kc", "packing")
    config = one_config(draw, gemm, workload, core, threads, fields)
    kc = draw(st.sampled_from([0, config.kc, 16, 31]))
    return workload, config.with_fields(kc=kc), threads, core, draw(st.booleans())


@examples(80)
@given(products(NATIVE, BYTES))
def test_products_of_matrices_at_random(case) -> None:
    np.testing.assert_array_equal(*multiplied(*case))


@of_masks
@examples(60)
@given(products(OF_MASKS, MASKED))
def test_products_of_masks_at_random(case) -> None:
    np.testing.assert_array_equal(*multiplied(*case))


def multiplied(
    workload: GemmWorkload,
    config: Config,
    threads: int,
    core: Core = NATIVE,
    extreme: bool = False,
):
    """Return what the compiled kernel makes of random bytes, and what is right."""
    operator, gemm = operator_of(workload), get_implementation("gemm")
    a, b = some(workload, extreme)
    group = CandidateGroup(workload, (config,), core, threads)
    library = build(group)
    out = np.full(workload.result_shape, NOTHING, np.int32)
    tensors = [tvm.runtime.tensor(x) for x in (a, gemm.pack(workload, config, b), out)]
    library["candidate_0"](*tensors)
    return tensors[-1].numpy(), operator.reference(workload, a, b)


def packed_at_run_time(workload: Workload, config: Config, constant: np.ndarray) -> np.ndarray:
    """Return what the stage that packs makes of an operand."""
    implementation = get_implementation(config.implementation)
    operand = te.placeholder(constant.shape, constant.dtype.name, name="operand")
    stage = implementation.pack_te(workload, config, operand)
    out = tvm.runtime.tensor(np.full([int(n) for n in stage.shape], 99, str(stage.dtype)))
    function = te.create_prim_func([operand, stage])
    tvm.compile(function, "llvm")["main"](tvm.runtime.tensor(constant), out)
    return out.numpy()


PACKED = pytest.mark.parametrize("core, types", [(NATIVE, BYTES), (OF_MASKS, MASKED)])


@PACKED
@pytest.mark.parametrize("name", CORNERS)
def test_weights_are_packed_alike_at_run_time(name: str, core: Core, types: Types) -> None:
    workload = replace(CORNERS[name], types=types)
    direct = get_implementation("conv2d_direct")
    config = next(iter(direct.configs(workload, core, 1)))
    _, weights = operator_of(workload).random(workload)
    packed = direct.pack(workload, config, weights)
    assert packed.shape == DirectGeometry(workload, config).packed_shape
    np.testing.assert_array_equal(packed_at_run_time(workload, config, weights), packed)


@PACKED
@pytest.mark.parametrize("kc", [0, 8])
def test_b_of_a_product_is_packed_alike_at_run_time(core: Core, types: Types, kc: int) -> None:
    workload, gemm = GemmWorkload(9, 37, 21, types=types), get_implementation("gemm")
    config = next(iter(gemm.configs(workload, core, 1))).with_fields(kc=kc)
    _, b = operator_of(workload).random(workload)
    packed = gemm.pack(workload, config, b)
    np.testing.assert_array_equal(packed_at_run_time(workload, config, b), packed)


def test_a_first_layer_wastes_less_than_a_group_per_row() -> None:
    """Rows of 21 bytes are six groups; three channels filled up to four would be seven."""
    core, types = Core.named("zen4"), Types("uint8", "int8", "int32", "int32")
    workload = Conv2dWorkload(1, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3), types=types)
    config = next(iter(get_implementation("conv2d_direct").configs(workload, core, 1)))
    geo = DirectGeometry(workload, config)
    assert (geo.by_row, geo.run, geo.run_groups, geo.k_groups) == (True, 21, 6, 42)
