"""Configurations of the depthwise convolution that are worth an estimate: tiles in registers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_depthwise import estimate as depthwise
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_depthwise.geometry import (
    CODE_BYTES,
    FMA_BYTES,
    DepthwiseGeometry,
)
from tvm_blislike.cost_models.data_types import missing, most_steps, vector_dot
from tvm_blislike.hardware import Core
from tvm_blislike.model.layouts import NHWC, Layout
from tvm_blislike.model.workload import Conv2dWorkload, Workload

# Configurations to offer, best first.
OFFERED = 8


def applies(workload: Workload, core: Core) -> str:
    """Return "" for depthwise convolutions, else the reason why not."""
    if not workload.images:
        return f"{workload.kind} is not a convolution"
    if not workload.is_depthwise:
        return "not depthwise: more than one input channel per group"
    # Bytes are widened where they are multiplied, or rows of the kernel are the groups of k.
    if lacking := missing(workload, core, grouped=workload.types.is_integer_dot):
        return lacking
    if workload.types.is_integer_dot and workload.co != workload.ci:
        return "several results of a channel of bytes"
    taps = workload.kd * workload.kh * workload.kw
    kernel = "x".join(map(str, (*([workload.kd] * (workload.kd > 1)), workload.kh, workload.kw)))
    if taps > most_steps(workload.types):
        return f"kernel {kernel}: too long a sum in {workload.types.acc}"
    too_large = taps * FMA_BYTES > CODE_BYTES
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


def widths(workload: Conv2dWorkload, core: Core) -> tuple[int, ...]:
    """Return the lanes that a vector of channels may have.

    Of bytes that are widened where narrowing joins vectors also two registers of sums: what is
    loaded and widened serves both, and results are joined.
    """
    lanes = core.lanes(workload.types.acc)
    plain = width(workload.co, lanes)
    if not (workload.types.is_integer_dot and core.isa.narrows_pairs and workload.co >= 2 * lanes):
        return (plain,)
    return plain, 2 * lanes


def row_groups(workload: Conv2dWorkload, core: Core) -> tuple[int, ...]:
    """Return the rows of the kernel that a multiply-add can take: of bytes in vectors several."""
    kernel = vector_dot(core, workload.types) if workload.types.is_integer_dot else None
    return (1, kernel.ks) if kernel and workload.co >= kernel.lanes else (1,)


def layouts(workload: Conv2dWorkload, lanes: int) -> tuple[Layout, Layout]:
    """Return the usual layouts of the images: bytes lie as products of groups of k want them."""
    if workload.types.is_integer_dot:
        return NHWC, NHWC
    return Layout.preferred(workload.ci, 1, lanes), Layout.preferred(workload.co, 1, lanes)


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
    data_layout, out_layout = layouts(workload, lanes)
    orders = ("channels", "rows") if out_layout.block else ("rows",)
    for ks in row_groups(workload, core):
        most = depthwise.accumulators(workload, core, ks)
        # Several groups of each of several rows are more columns than registers.
        most_rows = 1 if ks > 1 and workload.kh > ks else 4
        heights = range(1, min(most_rows, workload.oh) + 1)
        for nr, tile_h in itertools.product(widths(workload, core), heights):
            pixels = most // math.ceil(nr / lanes)
            for tile_w in range(1, min(pixels // tile_h, workload.ow, depthwise.widest(core)) + 1):
                for order in orders:
                    yield config_type(
                        mr=tile_h * tile_w,
                        nr=nr,
                        ks=ks,
                        loop_order=order,
                        data_layout=data_layout,
                        out_layout=out_layout,
                        tile_h=tile_h,
                        tile_w=tile_w,
                    )
