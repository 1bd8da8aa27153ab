"""Pairs of bfloat16 from bytes, for AVX-512 with avx512_vbmi: one lookup and one mask for 64 bytes.

A bfloat16 consists of a byte of the sign and the upper exponent, and one of which a number of 8
bits fills no more than the last bit of the exponent and its mantissa of t bits. So panels hold
numbers of 8 bits as *codes*: those t + 1 bits where they belong, and below them, in the other 7 - t
bits, which of the few first bytes it is. `vpandd` leaves the second byte of a code, and `vpermb`,
which looks at the lower six bits of each byte in a table of 64, makes the first one. Two
interleavings of both make two vectors of pairs.

Those 7 - t bits, a sign and the upper exponent, have no room for what denormal numbers become. They
take the place of the largest exponents: in the last row of each sign of the table stand, by the
lowest bit of the mantissa, the exponents below all others, and zero: a denormal bfloat16, which
`vdpbf16ps` takes for zero. Weights have scales (`passes.storage`), so that the largest numbers are
not missed: `most` is the largest magnitude that has a code.

|      | t | code          | `most` |
|------|---|---------------|--------|
| e4m3 | 3 | E mmm s hhh   |    120 |
| e5m2 | 2 | E mm s hhhh   |  28672 |

Lookups of `vpermi2b` in tables of 128 (`byte_tables`), two for 64 bytes, and two operations for
signs need no codes, but have three sources as products have, of which Zen 4 reads few a cycle.

Interleaving works inside of parts of 16 bytes: see `byte_tables`.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes  # noqa: F401  names types of 8 bits for NumPy
import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_blislike.model.types import Types

# Vectors of pairs of a register of bytes, and instructions for each.
PAIRS, INSTRUCTIONS = 2, 4 / 2
# Bits of the mantissa, and what is between the biases of exponents of bfloat16 and of the type.
_FORMATS = {"float8_e4m3fn": (3, 120), "float8_e5m2": (2, 112)}
DTYPES = tuple(_FORMATS)
_LANES = 16
_WORDS, _BYTES = "<16 x i32>", "<64 x i8>"
_LOOKUP = "llvm.x86.avx512.permvar.qi.512"


def is_coded(types: Types) -> bool:
    """Whether B lies in panels as codes."""
    return types.b in DTYPES and types == Types.brain_by(types.b)


@functools.cache
def most(dtype: str) -> float:
    """Return the largest magnitude of one of `DTYPES` that has a code."""
    return float(np.array(_most_bits(dtype), np.uint8).view(dtype))


def coded(panels: np.ndarray) -> np.ndarray:
    """Return numbers of 8 bits as codes.

    Parameters
    ----------
    panels : numpy.ndarray
        Of one of `DTYPES`, of any shape.

    Returns
    -------
    numpy.ndarray
        Of the same type and shape, whose bytes are codes.

    Raises
    ------
    ValueError
        When a magnitude is larger than `most`, or not a number.
    """
    dtype, bits = str(panels.dtype), panels.view(np.uint8)
    if ((bits & 127) > _most_bits(dtype)).any():
        raise ValueError(f"numbers of {dtype} above {most(dtype):g} have no code")
    small = _denormals(dtype)
    codes = [_code(dtype, number, small, _chosen) for number in range(256)]
    return np.array(codes, np.uint8)[bits].view(dtype)


def coded_te(dtype: str, element: Any) -> Any:
    """Return an element of one of `DTYPES` as its code, in TIR; see `coded`."""
    bits = tirx.reinterpret("uint8", element).astype("uint64")
    small = tirx.const(_denormals(dtype), "uint64")
    return tirx.reinterpret(dtype, _code(dtype, bits, small, tirx.Select).astype("uint8"))


def _chosen(condition: bool, one: int, other: int) -> int:
    return one if condition else other


def _code(dtype: str, bits: Any, denormals: Any, select: Any) -> Any:
    """Return the code of a number, given its bits as an integer of Python or of TIR.

    Parameters
    ----------
    denormals : int or PrimExpr
        As `_denormals` returns them.
    select : callable
        (condition, value where it is true, value where it is false).
    """
    mantissa, _ = _FORMATS[dtype]
    magnitude, normal = bits & 127, 1 << mantissa
    usual = ((magnitude << 7 - mantissa) & _mask(dtype)) | magnitude >> mantissa + 1
    small = denormals >> 8 * (magnitude & normal - 1) & 255
    code = select(magnitude < normal, small, usual)
    return code | bits >> 7 << 6 - mantissa


def _denormals(dtype: str) -> int:
    """Return the codes of zero and of the positive denormal numbers, a byte each from the lowest.

    All of them are at most 64 bits.
    """
    mantissa, bias = _FORMATS[dtype]
    last, codes = _last(dtype), []
    for number in range(1 << mantissa):
        words = np.float32(number * 2.0 ** (-mantissa - 126 + bias)).view(np.uint32) >> 16
        above = int(words >> 8) - bias // 2
        # Zero has a bit of the mantissa that `_first_bytes` knows it by.
        second = int(words) & 255 if number else 1 << 7 - mantissa
        codes.append(second | (last if above < 0 else above))
    return int.from_bytes(codes, "little")


def _last(dtype: str) -> int:
    """Return the upper exponent, as it is in codes, of what has none of its own."""
    return (1 << 6 - _FORMATS[dtype][0]) - 1


def _most_bits(dtype: str) -> int:
    """Return the bits of the largest number that has a code."""
    return (_last(dtype) << _FORMATS[dtype][0] + 1) - 1


def _mask(dtype: str) -> int:
    """Return the bits of a code that are the second byte of a bfloat16."""
    return 256 - (1 << 7 - _FORMATS[dtype][0])


def _first_bytes(dtype: str) -> list[int]:
    """Return the first byte of a bfloat16 by the lower six bits of a code."""
    mantissa, bias = _FORMATS[dtype]
    found = []
    for index in range(64):
        sign, above = index >> 6 - mantissa & 1, index & _last(dtype)
        lower = index >> 7 - mantissa
        first = bias // 2 + (above if above < _last(dtype) else -1)
        is_zero = above == _last(dtype) and lower > 0
        found.append(0 if is_zero else sign << 7 | first)
    return found


# --- code ------------------------------------------------------------------------------------


def pairs(dtype: str, loaded: Any, number: int) -> Any:
    """Return one of the `PAIRS` vectors of pairs of bfloat16 of 64 loaded codes, as words."""
    words = T.reinterpret(f"int32x{_LANES}", loaded)
    return T.call_pure_extern(f"int32x{_LANES}", _name(dtype, number), words)


def functions(dtype: str) -> tuple[tuple[str, str], ...]:
    """Return the functions of LLVM that make vectors of pairs, by name."""
    return tuple((_name(dtype, number), _source(dtype, number)) for number in range(PAIRS))


def _name(dtype: str, number: int) -> str:
    return f"blislike_{dtype}_pairs_of_codes_{number}"


def _source(dtype: str, number: int) -> str:
    """Return the function (16 words of four codes each) to words; LLVM shares what is equal."""
    table = ", ".join(f"i8 {byte}" for byte in _first_bytes(dtype))
    return f"""
declare {_BYTES} @{_LOOKUP}({_BYTES}, {_BYTES})
define linkonce_odr {_WORDS} @{_name(dtype, number)}({_WORDS} %w) alwaysinline nounwind {{
  %i = bitcast {_WORDS} %w to {_BYTES}
  %h = call {_BYTES} @{_LOOKUP}({_BYTES} <{table}>, {_BYTES} %i)
  %n = and {_BYTES} %i, splat (i8 {_mask(dtype) - 256})
  %p = call {_BYTES} asm "vpunpck{"lh"[number]}bw $2, $1, $0", "=v,v,v"({_BYTES} %n, {_BYTES} %h)
    memory(none)
  %f = bitcast {_BYTES} %p to {_WORDS}
  ret {_WORDS} %f
}}
"""
