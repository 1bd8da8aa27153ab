"""Products of integers on x86: what LLVM makes of their k loops."""

from __future__ import annotations

import pytest

from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.inspect.kernel_code import k_loops
from tvm_blislike.microkernels import get_kernel, kernels_for
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.types import WORDS, WORDS_BY_BYTES, Types
from tvm_blislike.tvm_seams.machine_code import Instruction, count, instructions

# The product of a core, and what else belongs to one.
MASKED_PRODUCT = ("vpmaddwd", "vpaddd", "vpmaddubsw", "vpxor")
PRODUCTS = {
    "haswell": MASKED_PRODUCT,
    "zen1": MASKED_PRODUCT,
    "zen3": MASKED_PRODUCT,
    "x86-64-v3": MASKED_PRODUCT,
    "skylake-avx512": ("vpmaddwd", "vpaddd"),
    "golden-cove": ("vpdpbusd",),
    "gracemont": ("vpdpbusd",),
    "zen4": ("vpdpbusd",),
}
SCALAR = {"addq", "subq", "cmpq", "leaq", "jne", "incq", "decq"}
LOADS = {"vpbroadcastd", "vbroadcastss", "vmovdqu", "vmovdqu64", "vmovups", "vmovdqa", "vmovdqa64"}


# Rows of weights are widened as they are loaded, instead of loaded as they are.
WIDENED = {"vpbroadcastd", "vpmovsxbw"}


@pytest.mark.parametrize("view", ["rows", "panel"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_k_loops_are_products_and_their_loads(name: str, view: str):
    core = Core.named(name)
    check_k_loops(core, quantized_types(core), PRODUCTS[name], LOADS, view)


@pytest.mark.parametrize("view", ["rows", "panel"])
@pytest.mark.parametrize("name", ["haswell", "skylake", "zen2", "zen3"])
def test_words_are_multiplied_beside_products_of_bytes(name: str, view: str):
    check_k_loops(Core.named(name), WORDS, ("vpmaddwd", "vpaddd"), LOADS, view)


@pytest.mark.parametrize("view", ["rows", "panel"])
@pytest.mark.parametrize("name", ["haswell", "skylake", "zen2", "zen3"])
def test_weights_in_bytes_take_one_instruction_to_load(name: str, view: str):
    check_k_loops(Core.named(name), WORDS_BY_BYTES, ("vpmaddwd", "vpaddd"), WIDENED, view)


def check_k_loops(
    core: Core, types: Types, products: tuple[str, ...], loads: set[str], view: str
) -> None:
    product, *others = products
    offered = kernels_for(core, types)
    kept = [kernel for kernel in offered if keeps_registers(core, kernel, "gemm")]
    assert 2 * len(kept) > len(offered)
    for kernel_name, loop in k_loops(kept, core, view).items():
        kernel, counts = get_kernel(kernel_name), count(loop)
        names = [i.name for i in loop]
        steps, rest = divmod(names.count(product), kernel.mr * kernel.vectors)
        assert rest == 0 and steps >= 1, kernel_name
        assert (counts.fmas, counts.spills, counts.moves) == (names.count(product), 0, 0)
        # Each sum is added to by its own instruction, nothing saturates or is widened.
        assert all(names.count(other) == counts.fmas for other in others), kernel_name
        assert {*names} <= {product, *others, *SCALAR, *loads}, kernel_name
        # Of one row LLVM may take each operand twice; of several it loads no more than it must.
        if kernel.mr > 2 and kernel.vectors < 3:
            assert counts.loads == pytest.approx(kernel.loads_per_fma() * counts.fmas), kernel_name


def test_marks_of_assembly_and_encodings_are_no_instructions():
    text = (
        "\t#APP\n\tvpaddd\t%ymm1, %ymm0, %ymm0\n\t#NO_APP\n\t{vex}\tvpdpbusd\t%ymm2, %ymm1, %ymm0\n"
    )
    found = instructions(text)
    assert [i.name for i in found if isinstance(i, Instruction)] == ["vpaddd", "vpdpbusd"]
    assert [i.is_fma for i in found if isinstance(i, Instruction)] == [False, True]
