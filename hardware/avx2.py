"""AVX2 with FMA3: x86-64-v3."""

from .isa import Feature, Isa

# What LLVM's x86-64-v3 has and a virtual machine may lack: (LLVM's name, the flag).
LEVEL = (
    *(("movbe", "movbe"), ("bmi", "bmi1"), ("bmi2", "bmi2")),
    *(("f16c", "f16c"), ("fma", "fma")),
)
# Dot products of 8 bit in AVX's encoding.
AVXVNNI = Feature("avxvnni", "avxvnni", "avxvnni")

ISA = Isa(
    name="avx2",
    vector_registers=16,
    vector_bytes=32,
    register="xmm",
    memory_operand=True,
    packs="llvm.x86.avx2.{}",
    # Two instructions, on one port.
    shifts_per_cycle=0.5,
    flags=frozenset({"avx2", "fma"}),
    mcpu="x86-64-v3",
    optional=LEVEL,
    features=(AVXVNNI,),
    pipelines="haswell",
)
