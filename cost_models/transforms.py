"""Predicted time of moving an image from one layout to another."""

from __future__ import annotations

import math

from tvm_blislike.cost_models.moving import bytes_per_cycle, level_holding, transposing_cycles
from tvm_blislike.cost_models.roofline import clock_hz, fork_cycles
from tvm_blislike.hardware import Core, dtype_bits
from tvm_blislike.model.config import Config
from tvm_blislike.model.workload import Workload

# One more kernel for the virtual machine to call.
CALL_SECONDS = 0.7e-6
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
    cycles = transform_cycles(elements / threads, core, threads, dtype)
    cycles += fork_cycles(core) if threads > 1 else 0.0
    return CALL_SECONDS + cycles / clock_hz(core)


def transform_cycles(elements: float, core: Core, threads: int, dtype: str) -> float:
    """Return one thread's cycles of moving so many elements to another layout."""
    cycles = elements / core.lanes(dtype) * transposing_cycles(core, dtype)
    moved = 2 * elements * dtype_bits(dtype) / 8
    level = level_holding(core, int(moved), threads)
    return cycles + (0.0 if level in (1, 2) else moved / bytes_per_cycle(core, level))


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
