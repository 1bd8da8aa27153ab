"""What LLVM makes of every listed micro-kernel: multiply-adds, folded operands, no spills."""

from __future__ import annotations

import functools
import re

import pytest
from kernel_harness import Product, compile_all, primfunc

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import KERNELS, Microkernel, UpdateShape, kernels_for, neon_in_order
from tvm_blislike.tvm_seams.machine_code import Instruction, count, k_loop

UNROLL = 4
# Cores whose schedules differ in LLVM: in order and out of order, loads early and late.
CORES = {
    "avx512": ("sapphirerapids", "zen4"),
    "avx2": ("x86-64-v3", "zen3"),
    "neon": ("cortex-a72", "cortex-a53", "neoverse-n1"),
}
FMA = {
    "avx512": re.compile(r"vfmadd(132|213|231)ps .*%zmm\d+$"),
    "avx2": re.compile(r"vfmadd(132|213|231)ps .*%ymm\d+$"),
    "neon": re.compile(r"fmla v\d+\.4s, v\d+\.4s, v\d+\.(s\[\d\]|4s)$"),
}
# Multiply-adds of a loop that LLVM may have unrolled of its own accord.
MOST_REPEATED = 112
# How A may lie in memory, where the k loop is offered.
VIEWS = {"avx512": ("rows",), "avx2": ("rows",), "neon": ("rows", "panel")}
ALL_CORES = [
    (kernel, core, view)
    for kernel in KERNELS
    for core in CORES[kernel.isa.name]
    for view in VIEWS[kernel.isa.name]
    if view == "panel" or not kernel.panels_only
]


def name_of(value: object) -> str:
    return value.name if isinstance(value, Microkernel) else str(value)


@functools.cache
def loop_of(kernel: Microkernel, core: str, view: str = "") -> list[Instruction]:
    """The k loop of one block whose k is long."""
    view = view or ("panel" if kernel.panels_only else "rows")
    described = Core.named(core)
    shape = UpdateShape(1, kernel.mr, 256, UNROLL, view=view, in_order=described.in_order)
    product = Product(kernel, shape, 1, kernel.mr, kernel.nr, calls=1)
    library = compile_all({"f": primfunc(product)}, described.target_config(1))
    return k_loop(library.mod.inspect_source("asm"))


@pytest.mark.parametrize("kernel, core, view", ALL_CORES, ids=name_of)
def test_k_loop_is_nothing_but_multiply_adds_and_their_loads(
    kernel: Microkernel, core: str, view: str
):
    loop = loop_of(kernel, core, view)
    fmas = [i for i in loop if i.is_fma]
    assert not [str(i) for i in fmas if not FMA[kernel.isa.name].match(str(i))]
    steps, rest = divmod(len(fmas), kernel.mr * kernel.vectors)
    assert rest == 0
    counted = count(loop)
    assert (counted.spills, counted.moves) == (0, 0)
    if view == "panel" and is_assembly(kernel, core):
        # Written in assembly (`neon_panels`): one step, halves of 128 bits in order.
        halves = 4 * (kernel.mr + kernel.nr) / 8
        loads = halves + kernel.mr % 2 / 2 if is_ordered(kernel, core) else None
        assert steps == 1
        assert counted.loads == (loads or kernel.loads_per_fma(view) * len(fmas))
        return
    # One step where NEON has no register for more; LLVM itself repeats a short body.
    no_vectors = kernel.isa.lane_operand and not kernel.loads_a_vectors and view == "rows"
    asked = 1 if no_vectors else UNROLL
    assert steps in [asked * times for times in (1, 2, 4, 8)]
    assert steps == asked or len(fmas) <= MOST_REPEATED
    assert counted.loads == pytest.approx(kernel.loads_per_fma(view) * len(fmas))


def is_assembly(kernel: Microkernel, core: str) -> bool:
    """Whether panels go through a loop that is not LLVM's."""
    wide = Core.named(core).in_order and kernel.vectors > 2
    return kernel.registers > 30 or wide or is_ordered(kernel, core)


def is_ordered(kernel: Microkernel, core: str) -> bool:
    """Whether panels go through a loop ordered for the core."""
    return Core.named(core).in_order and neon_in_order.fits(kernel.mr, kernel.nr)


@pytest.mark.parametrize("kernel", kernels_for(Core.named("sapphirerapids")), ids=name_of)
def test_broadcast_folds_into_the_multiply_add_of_one_vector(kernel: Microkernel):
    fmas = [i for i in loop_of(kernel, "sapphirerapids") if i.is_fma]
    folded = ["{1to16}" in str(i) for i in fmas]
    if kernel.mr == kernel.vectors == 1:
        # An instruction has one operand in memory: here it is B.
        assert all(i.reads_memory for i in fmas)
    else:
        assert all(folded) if kernel.vectors == 1 else not any(folded)


@pytest.mark.parametrize("kernel", kernels_for(Core.named("cortex-a72")), ids=name_of)
def test_vectors_of_a_are_multiplied_by_element(kernel: Microkernel):
    loop = loop_of(kernel, "cortex-a72")
    by_element = [str(i).endswith("]") for i in loop if i.is_fma]
    # An element on its own may be broadcast by its load (ld1r).
    assert all(by_element) or not kernel.loads_a_vectors
    assert not [str(i) for i in loop if i.name == "dup"]


@pytest.mark.parametrize("kernel", KERNELS, ids=name_of)
def test_stated_registers_are_those_the_loop_names(kernel: Microkernel):
    core = CORES[kernel.isa.name][0]
    numbers = re.compile(r"(?:%[xyz]mm|\b[vqs])(\d+)\b")
    named = {n for i in loop_of(kernel, core) for n in numbers.findall(i.operands)}
    # Of one row, LLVM may take every vector of B from memory; elements of A share a register.
    one_by_one = kernel.mr == 1 or (kernel.isa.lane_operand and not kernel.loads_a_vectors)
    least = kernel.mr * kernel.vectors + 1 if one_by_one else kernel.registers
    assert least <= len(named)
    assert kernel.registers <= Core.named(core).vector_registers
