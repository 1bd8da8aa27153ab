"""Cycles of making bytes of a block of integer sums: the epilogue of quantized layers.

Its instructions are counted, as `schedules.lowering` writes them (`rounding`, `packs`); what a core
starts of each kind in a cycle is a fact of the core. Sums begin with the bias, so a vector of them
is converted, scaled and converted back; packs that saturate make one register of bytes of four of
sums, with the zero point added between; a permutation puts each piece of a row in order, in front
of its store. Scales, biases and constants that the block leaves no register for are loaded again.

Zen 4, 64 channels of 56x56 pixels to 256, cycles beyond the products of a block, counted (with the
loss of `issue.FMA_EFFICIENCY`) and measured: 3x64 33 and 32, 4x64 43 and 40, 4x32 24 and 23, 8x32
47 and 45, 14x32 88 and 86, 6x64 72 and 72, 4x96 80 and 73, 7x48 67 and 70, 16x16 55 and 58. So
none of it runs beside products, whose units it shares, and it hides where a call begins and ends.
"""

from __future__ import annotations

from tvm_blislike.cost_models.moving import shuffles_per_cycle
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel

# Registers of sums that a register of bytes takes.
_JOINED = 4
# Instructions of a vector of sums: two conversions and a product; of `_JOINED` of them three packs
# and two additions of the zero point.
INSTRUCTIONS = 3 + (3 + 2) / _JOINED
# Registers of the zero point and of an order.
_CONSTANTS = 2


def is_requantized(kernel: Microkernel) -> bool:
    """Whether results of a micro-kernel are made bytes by packs: sums of integers, in vectors."""
    integers = kernel.types.acc == "int32" and not kernel.types.is_bits
    return integers and kernel.tiles is None and bool(kernel.isa.packs)


def requantizing_cycles(core: Core, kernel: Microkernel, rows: int, vectors: int) -> float:
    """Return the cycles of making bytes of a block of sums, and of storing them.

    Parameters
    ----------
    rows, vectors : int
        Of the block, cut or whole.
    """
    sums = rows * vectors
    arithmetic = sums * INSTRUCTIONS / (core.vectors_per_cycle or core.fma_per_cycle)
    permutations = rows * pieces(vectors) / shuffles_per_cycle(core)
    return arithmetic + permutations + _reloads(core, sums, vectors) / core.loads_per_cycle


def pieces(vectors: int) -> int:
    """Return how many stores a row of bytes takes: whole registers, halves, quarters."""
    whole, rest = divmod(vectors, _JOINED)
    return whole + rest.bit_count()


def _reloads(core: Core, sums: int, vectors: int) -> int:
    """Return the scales, biases and constants that find no register beside sums, A and B."""
    free = core.vector_registers - sums - vectors - 1
    return max(0, 2 * vectors + _CONSTANTS - max(0, free))
