"""What measuring a layer takes, by its workload alone: the same on all machines."""

from __future__ import annotations

from math import prod

from tvm_blislike.model.workload import Workload

# Building takes most of it: eight kernels without a window 0.8 to 1.9 s of one CPU of Zen 4,
# depthwise ones 1.2 to 3.7, others with a window 2 to 8 (mobilenet_v2, resnet50). A layer of 90
# million multiply-accumulates then takes 0.2 s longer to measure than one of 2 million.
_WINDOW, _DEPTHWISE = 3.0, 2.0
_MACS_PER_BUILD = 1e9


def effort(workload: Workload) -> float:
    """Return what measuring a layer takes, relative to building kernels without a window."""
    _, weights, *_ = workload.operands.values()
    has_window = len(weights) == 4 and prod(weights[2:]) > 1
    window = _DEPTHWISE if workload.is_depthwise else _WINDOW
    return (window if has_window else 1.0) + workload.macs / _MACS_PER_BUILD
