"""How candidates are timed: by themselves, with the caches as a model leaves them.

Between two runs of a layer those of all other layers pass: L2 holds other things, and weights come
from memory. That decides between kernels: F(4, 3) and F(2, 3) for 96 channels of 14x14 take 0.19
and 0.20 ms with weights from L3, 0.31 and 0.20 ms from memory and in googlenet. Times by themselves
are within 4 % of those in resnet50 and 5 % in googlenet that way (Golden Cove; where only L2 was
emptied 10 % and 12 %). Models of some megabytes differ: the weights of mobilenet_v2, 14 MB, stay in
L3 from run to run. But a record counts for all models that have the layer.
"""

from __future__ import annotations

from tvm_blislike.errors import UsageError
from tvm_blislike.hardware import Core
from tvm_blislike.tuning.kernels import Timing

_CACHES = ("cold", "warm")
# Larger caches are shared by many cores: copying as much before each repeat would take longer than
# most layers.
_MOST_COPIED_BYTES = 8 << 20


def timing_for(core: Core, cache: str = "cold", here: bool = True) -> Timing:
    """Return how to time candidates.

    Parameters
    ----------
    core : Core
        Of the machine that measures.
    cache : str
        "cold", as in a model, or "warm": nothing is emptied.
    here : bool
        Whether this machine measures: a server of TVM's RPC cannot move weights alone out of
        caches too large to be emptied by a copy.

    Raises
    ------
    UsageError
        When `cache` is neither.
    """
    if cache not in _CACHES:
        raise UsageError(f"unknown cache mode {cache!r}", f"known: {', '.join(_CACHES)}")
    if cache == "warm":
        return Timing()
    sizes = [c.bytes for c in core.caches]
    copied = max((n for n in sizes if n <= _MOST_COPIED_BYTES), default=_MOST_COPIED_BYTES)
    return Timing(copied, here and max(sizes, default=0) > copied)
