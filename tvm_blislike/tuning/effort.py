"""What measuring a layer takes, by its workload alone: the same on all machines."""

from __future__ import annotations

from math import log2, prod

from tvm_blislike.model.workload import Workload

# Building takes most of it, seconds of one CPU of Zen 4 for eight kernels (mobilenet_v2, resnet50):
# without a window 0.7 to 1.8, depthwise 1.2 to 2.1, of a model's input 1.4 to 2.1. Of other windows
# Winograd has the more kernels the more outputs there are: 64 to 512 channels of 7x7 2.6, of 14x14
# 3.4, 28x28 4.4, 56x56 5.1, and by phases (stride 2) 1 to 1.5 more. A layer of 90 million
# multiply-accumulates then takes 0.2 s longer to measure than one of 2 million.
_INPUT, _DEPTHWISE, _STRIDED = 1.6, 1.6, 1.1
_PER_DOUBLING = 0.4
_FEW_CHANNELS = 8
_MACS_PER_BUILD = 1e9


def effort(workload: Workload) -> float:
    """Return what measuring a layer takes, relative to building kernels without a window."""
    return _building(workload) + workload.macs / _MACS_PER_BUILD


def _building(workload: Workload) -> float:
    data, weights, *_ = workload.operands.values()
    if len(weights) < 4 or prod(weights[2:]) == 1:
        return 1.0
    if workload.is_depthwise:
        return _DEPTHWISE
    if weights[1] < _FEW_CHANNELS:
        return _INPUT
    outputs = prod(workload.result_shape[2:])
    strided = _STRIDED if prod(data[2:]) > 2 * outputs else 0.0
    return max(_INPUT, _PER_DOUBLING * log2(outputs) + strided)
