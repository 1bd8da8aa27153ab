"""Convolution of groups of few channels: the lanes of a vector belong to several groups.

    out[n, g, o, y, x] =
        sum_{i, ry, rx} in[n, g, i, y * stride + ry, x * stride + rx] * w[g, o, i, ry, rx]

With 4 or 8 channels per group, a micro-kernel that computes one group at a time leaves most of a
vector's lanes empty. Here a vector holds the outputs of nr / co_group groups, and step i of the
sum multiplies each lane by channel i of its own group: a permutation of the pixel's vector, which
serves all outputs that read this pixel. So the sum is that of a depthwise convolution, ci_group
times, and everything else is as in `conv2d_depthwise`: tiles, borders, orders.

A block-diagonal matrix of the same groups would do without the permutation, and multiply by zeros
nr / co_group - 1 times out of nr / co_group.
"""

from __future__ import annotations

from tvm_blislike.config import Config
from tvm_blislike.cost_models.data_types import missing, most_steps
from tvm_blislike.hardware import Core
from tvm_blislike.schedules.conv2d_depthwise import Conv2dDepthwise
from tvm_blislike.schedules.depthwise_geometry import CODE_BYTES, FMA_BYTES
from tvm_blislike.schedules.depthwise_space import space
from tvm_blislike.space import Space
from tvm_blislike.workload import Conv2dWorkload, Workload


class Conv2dGrouped(Conv2dDepthwise):
    """Grouped convolution in registers (`Implementation`, see `tvm_blislike.registry`)."""

    name = "conv2d_grouped"

    def applies(self, workload: Workload, core: Core) -> str:
        """Return "" where whole groups fill vectors of inputs and outputs, else why not."""
        if not isinstance(workload, Conv2dWorkload):
            return f"{workload.kind} is not a convolution"
        if workload.groups == 1 or workload.is_depthwise:
            return "not several groups of several channels"
        if lacking := missing(workload, core):
            return lacking
        lanes = core.lanes(workload.dtype)
        ci_group, co_group = (c // workload.groups for c in (workload.ci, workload.co))
        if co_group >= lanes or lanes % co_group:
            return f"{co_group} output channels per group: no part of a vector of {lanes}"
        if lanes % (lanes // co_group * ci_group):
            return f"{ci_group} input channels per group: the lanes' inputs are not one vector"
        if workload.ci % lanes or workload.co % lanes:
            return f"channels that are no multiple of {lanes}"
        products = workload.kh * workload.kw * ci_group
        if products > most_steps(workload.dtype):
            return f"{products} products per output are too long a sum in {workload.dtype}"
        too_large = products * FMA_BYTES > CODE_BYTES
        return f"{products} products per output are too many to unroll" if too_large else ""

    def space(self, workload: Conv2dWorkload, core: Core, threads: int) -> Space:
        """See `depthwise_space`."""
        return space(self.name, workload, core, relaid=False)

    def relaid(self, workload: Workload, config: Config, core: Core) -> tuple[Config, ...]:
        """Return none: the lanes of a vector belong to several groups, in blocks only."""
        return ()


IMPLEMENTATION = Conv2dGrouped()
