"""fp16 micro-kernels: what LLVM makes of their k loops on cores with fp16 arithmetic."""

from __future__ import annotations

import re

import pytest

from tvm_blislike.hardware import Core
from tvm_blislike.inspect.assembly import count
from tvm_blislike.inspect.kernel_code import UNROLL, k_loops
from tvm_blislike.microkernels import HALF_KERNELS, KERNELS, get_kernel, kernels_for
from tvm_blislike.model.types import Types

# A single element may be broadcast by its load (ld1r).
FMA = re.compile(r"fmla v\d+\.8h, v\d+\.8h, v\d+\.(h\[\d\]|8h)$")
LANES = 8


@pytest.mark.parametrize("view", ["rows", "panel"])
@pytest.mark.parametrize("core", ["cortex-a76", "neoverse-n1", "cortex-a55"])
def test_k_loops_multiply_eight_at_a_time(core: str, view: str):
    offered = [k for k in HALF_KERNELS if view == "panel" or k.loads_a_vectors]
    for name, loop in k_loops(offered, Core.named(core), view).items():
        kernel, counts = get_kernel(name), count(loop)
        assert not [str(i) for i in loop if i.is_fma and not FMA.match(str(i))]
        by_element = [i.operands.endswith("]") for i in loop if i.is_fma]
        assert all(by_element) or kernel.mr == 1
        assert (counts.spills, counts.moves) == (0, 0), name
        assert counts.fmas % (UNROLL * kernel.mr * kernel.vectors) == 0
        assert not [str(i) for i in loop if i.name.startswith(("fcvt", "dup"))]


def test_they_are_a_data_type_of_their_own():
    assert kernels_for(Core.named("cortex-a76"), Types.of("float16")) == HALF_KERNELS
    assert not set(HALF_KERNELS) & set(KERNELS)
    for kernel in HALF_KERNELS:
        assert kernel.lanes == LANES == Core.named("cortex-a76").lanes("float16")
        assert kernel.name.startswith("neon_f16_")
        assert kernel.registers <= 32
