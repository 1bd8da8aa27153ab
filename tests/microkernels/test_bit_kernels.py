"""Products of signs: what LLVM makes of their k loops."""

from __future__ import annotations

import pytest

from tvm_blislike.hardware import Core
from tvm_blislike.inspect.kernel_code import k_loops
from tvm_blislike.microkernels import get_kernel, kernels_for
from tvm_blislike.model.types import BITS
from tvm_blislike.tvm_seams.machine_code import count

# The instructions of a product, each as often as there are products.
PRODUCTS = {
    "zen4": ("vpxord", "vpopcntd", "vpaddd"),
    "sapphirerapids": ("vpxord", "vpopcntd", "vpaddd"),
    "haswell": ("vpxor", "vpsrlw", "vpaddb", "vpmaddubsw", "vpmaddwd", "vpaddd"),
    "cortex-a72": ("eor", "cnt", "uaddlp", "uadalp"),
    "neoverse-n1": ("eor", "cnt", "udot"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_k_loops_of_signs_are_counts_of_bits(name: str) -> None:
    core = Core.named(name)
    offered = kernels_for(core, BITS)
    assert len(offered) > 10
    for kernel_name, loop in k_loops(offered, core).items():
        kernel, counts = get_kernel(kernel_name), count(loop)
        assert (counts.spills, counts.moves) == (0, 0), kernel_name
        steps, rest = divmod(counts.fmas, kernel.mr * kernel.vectors)
        assert rest == 0 and steps >= 1, kernel_name
        names = [i.name for i in loop]
        found = {product: names.count(product) for product in PRODUCTS[name]}
        assert found == dict.fromkeys(PRODUCTS[name], counts.fmas), kernel_name


def test_cores_without_such_instructions_have_no_kernels() -> None:
    assert not kernels_for(Core.named("skylake-avx512"), BITS)
