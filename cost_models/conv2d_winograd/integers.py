"""What Winograd convolutions of 8-bit integers multiply: words of 16 bits, summed modulo 2^32.

`schedules.conv2d_winograd.integers` has the arithmetic, and proves what is assumed here.
"""

from __future__ import annotations

from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.types import WORDS, Types, data_range, weights_range
from tvm_blislike.model.workload import Conv2dWorkload

# Taps along an axis, and points, whose transformed operands fit into 16 bits.
MOST_TAPS = 3
MOST_POINTS = 6
# Twos in the scale of an axis, and bits of a result.
_TWOS, _BITS = 1, 32


def transformed(types: Types) -> Types:
    """Return the types of the products of transformed operands."""
    return WORDS if types.is_integer_dot else types


def offered(core: Core, types: Types) -> tuple[Microkernel, ...]:
    """Return the micro-kernels for transformed operands.

    Those of words are worth a look where there are dot products of bytes, too: half as many
    products an instruction, but a quarter of all.
    """
    return kernels_for(core, transformed(types), superseded=types.is_integer_dot)


def shift_of(scale: int) -> int:
    """Return how often 2 divides a number."""
    return (scale & -scale).bit_length() - 1


def why_not_integers(workload: Conv2dWorkload) -> str:
    """Return why integers are not transformed exactly, "" if they are."""
    w = workload
    if max(w.kh, w.kw) > MOST_TAPS:
        return f"transforms of {w.kh}x{w.kw} kernels need more than 16 bits"
    if w.ci % 2:
        return f"{w.ci} channels are no pairs"
    values = max(map(abs, data_range(w.types))) * max(map(abs, weights_range(w.types)))
    if w.ci * w.kh * w.kw * values >= 1 << (_BITS - 1 - 2 * _TWOS):
        return f"sums of {w.ci * w.kh * w.kw} products need more than {_BITS - 2 * _TWOS} bits"
    return ""
