"""Which weights are stored in fewer bytes: those of layers that memory bounds."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.transforms import transform_seconds
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Workload

# Share of its time in fp32 that a layer may take at most with weights in fewer bytes: predictions
# are no better than that, and rounding should gain something.
WORTH = 0.95


def why_whole(strategy: Strategy, layer: Workload, types: Types) -> str:
    """Return why a layer keeps its weights as they are, "" where storing them in fewer bytes pays.

    Parameters
    ----------
    strategy : Strategy
        Predicts both.
    layer : Workload
        In fp32, or in integers whose weights have 16 bits.
    types : Types
        The types of its product with weights in fewer bytes; data of another type than the layer's
        are converted.
    """
    stored = strategy.choose(replace(layer, types=types))
    if stored.config is None:
        return stored.reason
    whole = strategy.choose(layer)
    moving = 0.0
    if types.a != layer.types.a:
        data = math.prod(next(iter(layer.operands.values())))
        moving = transform_seconds(data, strategy.core, strategy.threads, types.a)
    if whole.config is None or stored.seconds + moving < WORTH * whole.seconds:
        return ""
    each = ((types.b, stored), (layer.types.b, whole))
    ways = ", ".join(f"{1e3 * choice.seconds:.3g} ms in {name}" for name, choice in each)
    return f"memory does not bound it: {ways}"
