"""Products of 8 bits on NEON: what LLVM makes of their k loops."""

from __future__ import annotations

import re

import pytest
import tvm

from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core, names
from tvm_blislike.inspect.kernel_code import k_loops
from tvm_blislike.microkernels import get_kernel, kernels_for, neon_in_order
from tvm_blislike.model.types import Types
from tvm_blislike.tvm_seams.machine_code import count

# Cores whose schedules differ in LLVM: out of order, in order, with and without i8mm.
CORES = ("cortex-a76", "neoverse-n1", "neoverse-v1", "cortex-a55", "cortex-a510")
MATRICES = ("neoverse-v1", "neoverse-n2", "apple-m2", "cortex-a510")
SDOT = re.compile(r"sdot v\d+\.4s, v\d+\.16b, v\d+\.4b\[\d\]$")

# Registers of blocks that leave LLVM some on every core.
_ROOMY = 25


@pytest.mark.parametrize("view", ["rows", "panel"])
@pytest.mark.parametrize("name", CORES)
def test_dot_products_take_groups_of_a_by_element(name: str, view: str):
    core = Core.named(name)
    kernels = kernels_for(core, quantized_types(core), panels=view == "panel")
    offered = [kernel for kernel in kernels if kernel.features == ("dotprod",)]
    assert len(offered) > 50
    for name, loop in k_loops(offered, core, view).items():
        kernel, counts = get_kernel(name), count(loop)
        assert not [str(i) for i in loop if i.is_fma and not SDOT.match(str(i))]
        assert (counts.spills, counts.moves) == (0, 0), name
        # Nothing but the product and loads: no group is broadcast, by its load or on its own.
        assert not [str(i) for i in loop if i.name in ("dup", "ld1r", "fmov", "zip1", "tbl")]
        assert counts.fmas % (kernel.mr * kernel.vectors) == 0
        ordered = view == "panel" and core.in_order and neon_in_order.fits(kernel.mr, kernel.nr)
        if not ordered:
            # Half of a vector of B is a load of its own where the order is ours.
            assert counts.loads == pytest.approx(kernel.loads_per_fma(view) * counts.fmas), name


@pytest.mark.parametrize("view", ["rows", "panel"])
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize(
    "types, instruction",
    [(("int8", "int8"), "smmla"), (("uint8", "int8"), "usmmla"), (("uint8", "uint8"), "ummla")],
)
def test_matrix_products_take_two_rows(types: tuple, instruction: str, name: str, view: str):
    core = Core.named(name)
    kernels = kernels_for(core, Types(*types, "int32", "int32"), panels=view == "panel")
    offered = [kernel for kernel in kernels if kernel.features == ("i8mm",)]
    assert len(offered) > 20
    for name, loop in k_loops(offered, core, view).items():
        kernel, counts = get_kernel(name), count(loop)
        assert {i.name for i in loop if i.is_fma} == {instruction}
        # One step of k: the products, their operands, pointers, a counter and the way back.
        assert counts.fmas == kernel.mr * kernel.vectors
        assert counts.loads == kernel.a_loads(kernel.mr, view) + 2 * kernel.vectors
        assert counts.instructions == counts.fmas + counts.loads + (4 if view == "panel" else 3)
        assert (counts.spills, counts.moves) == (0, 0), name


@pytest.mark.parametrize("name", ["cortex-a72", "cortex-a53"])
def test_without_dot_products_pairs_are_multiplied_and_added(name: str):
    core = Core.named(name)
    offered = [k for k in kernels_for(core, quantized_types(core)) if k.registers <= _ROOMY]
    assert offered
    for name, loop in k_loops(offered, core, "panel").items():
        kernel, counts = get_kernel(name), count(loop)
        names = [i.name for i in loop]
        # Two instructions for a register of sums, and a copy of each pair of A for a row of it.
        assert names.count("sadalp") == names.count("smull") + names.count("smull2")
        steps, rest = divmod(counts.fmas, kernel.mr * kernel.vectors)
        assert rest == 0 and names.count("dup") <= kernel.mr * steps
        assert (counts.spills, counts.moves) == (0, 0), name


def test_cores_are_offered_what_they_have():
    for name in ("cortex-a72", "cortex-a53", "carmel", "cortex-a76", "neoverse-v1"):
        core = Core.named(name)
        offered = kernels_for(core, quantized_types(core), panels=True)
        wanted = {(feature,) for feature in ("dotprod", "i8mm") if feature in core.features}
        assert offered and {kernel.features for kernel in offered} == (wanted or {()})


@pytest.mark.parametrize("name", [n for n in names() if Core.named(n).isa.lane_operand])
def test_llvm_agrees_about_features(name: str):
    """What a core is described to have, against what LLVM knows of its processor."""
    core = Core.named(name)
    found = tvm.target.Target(core.target_config(1)).attrs
    for feature, of_llvm in (("dotprod", "has_dotprod"), ("i8mm", "has_matmul_i8")):
        assert (feature in core.features) == bool(found.get(f"feature.{of_llvm}", False))
