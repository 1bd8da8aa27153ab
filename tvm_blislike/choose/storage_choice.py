"""Which weights are stored in fewer bytes: those of layers that memory bounds."""

from __future__ import annotations

from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.workload import Workload

# Share of its time in fp32 that a layer may take at most with weights in fewer bytes: predictions
# are no better than that, and rounding should gain something.
WORTH = 0.95


def why_whole(strategy: Strategy, layer: Workload, dtype: str) -> str:
    """Return why a layer keeps its weights as they are, "" where storing them in `dtype` pays.

    Parameters
    ----------
    strategy : Strategy
        Predicts both.
    layer : Workload
        In fp32, or in integers of 16 bits.
    dtype : str
        A storage type, see `model.types.STORED`.
    """
    stored = strategy.choose(replace(layer, types=replace(layer.types, b=dtype)))
    if stored.config is None:
        return stored.reason
    whole = strategy.choose(layer)
    if whole.config is None or stored.seconds < WORTH * whole.seconds:
        return ""
    each = ((dtype, stored), (layer.types.b, whole))
    ways = ", ".join(f"{1e3 * choice.seconds:.3g} ms in {name}" for name, choice in each)
    return f"memory does not bound it: {ways}"
