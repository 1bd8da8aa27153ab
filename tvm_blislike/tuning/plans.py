"""How candidates are timed: by themselves, with the caches as a model leaves them.

Between two runs of a layer those of all other layers pass: L2 holds other things, and weights come
from memory unless those of the whole model stay in a shared cache. That decides between kernels:
F(4, 3) and F(2, 3) for 96 channels of 14x14 take 0.19 and 0.20 ms with weights from L3, 0.31 and
0.20 ms from memory and in googlenet. Of mobilenet_v2, resnet50, squeezenet1_1 and googlenet on
Golden Cove, times by themselves are within 5 % of those in the model with this state of the caches
(where only L2 was emptied, 12 %).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.tuning import operands
from tvm_blislike.tuning.kernels import Plan
from tvm_blislike.tuning.tasks import Task

CACHES = ("cold", "warm")
# Larger caches are shared by many cores: copying as much before each repeat would take longer than
# most layers.
_MOST_COPIED_BYTES = 8 << 20
# What each core can count on of a shared cache, which other programs and guests use too: of 480 MiB
# that two cores see here, the 14 MB of mobilenet_v2 stay from run to run, googlenet's 28 do not.
_KEPT_PER_CORE = 8 << 20


def plan_for(core: Core, cache: str = "cold", weights: float = math.inf) -> Plan:
    """Return how to time candidates.

    Parameters
    ----------
    core : Core
        Of the machine that measures.
    cache : str
        "cold", as in a model, or "warm": nothing is emptied.
    weights : float
        Bytes of all weights of the model.

    Raises
    ------
    UsageError
        When `cache` is neither.
    """
    if cache not in CACHES:
        raise UsageError(f"unknown cache mode {cache!r}", f"known: {', '.join(CACHES)}")
    if cache == "warm":
        return Plan()
    private = [c.bytes for c in core.caches if c.bytes <= _MOST_COPIED_BYTES]
    return Plan(max(private, default=_MOST_COPIED_BYTES), weights > _kept_bytes(core))


def weights_of(tasks: Sequence[Task]) -> int:
    """Return the bytes of the weights of a model's layers, before packing."""
    return sum(
        task.count * task.workload.item_bytes * math.prod(operands.operand_shapes(task.workload)[1])
        for task in tasks
        if getattr(task.workload, "constant_b", True)
    )


def _kept_bytes(core: Core) -> float:
    """Bytes of weights that stay in caches while a model runs."""
    shared = [c.bytes for c in core.caches if c.bytes > _MOST_COPIED_BYTES]
    return min(max(shared, default=0), _KEPT_PER_CORE * core.cores)
