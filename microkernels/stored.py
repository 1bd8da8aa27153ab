"""fp32 = fp32 x what lies in memory in fewer bytes: B becomes fp32 in registers as it is loaded.

Storage types after Flyte (Anderson and Gregg, "Vectorized multi-byte types", 2016; chapter 8 of
the Genvolution thesis): arithmetic stays fp32, only the bytes that pass by get fewer. All values
are exact, denormals, infinities and NaN included, but for the NaN of e4m3, which becomes 480 where
no tables are at hand: weights that are not finite are not stored (`passes.storage`).

| type | becomes fp32 by |
|---|---|
| bfloat16 | a shift by 16: it is the upper half of fp32 |
| float16 | a conversion |
| int8 | two conversions |
| float8_e5m2 | a shift by 8, then as float16, whose upper half it is |
| float8_e4m3fn | its bits where fp32 has them, times 2 ** 120 between their exponents |
| float8 of both kinds, 64 columns, avx512_vbmi | tables (`byte_tables`) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.hardware import Isa
from tvm_blislike.microkernels import byte_tables
from tvm_blislike.microkernels.kernel import Microkernel
from tvm_blislike.microkernels.products import BROADCAST, Product, Spread
from tvm_blislike.model.types import Types

# All of fp32 but the upper four bits of its exponent.
_WITHOUT_HIGH_EXPONENT = -0x78000001
# Between the biases of exponents of fp32 and e4m3, 127 and 7.
_E4M3_SCALE = 2.0**120


def _from_bfloat16(loaded: Any, lanes: int) -> Any:
    words = T.Cast(f"uint32x{lanes}", T.reinterpret(f"uint16x{lanes}", loaded))
    return T.reinterpret(f"float32x{lanes}", words << T.broadcast(T.uint32(16), lanes))


def _from_float16(loaded: Any, lanes: int) -> Any:
    return T.Cast(f"float32x{lanes}", loaded)


def _from_int8(loaded: Any, lanes: int) -> Any:
    return T.Cast(f"float32x{lanes}", T.Cast(f"int32x{lanes}", loaded))


def _from_e5m2(loaded: Any, lanes: int) -> Any:
    halves = T.Cast(f"uint16x{lanes}", T.reinterpret(f"uint8x{lanes}", loaded))
    halves = halves << T.broadcast(T.uint16(8), lanes)
    return _from_float16(T.reinterpret(f"float16x{lanes}", halves), lanes)


def _from_e4m3(loaded: Any, lanes: int) -> Any:
    # Copies of the sign in front, of which all but one make room for the upper exponent bits.
    signed = T.Cast(f"int32x{lanes}", T.reinterpret(f"int8x{lanes}", loaded))
    signed = signed << T.broadcast(T.int32(20), lanes)
    words = signed & T.broadcast(tirx.const(_WITHOUT_HIGH_EXPONENT, "int32"), lanes)
    return T.reinterpret(f"float32x{lanes}", words) * T.broadcast(T.float32(_E4M3_SCALE), lanes)


Convert = Callable[[Any, int], Any]
CONVERSIONS: dict[str, Convert] = {
    "bfloat16": _from_bfloat16,
    "float16": _from_float16,
    "int8": _from_int8,
    "float8_e5m2": _from_e5m2,
    "float8_e4m3fn": _from_e4m3,
}
# Instructions of a conversion; the load does the first one where it widens on its way.
_INSTRUCTIONS = {
    "bfloat16": 2,
    "float16": 2,
    "int8": 2,
    "float8_e5m2": 4,
    "float8_e4m3fn": 4,
}


def converted(dtype: str, loaded: Any, lanes: int) -> Any:
    """Return a loaded vector of a storage type as fp32."""
    return CONVERSIONS[dtype](loaded, lanes)


def _product(dtype: str, spread: Spread) -> Product:
    def multiply_add(sums: Any, a: Any, b: Any, lanes: int) -> Any:
        return spread.multiply_add(sums, a, converted(dtype, b, lanes), lanes)

    costs = _INSTRUCTIONS[dtype]
    return Product(1, spread.load, multiply_add, spread.functions, conversion=costs)


def by_tables(dtype: str, spread: Spread) -> Product:
    """Return the product by B in 8 bits that tables turn into fp32 (`byte_tables`)."""
    return Product(
        *(1, spread.load, spread.multiply_add),
        functions=(*spread.functions, *byte_tables.functions(dtype)),
        conversion=byte_tables.INSTRUCTIONS,
        joined=byte_tables.VECTORS,
        part=partial(byte_tables.part, dtype),
    )


def stored_kernels(
    isa: Isa,
    shapes: Iterable[tuple[int, int]],
    dtypes: Sequence[str] = tuple(CONVERSIONS),
    spread: Spread = BROADCAST,
) -> tuple[Microkernel, ...]:
    """Return the blocks of an instruction set for each storage type of B."""
    shapes = tuple(shapes)
    products = {dtype: _product(dtype, spread) for dtype in dtypes}
    return tuple(
        Microkernel(
            *(isa, mr, nr, Types.stored(dtype)), product=products[dtype], needs=_needs(isa, dtype)
        )
        for dtype in dtypes
        for mr, nr in shapes
    )


def _needs(isa: Isa, dtype: str) -> tuple[str, ...]:
    """Return what converts fp16 where that may be missing: functions would take its place."""
    if dtype not in ("float16", "float8_e5m2"):
        return ()
    return tuple(llvm for llvm, _ in isa.optional if llvm == "f16c")
