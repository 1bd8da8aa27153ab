"""Between real numbers and integers of 8 bits: what QuantizeLinear and DequantizeLinear say.

In memory all activations have the one type of the core's products (`quantized_types`): values of
the other 8-bit type are stored shifted by 128, and so is their zero point. Where that type has 16
bits, it holds the values of uint8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_blislike.passes.quantized.real import EIGHT_BITS, Known, Real
from tvm_blislike.tvm_seams import constant_array, dtype_name, is_constant, static_shape

QUANTIZE, DEQUANTIZE = "relax.quantize", "relax.dequantize"

_HALF = 128


def values_in(memory: str) -> str:
    """Return the 8-bit type whose values lie in a type of activations in memory."""
    return "uint8" if memory == "int16" else memory


def shift_between(dtype: str, memory: str) -> int:
    """Return what is added to values of an 8-bit type to store them in memory."""
    held = values_in(memory)
    return (_HALF if held == "uint8" else -_HALF) if dtype != held else 0


@dataclass(frozen=True)
class Steps:
    """The steps of a quantized tensor: `real = scale * (stored - zero)`.

    Parameters
    ----------
    scale : numpy.float32
        Size of a step.
    zero : int
        What stands for 0, in memory.
    memory : str
        Type of activations there.
    """

    scale: np.float32
    zero: int
    memory: str

    def at(self, real: float) -> int:
        """Return the step of a number, within the range of eight bits."""
        limits = np.iinfo(values_in(self.memory))
        if np.isinf(real):
            return limits.min if real < 0 else limits.max
        step = np.rint(np.float32(real) / self.scale) + self.zero
        return int(np.clip(step, limits.min, limits.max))

    def of(self, reals: np.ndarray) -> np.ndarray:
        """Return the steps of numbers, in memory."""
        limits = np.iinfo(values_in(self.memory))
        with np.errstate(over="ignore"):
            whole = np.rint(reals.astype(np.float32) / self.scale).astype(np.float64) + self.zero
        return np.clip(whole, limits.min, limits.max).astype(self.memory)

    def floats(self, stored: np.ndarray) -> np.ndarray:
        """Return the numbers that steps stand for, float32."""
        return (stored.astype(np.int64) - self.zero).astype(np.float32) * self.scale

    def are_of(self, real: Real) -> bool:
        """Whether a real number is stored in these steps already."""
        term = real.steps
        if term is None or dtype_name(term.x) != self.memory:
            return False
        return np.float32(term.scale) == self.scale and int(term.zero) == self.zero


@dataclass(frozen=True)
class Rounded:
    """Integers of 8 bits before they are stored: `clip(var + zero, low, high)`.

    Parameters
    ----------
    var : relax.Var
        Whole numbers as float32.
    zero : int
        Their zero point, in memory.
    low, high : int
        Their bounds there.
    """

    var: relax.Var
    zero: int
    low: int
    high: int


@dataclass(frozen=True)
class Stored:
    """A tensor of 8-bit integers of the model, as it lies in memory.

    Parameters
    ----------
    var : relax.Var
        In memory.
    dtype : str
        Of the model's integers.
    rounded : Rounded, optional
        Where they were computed from floats.
    """

    var: relax.Var
    dtype: str
    rounded: Rounded | None = None

    @property
    def shift(self) -> int:
        """What was added to the model's integers."""
        return shift_between(self.dtype, dtype_name(self.var))


def steps_of(call: relax.Call, memory: str) -> Steps | None:
    """Return the steps of a quantize or dequantize, None unless they are one known 8-bit scale.

    Parameters
    ----------
    call : relax.Call
        `relax.quantize` or `relax.dequantize`.
    memory : str
        Type of activations in memory.
    """
    known = parameters(call)
    dtype = _integers(call)
    if known is None or dtype not in EIGHT_BITS:
        return None
    scale, zero = known
    if scale.size != 1 or zero.size != 1 or not _usable(scale):
        return None
    return Steps(np.float32(scale.item()), int(zero.item()) + shift_between(dtype, memory), memory)


def dequantized_constant(call: relax.Call, data: relax.Expr) -> Known | None:
    """Return what a dequantize makes of a constant."""
    known = parameters(call)
    if known is None or not is_constant(data) or np.dtype(dtype_name(data)).kind not in "iu":
        return None
    return Known(constant_array(data), *known)


def parameters(call: relax.Call) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scale (float32) and zero point (int64) with the axes of the data, if known."""
    shape = static_shape(call)
    floats = call if _is_dequantize(call) else call.args[0]
    if shape is None or not all(map(is_constant, call.args[1:])) or dtype_name(floats) != "float32":
        return None
    scale, zero = (constant_array(arg) for arg in call.args[1:])
    if scale.dtype != np.float32 or zero.dtype.kind not in "iu":
        return None
    along = [1] * len(shape)
    if len(shape):
        along[int(call.attrs.axis)] = -1
    if any(a.ndim > 1 and a.size > 1 for a in (scale, zero)):
        return None
    return tuple(
        a.reshape([1] * len(shape) if a.size == 1 else along) for a in (scale, zero.astype("int64"))
    )


def _integers(call: relax.Call) -> str:
    return dtype_name(call.args[0] if _is_dequantize(call) else call)


def _is_dequantize(call: relax.Call) -> bool:
    return call.op.name == DEQUANTIZE


def _usable(scale: np.ndarray) -> bool:
    """Whether a scale is a positive number: then to quantize keeps the order of numbers."""
    return bool(np.all(scale > 0) and np.all(np.isfinite(scale)))
