"""NEON of AArch64. SVE is a feature here: the kernels use its cores' 128 bits of NEON."""

from .isa import Feature, Isa

ISA = Isa(
    name="neon",
    vector_registers=32,
    vector_bytes=16,
    register="v",
    lane_operand=True,
    signed_dot=True,
    narrows_pairs=True,
    max_keeps_nan=True,
    features=(
        Feature("dotprod", "dotprod", "asimddp"),
        Feature("fp16", "fullfp16", "asimdhp"),
        Feature("i8mm", "i8mm", "i8mm"),
        Feature("bf16", "bf16", "bf16"),
        Feature("sve", "sve", "sve"),
    ),
    states_absence=True,
)
