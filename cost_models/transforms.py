"""Predicted time of moving an image from one layout to another."""

from __future__ import annotations

import math

from tvm_blislike.cost_models.roofline import (
    FORK_JOIN_CYCLES,
    bytes_per_cycle,
    clock_hz,
    level_holding,
)
from tvm_blislike.hardware import Core, dtype_bits
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload

# Cycles per vector while source and result are in L2: 16x16 blocks are transposed in registers
# (Golden Cove: 0.13 ns per element at 3.2 GHz, 16 lanes).
_CYCLES_PER_VECTOR = 6.5
# One more kernel for the virtual machine to call.
_CALL_SECONDS = 0.7e-6


# A reshape is a view, but nothing is fused across it.
RESHAPE_SECONDS = 0.3e-6


def transform_seconds(elements: int, core: Core, threads: int, dtype: str = "float32") -> float:
    """Return the time of one layout transform.

    Parameters
    ----------
    elements : int
        Size of the image batch.
    core : Core
        The target.
    threads : int
        Threads that share the work.
    dtype : str
        Data type of the elements.

    Returns
    -------
    float
        Seconds: instructions, and the traffic of source and result beyond L2.
    """
    share = elements / threads
    cycles = share / core.lanes(dtype) * _CYCLES_PER_VECTOR
    moved = 2 * share * dtype_bits(dtype) / 8
    level = level_holding(core, int(moved), threads)
    if level not in (1, 2):
        cycles += moved / bytes_per_cycle(core, level)
    cycles += FORK_JOIN_CYCLES if threads > 1 else 0.0
    return _CALL_SECONDS + cycles / clock_hz(core)


def moving_seconds(
    workload: Workload, config: Config, usual: Config, core: Core, threads: int
) -> float:
    """Return the time of moving images between a configuration's layouts and usual ones.

    Parameters
    ----------
    config : Config
        What computes the layer.
    usual : Config
        What its neighbours expect.
    """
    if not workload.images:
        return 0.0
    data, result = map(math.prod, workload.images)
    images = (
        (config.data_layout, usual.data_layout, data),
        (config.out_layout, usual.out_layout, result),
    )
    moved = [elements for layout, wanted, elements in images if layout != wanted]
    return sum(transform_seconds(elements, core, threads, workload.types.a) for elements in moved)
