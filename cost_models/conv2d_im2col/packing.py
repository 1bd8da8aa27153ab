"""Cycles of packing windows, or of reading them where they are, and of padding rows before."""

from __future__ import annotations

import math

from tvm_blislike.cost_models.conv2d_im2col.geometry import ITEM_BYTES, Im2colGeometry
from tvm_blislike.cost_models.moving import (
    beyond_l2,
    bytes_per_cycle,
    l2_bytes,
    level_holding,
    line_cycles,
    share_bytes,
    vector_cycles,
)
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of

# Part of L2 that may be planned for: the result and the next operands pass through the rest.
L2_PLANNED = 0.7
# Share of a stream from beyond L2 that shows although the FMAs of the same pass run meanwhile.
EXPOSED = 0.4
# Lines that pass for each line of panels in L2, which is written and read again; a panel that is
# used at once, figure 5 of the paper to the letter, is in L1 (64 filters of 192 channels on 28x28:
# 1.06 times as fast as packing blocks of rows; reading in place 1.20).
PANEL_LINES = 1.0
# Cycles until a row of windows that is read in place arrives the first time, where channels are so
# far apart that no prefetcher, which stops at the end of a page, follows from one to the next
# (Golden Cove: 64 to 256 filters on 28x28 and 56x56). Far: where L2 cannot hold image and result.
ROW_CYCLES = 2.0
FAR_ROW_CYCLES = 48.0
FAR_APART_BYTES = 2048
# Shuffles of a vector of the slab that parts columns of stride 2 or more.
PART_SHUFFLES = 3.0


def packing_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles of copying all windows, and of padding or parting rows before."""
    arrival = arrival_cycles(geo, core, threads)
    return geo.images * geo.blocks_h * _copying_cycles(geo, core, threads) + arrival


def arrival_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles that the image's way from beyond L2 adds to packing."""
    w = geo.workload
    image = w.n * w.ci * w.h * w.w * ITEM_BYTES
    source = level_holding(core, image, threads)
    return 0.0 if source in (1, 2) else EXPOSED * image / bytes_per_cycle(core, source)


def _copying_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles of copying the windows of a block of rows, or of reading them in place."""
    w, c = geo.workload, geo.config
    if geo.in_place:
        return geo.pixel_tiles * geo.k * row_cycles(geo, core, threads, w.h * w.w, ROW_CYCLES)
    kernel = kernel_of(core, c.mr, c.nr, w.types)
    lines = geo.panels_bytes * geo.sets / core.line_bytes
    beyond = geo.panels_bytes > L2_PLANNED * l2_bytes(core, threads)
    vectors = geo.k * geo.copies(kernel.lanes)
    near = geo.on_demand or 2 * geo.panels_bytes <= share_bytes(core, 1, threads)
    level = 1 if near else beyond_l2(core) if beyond else 2
    work = copy_cycles(geo, kernel, core) * vectors + line_cycles(core, level, PANEL_LINES * lines)
    if geo.has_slab:
        in_l1 = 2 * geo.slab_bytes <= share_bytes(core, 1, threads)
        lines = kernel.lanes * ITEM_BYTES / core.line_bytes
        work += _parting_cycles(geo, kernel, core)
        work += _slab_vectors(geo, kernel) * line_cycles(core, 1 if in_l1 else 2, lines)
    return work


def least_copying_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """`_copying_cycles`, of panels and rows in L1."""
    if geo.in_place:
        return _copying_cycles(geo, core, threads)
    kernel = kernel_of(core, geo.config.mr, geo.config.nr, geo.workload.types)
    work = copy_cycles(geo, kernel, core) * geo.k * geo.copies(kernel.lanes)
    return work + (_parting_cycles(geo, kernel, core) if geo.has_slab else 0.0)


def _parting_cycles(geo: Im2colGeometry, kernel: Microkernel, core: Core) -> float:
    """Cycles of padding a block's rows in L1, or of parting them by columns."""
    shuffles = PART_SHUFFLES if geo.workload.stride[1] > 1 else 0.0
    return _slab_vectors(geo, kernel) * vector_cycles(core, shuffles)


def _slab_vectors(geo: Im2colGeometry, kernel: Microkernel) -> int:
    rows, phases, columns = geo.slab_size
    return geo.ci * rows * phases * math.ceil(columns / kernel.lanes)


def row_cycles(geo: Im2colGeometry, core: Core, threads: int, pixels: int, near: float) -> float:
    """Cycles of a part of a row of an image of so many pixels, on the way to the next channel's."""
    if ITEM_BYTES * pixels < FAR_APART_BYTES:
        return 0.0
    w = geo.workload
    touched = ITEM_BYTES * (geo.ci * w.h * w.w + geo.co * w.oh * w.ow)
    return near if touched <= L2_PLANNED * l2_bytes(core, threads) else FAR_ROW_CYCLES


def copy_cycles(geo: Im2colGeometry, kernel: Microkernel, core: Core) -> float:
    """Cycles of a vector copied into a panel: what a shift saves are loads, not stores.

    Golden Cove with 64-byte vectors, seven 3x3 and 5x5 layers from 14x14 to 224x224, the sides
    taking turns: shifts took 0.98 to 1.02 of the layer's time with plain loads. It stores one
    vector a cycle, and unaligned loads, which cross a line each, still come as fast as that. Where
    a load takes two cycles (Cortex-A53 and A55), loads limit, and shifts are predicted to help.
    """
    if not geo.shifts:
        return vector_cycles(core)
    bytes_ = ITEM_BYTES * kernel.lanes
    loads = (1 + bytes_ / core.line_bytes) / core.loads_per_cycle
    stores = 1 / core.stores_per_cycle
    taps = geo.workload.kw
    pipes = core.isa.shifts_per_cycle or core.fma_per_cycle
    shifted = max(loads / taps, stores, (taps - 1) / taps / pipes)
    return vector_cycles(core) * shifted / max(loads, stores)
