"""Configurations of the depthwise convolution that are worth an estimate: tiles in registers."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_depthwise import estimate as depthwise
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_depthwise.geometry import (
    CODE_BYTES,
    FMA_BYTES,
    DepthwiseGeometry,
)
from tvm_blislike.cost_models.data_types import missing, most_steps
from tvm_blislike.hardware import Core
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.workload import Conv2dWorkload, Workload

# Configurations to offer, best first.
OFFERED = 8


def applies(workload: Workload, core: Core) -> str:
    """Return "" for depthwise convolutions, else the reason why not."""
    if not workload.images:
        return f"{workload.kind} is not a convolution"
    if not workload.is_depthwise:
        return "not depthwise: more than one input channel per group"
    if lacking := missing(workload, core):
        return lacking
    kernel = f"{workload.kh}x{workload.kw}"
    if workload.kh * workload.kw > most_steps(workload.types):
        return f"kernel {kernel}: too long a sum in {workload.types.acc}"
    too_large = workload.kh * workload.kw * FMA_BYTES > CODE_BYTES
    return f"kernel {kernel} too large to unroll" if too_large else ""


def configs(
    workload: Conv2dWorkload,
    core: Core,
    threads: int,
    config_type: type[DepthwiseConfig] = DepthwiseConfig,
) -> list[DepthwiseConfig]:
    """Return the tiles of the best predicted time, best first."""
    found = list(_candidates(config_type, workload, core))
    small = [c for c in found if DepthwiseGeometry(workload, c).code_bytes <= CODE_BYTES]
    # One pixel of a large kernel may take more with its edges: then one pixel it is.
    found = small or found[:1]
    found.sort(key=lambda c: depthwise.estimate(workload, c, core, threads).seconds)
    return found[:OFFERED]


def width(channels: int, lanes: int) -> int:
    """Return the lanes of a vector; of fewer channels the widest power of two that they fill."""
    return lanes if channels >= lanes else 1 << (channels.bit_length() - 1)


def relaid(
    workload: Conv2dWorkload, config: DepthwiseConfig, core: Core
) -> Iterator[DepthwiseConfig]:
    """Yield a configuration for NHWC images where both are blocked."""
    if Layout(config.data_layout).block and Layout(config.out_layout).block:
        yield config.with_fields(data_layout="NHWC", out_layout="NHWC", loop_order="rows")


def _candidates(
    config_type: type[DepthwiseConfig], workload: Conv2dWorkload, core: Core
) -> Iterator[DepthwiseConfig]:
    """Tiles that fit into the registers, in the layouts that the channel counts allow."""
    lanes = core.lanes(workload.types.acc)
    data_layout, out_layout = (Layout.preferred(c, 1, lanes) for c in (workload.ci, workload.co))
    orders = ("channels", "rows") if out_layout.block else ("rows",)
    pixels = depthwise.accumulators(workload, core)
    for tile_h in range(1, min(4, workload.oh) + 1):
        for tile_w in range(1, min(pixels // tile_h, workload.ow, depthwise.widest(core)) + 1):
            for order in orders:
                yield config_type(
                    mr=tile_h * tile_w,
                    nr=width(workload.co, lanes),
                    loop_order=order,
                    data_layout=data_layout,
                    out_layout=out_layout,
                    tile_h=tile_h,
                    tile_w=tile_w,
                )
