"""Predicted time of moving an image from one layout to another."""

from __future__ import annotations

from tvm_blislike.cost_models.roofline import (
    FORK_JOIN_CYCLES,
    bytes_per_cycle,
    clock_hz,
    level_holding,
)
from tvm_blislike.hardware import Core

# Cycles per vector while source and result are in L2: 16x16 blocks are transposed in registers
# (Golden Cove: 0.13 ns per element at 3.2 GHz, 16 lanes).
_CYCLES_PER_VECTOR = 6.5
# One more kernel for the virtual machine to call.
_CALL_SECONDS = 0.7e-6
_ITEM_BYTES = 4


# A reshape is a view, but nothing is fused across it.
RESHAPE_SECONDS = 0.3e-6


def transform_seconds(elements: int, core: Core, threads: int) -> float:
    """Return the time of one layout transform.

    Parameters
    ----------
    elements : int
        Size of the image batch.
    core : Core
        The target.
    threads : int
        Threads that share the work.

    Returns
    -------
    float
        Seconds: instructions, and the traffic of source and result beyond L2.
    """
    share = elements / threads
    cycles = share / core.lanes() * _CYCLES_PER_VECTOR
    moved = 2 * share * _ITEM_BYTES
    level = level_holding(core, int(moved), threads)
    if level not in (1, 2):
        cycles += moved / bytes_per_cycle(core, level)
    cycles += FORK_JOIN_CYCLES if threads > 1 else 0.0
    return _CALL_SECONDS + cycles / clock_hz(core)
