"""f32 = bf16 x bf16: products and direct convolutions of odd sizes, by vectors and by tiles."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from conv_harness import in_layout, nchw
from tvm import te

from tvm_blislike.hardware import Core, native_core
from tvm_blislike.microkernels import kernel_of
from tvm_blislike.model.marks import REGISTER_BYTES
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload, Workload
from tvm_blislike.operators import operator_of
from tvm_blislike.schedules import get_implementation
from tvm_blislike.schedules.lowering import lower as lowering
from tvm_blislike.schedules.lowering.words import source
from tvm_blislike.tuning.kernels import CandidateGroup, build

NATIVE = native_core()
PAIRS = Types("bfloat16", "bfloat16", "float32", "float32")
RUNS = pytest.mark.skipif(
    not NATIVE.isa.folds_broadcast or "bf16" not in NATIVE.features, reason="runs vdpbf16ps"
)
SAME = (1, 1, 1, 1)
PRODUCTS = ((37, 53, 30), (64, 97, 126), (1, 70, 2), (33, 40, 7), (50, 33, 65))
CONVOLUTIONS = (
    Conv2dWorkload(1, 3, 19, 21, 32, 3, 3, (2, 2), SAME, types=PAIRS),
    Conv2dWorkload(1, 32, 9, 31, 48, 1, 1, types=PAIRS),
    Conv2dWorkload(2, 24, 14, 14, 33, 3, 3, padding=SAME, types=PAIRS),
    Conv2dWorkload(1, 7, 14, 30, 20, 3, 3, (1, 1), SAME, (2, 2), types=PAIRS),
    Conv2dWorkload(1, 32, 9, 19, 64, 3, 3, padding=SAME, groups=2, types=PAIRS),
)


def ways(workload: Workload) -> list:
    """The first and the last configuration of vectors, and of tiles where there are some."""
    name = "conv2d_direct" if workload.images else "gemm"
    found: dict[bool, list] = {}
    for config in get_implementation(name).configs(workload, NATIVE, 1):
        kernel = kernel_of(NATIVE, config.mr, config.nr, PAIRS, config.ks)
        found.setdefault(kernel.tiles is not None, []).append(config)
    return [config for configs in found.values() for config in {configs[0], configs[-1]}]


def check(workload: Workload, config) -> None:
    implementation, operator = get_implementation(config.implementation), operator_of(workload)
    data, weights = operator.random(workload)
    expected = operator.reference(workload, data, weights)
    group = CandidateGroup(workload, (config,), NATIVE, 1)
    library = build(group)
    shape = in_layout(expected, config.out_layout).shape if workload.images else expected.shape
    arrays = [data, implementation.pack(workload, config, weights), np.full(shape, np.nan, "f4")]
    if workload.images:
        arrays[0] = in_layout(data, config.data_layout)
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in arrays]
    library["candidate_0"](*tensors)
    result = tensors[-1].numpy()
    result = nchw(result, config.out_layout, workload.co) if workload.images else result
    # Products are exact; denormal sums count as zero.
    assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max(), config
    kernel = kernel_of(NATIVE, config.mr, config.nr, PAIRS, config.ks)
    instruction = "vdpbf16ps" if kernel.tiles is None else "tdpbf16ps"
    assert instruction in library.mod.inspect_source("asm")


@RUNS
@pytest.mark.parametrize("m, n, k", PRODUCTS)
def test_products_against_numpy(m: int, n: int, k: int) -> None:
    workload = GemmWorkload(m, n, k, types=PAIRS)
    for config in ways(workload):
        check(workload, config)
        if k == 126:
            check(workload, config.with_fields(kc=50))


@RUNS
@pytest.mark.parametrize("workload", CONVOLUTIONS, ids=str)
def test_convolutions_against_numpy(workload: Conv2dWorkload) -> None:
    for config in ways(workload):
        check(workload, config)


def rounded(mattr: list[str]) -> tvm.runtime.Executable:
    """A function that rounds floats, pads them with zeros in memory of its own and doubles them."""
    x = te.placeholder((5, 16), "float32", name="x")
    narrow = te.compute((5, 16), lambda i, j: x[i, j].astype("bfloat16"), name="narrow")
    zero = tvm.tirx.const(0, "bfloat16")

    def padded(i, j):
        return te.if_then_else(tvm.tirx.all(j >= 4, j < 20), narrow[i, j - 4], zero)

    room = te.compute((5, 24), padded, name="room")
    twice = te.compute((5, 24), lambda i, j: room[i, j].astype("float32") * 2.0, name="twice")
    target = tvm.target.Target({"kind": "llvm", "mattr": mattr, "mcpu": "x86-64-v3"})
    func = te.create_prim_func([x, narrow, twice]).with_attr("global_symbol", "main")
    sch = tvm.s_tir.Schedule(func)
    sch.vectorize(sch.get_loops(sch.get_sblock("narrow"))[-1])
    sch.compute_at(sch.get_sblock("room"), sch.get_loops(sch.get_sblock("twice"))[0])
    func = sch.mod["main"].with_attr({REGISTER_BYTES: 2048, "target": target})
    return tvm.compile(lowering.lower(tvm.IRModule({"main": func})), target)


@pytest.mark.skipif(NATIVE.isa.lane_operand, reason="code of x86")
def test_rounding_is_to_nearest_even_and_keeps_what_is_no_number() -> None:
    library = rounded([])
    bits = np.random.default_rng(1).integers(0, 2**32, (5, 16), np.uint32)
    # Ties on both sides, the largest number, infinity, and what is no number with low bits only.
    bits[0, :7] = 0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFFFFFFFF, 0x00000001
    x = bits.view(np.float32)
    tensors = [
        tvm.runtime.tensor(x),
        *(
            tvm.runtime.tensor(np.zeros(shape, dtype))
            for shape, dtype in (((5, 16), ml_dtypes.bfloat16), ((5, 24), np.float32))
        ),
    ]
    library["main"](*tensors)
    narrow, twice = (tensor.numpy() for tensor in tensors[1:])
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(narrow.astype(np.float32), expected)
    assert not twice[:, :4].any()
    assert not twice[:, 20:].any()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(twice[:, 4:20], 2 * narrow.astype(np.float32))


@pytest.mark.skipif(NATIVE.isa.lane_operand, reason="code of x86")
def test_cores_with_the_instruction_round_by_it() -> None:
    assembly = rounded(["+avx512f", "+avx512bf16", "+avx512vl", "+avx512bw"]).mod
    assert "vcvtneps2bf16" in assembly.inspect_source("asm")
    assert "vcvtneps2bf16" not in rounded([]).mod.inspect_source("asm")
    assert source("blislike_tiles_release") == ""


def test_they_are_for_cores_with_their_features() -> None:
    gemm, direct = map(get_implementation, ("gemm", "conv2d_direct"))
    zen4, skylake = map(Core.named, ("zen4", "skylake-avx512"))
    for implementation, workload in (
        (gemm, GemmWorkload(20, 30, 7, types=PAIRS)),
        (direct, CONVOLUTIONS[0]),
    ):
        assert implementation.applies(workload, zen4) == ""
        assert "has no bfloat16" in implementation.applies(workload, skylake)
