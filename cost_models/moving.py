"""Cycles of data that is moved without computing: copied, packed, padded, transposed.

A vector takes what its load, its store or its shuffles take on their ports, whichever is longest,
and each cache line that comes or goes what the level beyond the first one delivers. Packing,
transposition and padding of all algorithms are made of these two; the figures that they were
checked against stand where they are used.
"""

from __future__ import annotations

import math

from tvm_blislike.cost_models.roofline import bytes_per_cycle
from tvm_blislike.hardware import Core

# What a pass takes beyond that: rows that start anywhere, addresses, ends of loops. Measured beside
# what these ports and levels need, in cycles per vector: Golden Cove 4.7 for 2.8 (copied into
# panels in L2), 6.65 for 4 (16x16 blocks transposed in registers); Zen 4 2.8 for 2 (panels in L1),
# 5 for 4.1.
LOSS = 1.4
# Share of the rate at which a level beyond L2 is read that reads and writes by turns get (Golden
# Cove: 30 GB/s of a copy; depthwise layers of 6 MB, whose lines are read before they are written).
BY_TURNS = 0.75


def vector_cycles(core: Core, shuffles: float = 0.0, stores: float = 1.0) -> float:
    """Return the cycles of a vector loaded, shuffled and stored, its lines in L1.

    Parameters
    ----------
    shuffles : float
        Instructions that move elements between lanes.
    stores : float
        Stores per load.
    """
    shuffling = shuffles / shuffles_per_cycle(core)
    return LOSS * max(1 / core.loads_per_cycle, stores / core.stores_per_cycle, shuffling)


def line_cycles(core: Core, level: int, lines: float = 1.0) -> float:
    """Return the cycles that lines take to come from a level or to go there, none in L1."""
    if level == 1:
        return 0.0
    rate = bytes_per_cycle(core, level) * (1.0 if level == 2 else BY_TURNS)
    return LOSS * lines * core.line_bytes / rate


def transposing_cycles(core: Core, dtype: str) -> float:
    """Return the cycles per vector of transposing a square block in registers, in L2 or nearer."""
    return vector_cycles(core, math.log2(core.lanes(dtype)))


def shuffles_per_cycle(core: Core) -> float:
    """Return the instructions that move elements between lanes started per cycle.

    One where they have a unit of their own, else as many as FMAs (`Isa.shifts_per_cycle`).
    """
    return 1.0 if core.isa.shifts_per_cycle else core.fma_per_cycle
