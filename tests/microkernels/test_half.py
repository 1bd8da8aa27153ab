"""fp16 and bf16 micro-kernels: what LLVM makes of their k loops on cores with such arithmetic."""

from __future__ import annotations

import re

import pytest

from tvm_blislike.hardware import Core
from tvm_blislike.inspect.assembly import count
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

HALF, PAIRS = Types.of("float16"), Types("bfloat16", "bfloat16", "float32", "float32")
# Core, types, multiply-adds. A single element may be broadcast by its load (ld1r).
NEON = re.compile(r"fmla v\d+\.8h, v\d+\.8h, v\d+\.(h\[\d\]|8h)$")
CASES = {
    "cortex-a76": (HALF, NEON),
    "neoverse-n1": (HALF, NEON),
    "cortex-a55": (HALF, NEON),
    "sapphirerapids": (HALF, re.compile(r"vfmadd(132|213|231)ph .*%zmm\d+$")),
    "zen4": (PAIRS, re.compile(r"vdpbf16ps .*%zmm\d+$")),
}


@pytest.mark.parametrize("view", ["rows", "panel"])
@pytest.mark.parametrize("name", CASES)
def test_k_loops_multiply_whole_registers(name: str, view: str):
    core, (types, multiply_add) = Core.named(name), CASES[name]
    kernels = kernels_for(core, types)
    by_lane = core.isa.lane_operand
    offered = [k for k in kernels if view == "panel" or k.loads_a_vectors or not by_lane]
    assert offered
    for name, loop in k_loops(offered, core, view).items():
        kernel, counts = get_kernel(name), count(loop)
        assert not [str(i) for i in loop if i.is_fma and not multiply_add.match(str(i))]
        by_element = [i.operands.endswith("]") for i in loop if i.is_fma]
        assert all(by_element) or kernel.mr == 1 or not by_lane
        assert (counts.spills, counts.moves) == (0, 0), name
        assert counts.fmas % (UNROLL * kernel.mr * kernel.vectors) == 0
        assert not [str(i) for i in loop if "cvt" in i.name or i.name == "dup"]


def test_they_are_for_cores_with_their_features():
    a76, a72, rapids, zen4 = map(Core.named, ("cortex-a76", "cortex-a72", "sapphirerapids", "zen4"))
    assert {*kernels_for(a76, HALF), *kernels_for(rapids, HALF)} == {*HALF_KERNELS}
    assert kernels_for(a72, HALF) == kernels_for(zen4, HALF) == ()
    assert kernels_for(zen4, PAIRS) == kernels_for(rapids, PAIRS) == GROUPED_KERNELS
    assert not {*HALF_KERNELS, *GROUPED_KERNELS} & {*KERNELS}
    for kernel in (*HALF_KERNELS, *GROUPED_KERNELS):
        assert kernel.lanes == 8 * kernel.isa.vector_bytes // (8 * kernel.types.acc_bytes)
        assert kernel.operand_lanes == kernel.isa.vector_bytes // 2
        assert kernel.registers <= kernel.isa.vector_registers


def test_a_use_takes_as_many_elements_a_step_as_the_kernel():
    kernel: Microkernel = get_kernel("avx512_bf16f32_14x32x2")
    with pytest.raises(ValueError, match="takes 2 elements of k a step, not 1"):
        update_intrin(kernel, UpdateShape(1, 14, 16))
