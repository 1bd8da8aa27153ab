"""Configurations of the direct convolution that are worth an estimate.

Blocks that a micro-kernel computes without spills, and slabs of their rows in both loop orders.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.data_types import missing
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.workload import Conv2dWorkload

# First layers of fewer channels than this read NCHW directly, k running along a kernel row.
MIN_BLOCKED_CHANNELS = 8
# LLVM IR instructions up to which LLVM 22 unrolls a loop (a kernel row) of its own accord.
_MOST_UNROLLED = 480
# NEON blocks whose elements of A are loaded as vectors, and that LLVM 22 spills or moves all the
# same once it has unrolled a kernel row around the micro-kernel.
_SPILLED_IN_NESTS = {
    *("neon_f32_8x8", "neon_f32_13x4", "neon_f32_14x4"),
    *("neon_f16_9x16", "neon_f16_6x24", "neon_f16_4x32", "neon_f16_5x32"),
}
# The same on cores that issue in order, where LLVM loads early: registers of blocks and operands
# (9x8 of 29: 16 to 55 stack accesses for 216 multiply-adds).
_MOST_REGISTERS_IN_ORDER = 28
# Block rows of a slab that are tried where they divide the image.
_SLAB_ROWS = (1, 2, 4, 7, 8, 14, 16, 28)


def layouts(workload: Conv2dWorkload, lanes: int) -> tuple[str, str]:
    """Return the layouts of the input and output images.

    Both are blocked or both NHWC when there are groups: a block may not straddle two groups.
    """
    w = workload
    out = Layout.preferred(w.co, w.groups, lanes)
    # A single channel has no other channel to run along, whatever the kernel.
    if w.groups == 1 and w.ci < MIN_BLOCKED_CHANNELS and (w.kw > 1 or w.ci == 1):
        return "NCHW", out
    data = Layout.preferred(w.ci, w.groups, lanes)
    if w.groups > 1 and "NHWC" in (data, out):
        return "NHWC", "NHWC"
    return data, out


def applies(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for what micro-kernels can compute, else the reason why not."""
    if lacking := missing(workload, core):
        return lacking
    if workload.is_depthwise:
        return "one input channel per group: a micro-kernel would use one lane"
    if next(configs(workload, core, threads=1), None) is None:
        return "no micro-kernel fits the channels of a group"
    return ""


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[DirectConfig]:
    """Yield the configurations worth estimating."""
    data_layout, out_layout = layouts(workload, core.lanes(workload.types.acc))
    for kernel in kernels_for(core, workload.types):
        if not suits_channels(kernel, workload, out_layout):
            continue
        if data_layout != "NCHW" and not _keeps_registers(kernel, core):
            continue
        for tile_h, tile_w in _tiles(kernel.mr, workload):
            if data_layout == "NCHW" and _spills(kernel, workload, tile_h, tile_w, core):
                continue
            for order, oh_block in _slabs(workload, tile_h, threads):
                yield DirectConfig(
                    mr=kernel.mr,
                    nr=kernel.nr,
                    unroll=_unroll(data_layout),
                    loop_order=order,
                    data_layout=data_layout,
                    out_layout=out_layout,
                    tile_h=tile_h,
                    tile_w=tile_w,
                    oh_block=oh_block,
                    prefetch=1,
                )


def relaid(workload: Conv2dWorkload, config: DirectConfig, core: Core) -> Iterator[DirectConfig]:
    """Yield a configuration with NHWC, a block of all channels, where its images are blocked."""
    ways = itertools.product(or_nhwc(config.data_layout), or_nhwc(config.out_layout))
    for data_layout, out_layout in ways:
        is_new = (data_layout, out_layout) != (config.data_layout, config.out_layout)
        if is_new and (workload.groups == 1 or data_layout == out_layout):
            yield config.with_fields(data_layout=data_layout, out_layout=out_layout)


def or_nhwc(layout: str) -> tuple[str, ...]:
    """Return a layout, and the one that a block of all channels makes of it if it is blocked."""
    return (layout, "NHWC") if Layout(layout).block else (layout,)


def suits_channels(kernel: Microkernel, workload: Conv2dWorkload, out_layout: str) -> bool:
    """Whether tiles of nr channels end where groups do."""
    channels = workload.co // workload.groups
    wanted = math.ceil(channels / kernel.lanes) * kernel.lanes
    if kernel.nr > wanted:
        return False
    return workload.groups == 1 or kernel.nr == wanted or channels % kernel.nr == 0


def _keeps_registers(kernel: Microkernel, core: Core) -> bool:
    """Whether a NEON micro-kernel stays free of spills inside the loops of the convolution.

    Those do that load A as vectors: where elements are loaded one by one, LLVM takes four steps of
    k together, which leaves no register for them (8x12: 20 stack accesses).
    """
    if not kernel.isa.lane_operand:
        return True
    if core.in_order and kernel.registers_in_place > _MOST_REGISTERS_IN_ORDER:
        return False
    return kernel.loads_a_vectors and kernel.name not in _SPILLED_IN_NESTS


def _tiles(mr: int, workload: Conv2dWorkload) -> Iterator[tuple[int, int]]:
    """Blocks of pixels with mr rows: one image row wide unless the image is narrower than that."""
    for tile_h in range(1, min(mr, workload.oh) + 1):
        tile_w, rest = divmod(mr, tile_h)
        if rest == 0 and tile_w <= workload.ow and (tile_h == 1 or tile_w == workload.ow):
            yield tile_h, tile_w


def _spills(
    kernel: Microkernel, workload: Conv2dWorkload, tile_h: int, tile_w: int, core: Core
) -> bool:
    """Whether a kernel row of an NCHW image needs more registers than there are.

    LLVM unrolls a short k loop itself and keeps each pixel that several steps read in a register
    from the first to the last of them. 14x32 blocks of a 3x3 kernel spill half of their pixels:
    80 GFLOPS where 7x32 blocks reach 160 (Golden Cove). For cores that issue in order it unrolls
    longer loops too and loads the pixels of a step early: 19x4 blocks of a 7x7 kernel have 65
    stack accesses for 76 multiply-adds.
    """
    rows = tile_h * tile_w
    instructions = workload.kw * (2 * rows * kernel.vectors + 2 * rows + kernel.vectors)
    if instructions > _MOST_UNROLLED and not core.in_order:
        return False
    early = rows if core.in_order else 0
    kept = tile_h * _pixels_kept(workload, tile_w)
    return rows * kernel.vectors + kept + early + kernel.vectors + 1 > core.vector_registers


def _pixels_kept(workload: Conv2dWorkload, tile_w: int) -> int:
    """Most pixels of an image row that steps both before and after some point of a window read."""
    stride, dilation = workload.stride[1], workload.dilation[1]
    reads = [{i * stride + k * dilation for i in range(tile_w)} for k in range(workload.kw)]
    before = [set().union(*reads[:k]) for k in range(1, workload.kw)]
    after = [set().union(*reads[k:]) for k in range(1, workload.kw)]
    return max((len(b & a) for b, a in zip(before, after, strict=True)), default=0)


def _slabs(workload: Conv2dWorkload, tile_h: int, threads: int) -> Iterator[tuple[str, int]]:
    """Loop orders with the block rows of one slab."""
    tiles_h = math.ceil(workload.oh / tile_h)
    yield "channels", tiles_h
    if workload.oh % tile_h:
        # A cut last row of blocks must be a slab of its own, or the only slab.
        heights = {1, tiles_h}
    else:
        heights = {rows for rows in _SLAB_ROWS if rows < tiles_h and tiles_h % rows == 0}
        heights |= {math.ceil(tiles_h / threads), tiles_h}
        if not any(1 < rows < tiles_h for rows in heights):
            heights |= {rows for rows in _SLAB_ROWS if rows < tiles_h}
    for rows in sorted(heights):
        yield "rows", rows


def _unroll(data_layout: str) -> int:
    """K steps per iteration of the emitted loop."""
    # Unrolled windows overlap: LLVM keeps what two steps share in registers and spills (0.41 of
    # the peak instead of 0.85 for the first layer of ResNet with 14x32 blocks).
    return 1 if data_layout == "NCHW" else 4
