"""Operands of a workload as a configuration reads them, and its result, with the reference."""

from __future__ import annotations

import functools

import numpy as np

from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.workload import Workload
from tvm_blislike.operators import operator_of


@functools.lru_cache(maxsize=1)
def operands(workload: Workload) -> tuple[np.ndarray, ...]:
    """Return seeded operands (`Operator.random`), kept until `operands.cache_clear()`."""
    return operator_of(workload).random(workload)


def data_shape(workload: Workload, config: Config) -> tuple[int, ...]:
    """Return the shape of the first operand as the configuration reads it."""
    if workload.images:
        return Layout(config.data_layout).shape(*workload.images[0])
    return next(iter(workload.operands.values()))


def result_shape(workload: Workload, config: Config) -> tuple[int, ...]:
    """Return the shape of the result as the configuration writes it."""
    if workload.images:
        return Layout(config.out_layout).shape(*workload.images[1])
    return workload.result_shape


def result(workload: Workload, *values: np.ndarray) -> np.ndarray:
    """Return what a kernel should compute of the operands (`Operator.reference`)."""
    return operator_of(workload).reference(workload, *values)


def in_layout(workload: Workload, layout: str, data: np.ndarray) -> np.ndarray:
    """Return the data operand as configurations with this `data_layout` read it."""
    return np.ascontiguousarray(Layout(layout).packed(data)) if workload.images else data


def from_layout(workload: Workload, config: Config, out: np.ndarray) -> np.ndarray:
    """Return a result as `result` gives it."""
    return Layout(config.out_layout).unpacked(out) if workload.images else out
