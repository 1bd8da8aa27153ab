"""Micro-kernels of other types than fp32: what LLVM makes of their k loops."""

from __future__ import annotations

import re

import pytest

from tvm_blislike.hardware import Core
from tvm_blislike.inspect.kernel_code import UNROLL, k_loops
from tvm_blislike.microkernels import (
    GROUPED_KERNELS,
    HALF_KERNELS,
    KERNELS,
    Microkernel,
    UpdateShape,
    get_kernel,
    kernels_for,
    update_intrin,
)
from tvm_blislike.model.types import Types
from tvm_blislike.tvm_seams.machine_code import count

HALF, PAIRS = Types.of("float16"), Types("bfloat16", "bfloat16", "float32", "float32")
BYTES = Types("uint8", "int8", "int32", "int32")
# Core, types, multiply-adds. A single element may be broadcast by its load (ld1r).
NEON = re.compile(r"fmla v\d+\.8h, v\d+\.8h, v\d+\.(h\[\d\]|8h)$")
BYTES_512 = re.compile(r"vpdpbusd .*%zmm\d+$")
CASES = (
    ("cortex-a76", HALF, NEON),
    ("neoverse-n1", HALF, NEON),
    ("cortex-a55", HALF, NEON),
    ("sapphirerapids", HALF, re.compile(r"vfmadd(132|213|231)ph .*%zmm\d+$")),
    ("zen4", PAIRS, re.compile(r"vdpbf16ps .*%zmm\d+$")),
    ("zen4", BYTES, BYTES_512),
    ("sapphirerapids", BYTES, BYTES_512),
    ("icelake-client", BYTES, BYTES_512),
)
# A is packed row by row where its elements are broadcast from memory.
VIEWS = {True: ("rows", "panel"), False: ("rows",)}
USES = [(*case, view) for case in CASES for view in VIEWS[Core.named(case[0]).isa.lane_operand]]


@pytest.mark.parametrize("name, types, multiply_add, view", USES, ids=str)
def test_k_loops_multiply_whole_registers(
    name: str, types: Types, multiply_add: re.Pattern[str], view: str
):
    core = Core.named(name)
    kernels = kernels_for(core, types)
    by_lane = core.isa.lane_operand
    offered = [k for k in kernels if view == "panel" or k.loads_a_vectors or not by_lane]
    offered = [k for k in offered if k.tiles is None]
    assert offered
    for name, loop in k_loops(offered, core, view).items():
        kernel, counts = get_kernel(name), count(loop)
        assert not [str(i) for i in loop if i.is_fma and not multiply_add.match(str(i))]
        by_element = [i.operands.endswith("]") for i in loop if i.is_fma]
        assert all(by_element) or kernel.mr == 1 or not by_lane
        assert (counts.spills, counts.moves) == (0, 0), name
        assert counts.fmas % (UNROLL * kernel.mr * kernel.vectors) == 0
        if not kernel.product.folds_a and not by_lane:
            # Nothing but the product, loads of B, and broadcasts of A.
            others = {i.name for i in loop if not i.is_fma and i.reads_memory}
            assert others <= {"vpbroadcastd", "vmovdqu64", "vmovdqa64", "vmovups", "vmovaps"}
        assert not [str(i) for i in loop if "cvt" in i.name or i.name == "dup"]


def test_they_are_for_cores_with_their_features():
    a76, a72, rapids, zen4 = map(Core.named, ("cortex-a76", "cortex-a72", "sapphirerapids", "zen4"))
    assert {*kernels_for(a76, HALF), *kernels_for(rapids, HALF)} == {*HALF_KERNELS}
    assert kernels_for(a72, HALF) == kernels_for(zen4, HALF) == ()
    pairs, of_bytes = kernels_for(zen4, PAIRS), kernels_for(zen4, BYTES)
    for types, of_vectors in ((PAIRS, pairs), (BYTES, of_bytes)):
        tiled = tuple(k for k in kernels_for(rapids, types) if k.tiles is not None)
        assert tiled
        assert kernels_for(rapids, types) == (*of_vectors, *tiled)
    assert kernels_for(Core.named("skylake-avx512"), BYTES) == ()
    assert {*pairs, *of_bytes} <= {*GROUPED_KERNELS}
    assert not {*HALF_KERNELS, *GROUPED_KERNELS} & {*KERNELS}
    for kernel in (*HALF_KERNELS, *GROUPED_KERNELS):
        assert kernel.lanes == 8 * kernel.isa.vector_bytes // (8 * kernel.types.acc_bytes)
        assert kernel.operand_lanes == kernel.isa.vector_bytes // (kernel.types.a_bytes * kernel.ks)
        assert kernel.registers <= kernel.isa.vector_registers


def test_a_use_takes_as_many_elements_a_step_as_the_kernel():
    kernel: Microkernel = get_kernel("avx512_bf16f32_14x32x2")
    with pytest.raises(ValueError, match="takes 2 elements of k a step, not 1"):
        update_intrin(kernel, UpdateShape(1, 14, 16))
