"""What the learned model knows of a candidate: quantities of the analytical models, as numbers.

No loops and no code are looked at. Everything is a field of the configuration, a size of the
workload, or a part of the analytical estimate; for one core the rest (caches, vector width, clock)
is constant. Times and sizes are logarithms, parts of the estimate are shares of it. What is 0 may
be left out: names that a candidate lacks count as 0.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_blislike.cost_models.roofline import clock_hz, kernel_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.config import Config
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import Workload

# To be raised when a name below gets another meaning: models of other numbers are refused.
FEATURES = 2


@dataclass(frozen=True)
class Sample:
    """A configuration of a workload with its analytical estimate.

    Parameters
    ----------
    workload : Workload
        What is computed.
    config : Config
        How.
    estimate : Estimate
        What the analytical model says.
    core : Core
        On what.
    threads : int
        By how many threads.
    in_model : bool
        Between the other layers of a model, rather than by itself.
    """

    workload: Workload
    config: Config
    estimate: Estimate
    core: Core
    threads: int
    in_model: bool

    @property
    def seconds(self) -> float:
        """Analytical time of the kernel, without what the layouts of its neighbours cost."""
        return kernel_seconds(self.estimate, self.core)


def matrix(candidates: Sequence[Sample], names: Sequence[str]) -> np.ndarray:
    """Return the features of candidates, [candidate, name], float32."""
    rows = [features(candidate) for candidate in candidates]
    values = [row.get(name, 0.0) for row in rows for name in names]
    return np.array(values, np.float32).reshape(len(rows), len(names))


def features(candidate: Sample) -> dict[str, float]:
    """Return the features of a candidate by name."""
    moved = _bytes(candidate.workload)
    cycles = candidate.seconds * clock_hz(candidate.core)
    return {
        "in a model": float(candidate.in_model),
        "threads": float(candidate.threads),
        "log2 cycles": _log2(cycles),
        **_parts(candidate.estimate),
        **_shape(candidate.workload),
        **{f"log2 bytes of {name}": _log2(size) for name, size in moved.items()},
        **{f"log2 bytes of {name} per cycle": _log2(n / cycles) for name, n in moved.items()},
        "log2 macs per byte": _log2(candidate.workload.macs / max(1, sum(moved.values()))),
        **_blocks(candidate.config, candidate.core.lanes()),
    }


def _parts(estimate: Estimate) -> dict[str, float]:
    """Return the parts of the time, and the bytes of the operands that caches should hold."""
    total = sum(estimate.cycles.values()) or 1.0
    sizes = [size for _, _, size, _ in estimate.footprint]
    return {
        "peak fraction": estimate.peak_fraction,
        **{f"part {name}": value / total for name, value in estimate.cycles.items()},
        **{f"log2 bytes of block {place}": _log2(size) for place, size in enumerate(sizes)},
    }


def _bytes(workload: Workload) -> dict[str, int]:
    """Return the sizes of the operands and of the result."""
    data, *others, result = workload.bytes_moved
    return {"input": data, "weights": sum(others), "output": result}


def _shape(workload: Workload) -> dict[str, float]:
    """Return the extents of the result and of a sum; a product is a convolution of one tap."""
    logarithms = {f"log2 {name}": _log2(size) for name, size in workload.extents.items()}
    return {**logarithms, **{name: float(size) for name, size in workload.taps.items()}}


def _blocks(config: Config, lanes: int) -> dict[str, float]:
    """Return the blocks of a configuration, and its names as 1 each."""
    fields = dataclasses.asdict(config)
    named = {n: re.sub(r"\d+c$", "c", v) for n, v in fields.items() if isinstance(v, str)}
    return {
        # nr counts in vectors.
        **{n: float(value) for n, value in fields.items() if n not in named and n != "nr"},
        "vectors": config.nr / lanes,
        "accumulators": config.mr * config.nr / lanes,
        **{f"{name}={value}": 1.0 for name, value in named.items() if value},
    }


def _log2(value: float) -> float:
    return math.log2(value) if value > 0 else 0.0
