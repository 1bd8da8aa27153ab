"""AVX2 with FMA3: x86-64-v3."""

from .isa import Feature, Isa

# What LLVM's x86-64-v3 has and a virtual machine may lack: (LLVM's name, the flag).
LEVEL = (
    *(("movbe", "movbe"), ("bmi", "bmi1"), ("bmi2", "bmi2")),
    *(("f16c", "f16c"), ("fma", "fma")),
)
# What its processors have beyond that, LLVM uses of its own accord, and such a machine may lack.
_BEYOND = (("gfni", "gfni"), ("prfchw", "3dnowprefetch"))
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
    # Code for x86-64-v3 is ordered for Haswell: sums and factors of 5x16 and 3x24 blocks of bytes
    # then leave no register free and spill, in an order for Zen 3 they do not (ResNet-50 in 8 bits
    # takes 0.98 of the time there; four models in fp32 1.00 to 1.01).
    mcpu="",
    # Of AMD alone, no use in vectors: a library then runs on Intel's processors of this level too.
    mattr=("-sse4a",),
    optional=(*LEVEL, *_BEYOND),
    features=(AVXVNNI,),
    states_absence=True,
    pipelines="haswell",
)
