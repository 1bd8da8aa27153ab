"""AVX-512 as x86-64-v4 has it; a core without a part of that (Knights Landing) is used as AVX2."""

from .avx2 import AVXVNNI, LEVEL
from .isa import Feature, Isa

ISA = Isa(
    name="avx512",
    vector_registers=32,
    vector_bytes=64,
    register="xmm",
    folds_broadcast=True,
    memory_operand=True,
    packs="llvm.x86.avx512.{}.512",
    # One port.
    shifts_per_cycle=1.0,
    flags=frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    # LLVM's models of single processors count one 512-bit FMA a cycle.
    mcpu="x86-64-v4",
    # Otherwise LLVM's own vectorizer stays at 256 bits (explicit vectors do not).
    mattr=("-prefer-256-bit",),
    optional=LEVEL,
    features=(
        Feature("vnni", "avx512vnni", "avx512vnni"),
        Feature("bf16", "avx512bf16", "avx512bf16"),
        Feature("fp16", "avx512fp16", "avx512fp16"),
        Feature("vbmi", "avx512vbmi", "avx512vbmi"),
        Feature("vbmi2", "avx512vbmi2", "avx512vbmi2"),
        Feature("ifma", "avx512ifma", "avx512ifma"),
        Feature("vpopcntdq", "avx512vpopcntdq", "avx512vpopcntdq"),
        AVXVNNI,
        Feature("amx_tile", "amx-tile", "amxtile"),
        Feature("amx_int8", "amx-int8", "amxint8"),
        Feature("amx_bf16", "amx-bf16", "amxbf16"),
    ),
    pipelines="skylake-avx512",
)
