"""Which data types an implementation has kernels for, and what half precision sums in what.

fp16 sums of fp16 products lose digits with every addition. So micro-kernels add at most about
`MOST_HALF_STEPS` products in fp16 registers; what they return is widened and added in fp32.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Workload

# Products added in fp16. Largest error over the largest of 533 sums of 4,608 products of normal
# values: 0.0014 with 128, 0.0025 with 256, 0.0033 with 512, 0.0044 with 1,024. Widening a block
# costs as many instructions as four to eight steps.
MOST_HALF_STEPS = 256


def missing(workload: Workload, core: Core, grouped: bool = False) -> str:
    """Return "" when micro-kernels compute in the workload's data types, else why not.

    Parameters
    ----------
    grouped : bool
        The implementation packs for those that take several steps of k at once.
    """
    if not grouped and any(k.ks > 1 for k in kernels_for(core, workload.types)):
        return f"operands are not packed for the k groups of {workload.types} micro-kernels"
    return missing_types(workload.types, core)


def missing_types(types: Types, core: Core) -> str:
    """Return "" when a core has micro-kernels for the types of a product, else why not."""
    if kernels_for(core, types):
        return ""
    if kernels_for(replace(core, features=tuple(f.name for f in core.isa.features)), types):
        return f"{core.name} has no {types} arithmetic"
    return f"no {types} micro-kernels for {core.isa.name}"


def sum_dtype(types: Types) -> str:
    """Return the data type in which sums of several micro-kernel calls are kept."""
    return "float32" if types.acc == "float16" else types.acc


def most_steps(types: Types) -> int:
    """Return the products that may be added in registers, one after the other."""
    return MOST_HALF_STEPS if types.acc == "float16" else 1 << 30
