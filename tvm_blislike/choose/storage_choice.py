"""Which weights are stored in fewer bytes: those of layers that memory bounds."""

from __future__ import annotations

from dataclasses import replace

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Workload

# Share of its time in fp32 that a layer may take at most with weights in fewer bytes: predictions
# are no better than that, and rounding should gain something.
WORTH = 0.95


def why_whole(strategy: Strategy, layer: Workload, dtype: str) -> str:
    """Return why a layer keeps its weights in fp32, "" where storing them in `dtype` pays.

    Parameters
    ----------
    strategy : Strategy
        Predicts both.
    layer : Workload
        In fp32.
    dtype : str
        A storage type, see `model.types.STORED`.
    """
    stored = strategy.choose(replace(layer, types=Types.stored(dtype)))
    if stored.config is None:
        return stored.reason
    whole = strategy.choose(layer)
    if whole.config is None or stored.seconds < WORTH * whole.seconds:
        return ""
    ways = f"{1e3 * stored.seconds:.3g} ms in {dtype}, {1e3 * whole.seconds:.3g} ms in float32"
    return f"memory does not bound it: {ways}"
