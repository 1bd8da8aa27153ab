"""Where a vector of outputs may belong to several groups of few channels."""

from __future__ import annotations

from tvm_blislike.cost_models.conv2d_depthwise.geometry import CODE_BYTES, FMA_BYTES
from tvm_blislike.cost_models.data_types import missing, most_steps
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Workload


def applies(workload: Workload, core: Core) -> str:
    """Return "" where whole groups fill vectors of inputs and outputs, else why not."""
    if not workload.images:
        return f"{workload.kind} is not a convolution"
    if workload.groups == 1 or workload.is_depthwise:
        return "not several groups of several channels"
    if lacking := missing(workload, core):
        return lacking
    lanes = core.lanes(workload.types.acc)
    ci_group, co_group = (c // workload.groups for c in (workload.ci, workload.co))
    if co_group >= lanes or lanes % co_group:
        return f"{co_group} output channels per group: no part of a vector of {lanes}"
    if lanes % (lanes // co_group * ci_group):
        return f"{ci_group} input channels per group: the lanes' inputs are not one vector"
    if workload.ci % lanes or workload.co % lanes:
        return f"channels that are no multiple of {lanes}"
    products = workload.kh * workload.kw * ci_group
    if products > most_steps(workload.types):
        return f"{products} products per output are too long a sum in {workload.types.acc}"
    too_large = products * FMA_BYTES > CODE_BYTES
    return f"{products} products per output are too many to unroll" if too_large else ""
