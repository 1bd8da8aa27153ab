"""The data types of a product: of its operands, of its sums, and of its result."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tvm_blislike.hardware import dtype_bits

# Data types of factors of products of integers, whose sums have 32 bits.
INTEGER_FACTORS = ("uint8", "int8", "int16")
# Data types in which weights of fp32 products may lie in memory, by the names that users give them.
STORED = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8",
    "fp8": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
_SHORT = {"bfloat": "bf", "float": "f", "uint": "u", "int": "s"}
# Those whose names do not end with their bits.
_EIGHT_BITS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


@dataclass(frozen=True)
class Types:
    """Data types of `out = a * b` summed in `acc`, as TVM spells them (uint8 is not int8).

    Parameters
    ----------
    a, b : str
        Of the factors: data and weights of a convolution.
    acc : str
        Of the sums while they are in registers.
    out : str
        Of the result.
    """

    a: str = "float32"
    b: str = "float32"
    acc: str = "float32"
    out: str = "float32"

    @staticmethod
    def of(dtype: str) -> Types:
        """Return the types of a product in which all are the same."""
        return Types(dtype, dtype, dtype, dtype)

    @staticmethod
    def stored(dtype: str) -> Types:
        """Return the types of an fp32 product whose B lies in memory in another type."""
        return Types(b=dtype)

    @staticmethod
    def brain_by(dtype: str) -> Types:
        """Return the types of a bfloat16 product whose B lies in memory in a type of 8 bits."""
        return Types("bfloat16", dtype)

    @cached_property
    def product(self) -> tuple[str, str, str]:
        """What a micro-kernel computes: the factors and the sum."""
        return self.a, self.b, self.acc

    @property
    def is_uniform(self) -> bool:
        """Whether all are the same."""
        return self == Types.of(self.a)

    @property
    def is_integer_dot(self) -> bool:
        """Whether factors are integers of 8 bits, signed or not, or such in 16, and sums of 32."""
        eight = {self.a, self.b} <= {"int8", "uint8"}
        words = self.a == "int16" and self.b in ("int16", "int8")
        return (eight or words or self.is_masked) and {self.acc, self.out} == {"int32"}

    @property
    def is_masked(self) -> bool:
        """Whether B lies in panels as magnitudes and masks (`microkernels.masks`)."""
        return self.product == MASKED.product

    @property
    def is_bfloat_dot(self) -> bool:
        """Whether factors are bfloat16, B maybe in 8 bits in memory, sums and the result fp32."""
        return self == BFLOAT_DOT or (self.b in _EIGHT_BITS and self == Types.brain_by(self.b))

    @property
    def is_stored(self) -> bool:
        """Whether B becomes fp32 when it is loaded, and all else is fp32."""
        return self.b in STORED.values() and self == Types.stored(self.b)

    @property
    def is_bits(self) -> bool:
        """Whether factors are words of 32 signs, whose product counts those that differ."""
        return self.product == BITS.product

    @cached_property
    def a_bytes(self) -> int:
        """Size of an element of A in bytes."""
        return dtype_bits(self.a) // 8

    @cached_property
    def b_bytes(self) -> int:
        """Size of an element of B in bytes."""
        return dtype_bits(self.b) // 8

    @cached_property
    def acc_bytes(self) -> int:
        """Size of a sum in bytes."""
        return dtype_bits(self.acc) // 8

    @cached_property
    def out_bytes(self) -> int:
        """Size of an element of the result in bytes."""
        return dtype_bits(self.out) // 8

    @property
    def short(self) -> str:
        """What a micro-kernel's name says of them: `f32`, or `u8s8s32` and `bf16f32`."""
        kinds = dict.fromkeys(self.product) if self.a == self.b else self.product
        return "".join(map(_short, kinds))

    def __str__(self) -> str:
        if self.is_uniform:
            return self.a
        sums = "" if self.acc == self.out else f" in {self.acc}"
        return f"{self.a} by {self.b}{sums} to {self.out}"


FLOAT32 = Types()
BFLOAT_DOT = Types("bfloat16", "bfloat16", "float32", "float32")
# Unsigned bytes by signed ones, as x86 multiplies them.
BYTES = Types("uint8", "int8", "int32", "int32")
# Integers of 8 bits in 16.
WORDS = Types("int16", "int16", "int32", "int32")
# Unsigned bytes by signed ones that panels hold in 16 bits: a magnitude and a mask for each.
MASKED = Types("uint8", "int16", "int32", "int32")
# Words by bytes that are widened as they are loaded.
WORDS_BY_BYTES = Types("int16", "int8", "int32", "int32")
# Types of products that a user may allow in place of fp32, by the names of precisions.
PRECISIONS = {
    "fp32": (),
    "bf16": (BFLOAT_DOT,),
    "fp16": (Types.of("float16"),),
    "fast": (BFLOAT_DOT, Types.of("float16")),
}
# Words of 32 channels, a bit each: 0 stands for 1 and 1 for -1. A product counts the bits that
# differ, `popcount(a ^ b)`: of c channels the sum of products of signs is c - 2 * their number.
BITS = Types("uint32", "uint32", "int32", "int32")


def data_range(types: Types) -> tuple[int, int]:
    """Return the least and the largest value of A: in 16 bits lie values of uint8."""
    return value_range("uint8" if types.a == "int16" else types.a)


def weights_range(types: Types) -> tuple[int, int]:
    """Return the least and the largest value of B: in 16 bits lie values of int8."""
    return value_range("int8" if types.b == "int16" else types.b)


def value_range(dtype: str) -> tuple[int, int]:
    """Return the least and the largest value of a factor: in 16 bits lie values of 8, any sign."""
    if dtype == "int16":
        return -128, 255
    bits = dtype_bits(dtype)
    return (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _short(dtype: str) -> str:
    if dtype in _EIGHT_BITS:
        return _EIGHT_BITS[dtype]
    kind = dtype.rstrip("0123456789")
    return _SHORT.get(kind, kind) + dtype.removeprefix(kind)


def kernel_name(isa: str, mr: int, nr: int, types: Types, ks: int = 1) -> str:
    """Return the name of the micro-kernel with that shape."""
    return f"{isa}_{types.short}_{mr}x{nr}{f'x{ks}' if ks > 1 else ''}"
