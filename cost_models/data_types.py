"""Which data types an implementation has kernels for, those of quantized operands, types of sums.

fp16 sums of fp16 products lose digits with every addition. So micro-kernels add at most about
`MOST_HALF_STEPS` products in fp16 registers; what they return is widened and added in fp32.
"""

from __future__ import annotations

from dataclasses import replace

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.types import MASKED, WORDS, Types
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
        The implementation packs for those that take several steps of k at once, and weights in the
        type in which they are stored.
    """
    if not grouped and workload.types.is_stored:
        return f"weights are not packed as {workload.types.b}"
    if not grouped and any(k.takes_groups for k in kernels_for(core, workload.types)):
        return f"operands are not packed for the k groups of {workload.types} micro-kernels"
    return missing_types(workload.types, core)


def missing_types(types: Types, core: Core) -> str:
    """Return "" when a core has micro-kernels for the types of a product, else why not."""
    if kernels_for(core, types):
        return ""
    if kernels_for(replace(core, features=tuple(f.name for f in core.isa.features)), types):
        return f"{core.name} has no {types} arithmetic"
    return f"no {types} micro-kernels for {core.isa.name}"


def quantized_types(core: Core) -> Types:
    """Return the types of a product of quantized operands: one type of activations for a core.

    Activations are of the type that the instruction set's dot products take as their first factor.
    Cores without any may have exact products of bytes by weights in 16 bits. Those with products of
    16 bits only have values of 8 bits in such, weights too.
    """
    bytes_ = Types("int8" if core.isa.signed_dot else "uint8", "int8", "int32", "int32")
    offered = (types for types in (bytes_, MASKED, WORDS) if kernels_for(core, types))
    return next(offered, bytes_)


def vector_dot(core: Core, types: Types) -> Microkernel | None:
    """Return a micro-kernel whose product also takes a vector of groups of A, if there is one."""
    return next((k for k in kernels_for(core, types) if k.product.intrinsic), None)


def sum_dtype(types: Types) -> str:
    """Return the data type in which sums of several micro-kernel calls are kept."""
    return "float32" if types.acc == "float16" else types.acc


def most_steps(types: Types) -> int:
    """Return the products that may be added in registers, one after the other."""
    return MOST_HALF_STEPS if types.acc == "float16" else 1 << 30
