"""Configurations of the im2col convolution that are worth an estimate.

Blocks of either orientation, heights of blocks of rows, sets of channels after the slicing analysis
(`slicing`), both loop orders, and the ways to pack windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.estimate import L2_PLANNED
from tvm_blislike.cost_models.conv2d_im2col.geometry import (
    FILTER_COLUMNS,
    IN_PLACE,
    ITEM_BYTES,
    ON_DEMAND,
    SHIFT,
    Im2colGeometry,
)
from tvm_blislike.cost_models.conv2d_im2col.slicing import (
    INPUT_STATIONARY,
    WEIGHT_STATIONARY,
    slicings,
)
from tvm_blislike.cost_models.roofline import l2_bytes
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.space import divisors
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload

# Vectors that packing a channel may write out per kernel tap: code, compiled once for each.
MOST_COPIES = 160
# Steps of k that a set of channels should have besides N_c: sums are then moved rarely.
DEPTHS = (288, 576, 1152)


def applies(workload: Conv2dWorkload, _core: Core) -> str:
    """Return "" for fp32 convolutions, else the reason."""
    return "" if workload.types == FLOAT32 else f"no {workload.types} micro-kernels"


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Im2colConfig]:
    """Yield the configurations worth estimating."""
    for kernel, columns in _blocks(workload, core):
        across = columns == FILTER_COLUMNS
        filters, windows = (kernel.nr, kernel.mr) if across else (kernel.mr, kernel.nr)
        block = {"mr": kernel.mr, "nr": kernel.nr, "columns": columns}
        found = [
            {"oh_block": rows, "packing": packing, **block}
            for rows, packing in ways(workload, kernel, columns, threads)
        ]
        for channels in _depths(workload, filters, windows, core, threads):
            for ordered in _ordered(workload, filters, channels, core, threads):
                every = (ordered.with_fields(**way) for way in found)
                yield from (config for config in every if _is_useful(workload, config))


def _blocks(workload: Conv2dWorkload, core: Core) -> Iterator[tuple[Microkernel, str]]:
    """Blocks of either orientation: per width the tallest, and those that cut tiles evenly.

    Rows of a block are cut exactly, columns up to whole vectors: 196 pixels are 12.25 vectors.
    """
    w, pixels = workload, workload.oh * workload.ow
    filters = w.co // w.groups
    for kernel in _even(_spare(w, core, filters), (filters,)):
        yield kernel, ""
    lanes = core.lanes(w.types.acc)
    wide = [k for k in _spare(w, core, pixels) if k.nr < filters + lanes]
    for kernel in _even(wide, (pixels, w.ow)):
        yield kernel, FILTER_COLUMNS


def _spare(workload: Conv2dWorkload, core: Core, rows: int) -> list[Microkernel]:
    """Kernels of at most so many rows, which leave two registers free.

    With fewer LLVM spills at times, unless the loop is not LLVM's.
    """
    return [
        kernel
        for kernel in kernels_for(core, workload.types, panels=True)
        if kernel.mr <= rows
        and (kernel.panels_only or kernel.registers + 2 <= core.vector_registers)
    ]


def _even(kernels: Iterable[Microkernel], sizes: tuple[int, ...]) -> Iterator[Microkernel]:
    """Per width the tallest kernel, and the one that cuts each size into equal tiles."""
    by_width: dict[int, dict[int, Microkernel]] = {}
    for kernel in kernels:
        by_width.setdefault(kernel.nr, {})[kernel.mr] = kernel
    for heights in by_width.values():
        most = max(heights)
        wanted = {most, *(math.ceil(size / math.ceil(size / most)) for size in sizes)}
        yield from (heights[mr] for mr in sorted(wanted & heights.keys()))


def ways(
    workload: Conv2dWorkload, kernel: Microkernel, columns: str, threads: int
) -> Iterator[tuple[int, str]]:
    """Heights of blocks, divisors of the image's, so that all are alike; and how to pack them.

    Shifts where a row holds a vector, and two vectors hold a row of the kernel. Where windows are
    neighbours already, tile by tile or not at all, unless the k loop is a function that wants
    panels; then only threads need several blocks.
    """
    w = workload
    windows = kernel.mr if columns == FILTER_COLUMNS else kernel.nr
    reach = (w.kw - 1) * w.dilation[1]
    shifts = w.stride[1] == 1 and 0 < reach < kernel.lanes <= w.ow
    # Rows of the micro-kernel are cut exactly, its columns up to whole vectors.
    spare = 0 if columns == FILTER_COLUMNS else kernel.lanes - 1
    for rows in divisors(w.oh):
        if windows > rows * w.ow + spare:
            continue
        block = {"mr": kernel.mr, "nr": kernel.nr, "oh_block": rows, "columns": columns}
        geo = Im2colGeometry(w, Im2colConfig(packing=IN_PLACE, **block))
        if rows == 1 or geo.copies(kernel.lanes) < MOST_COPIES:
            yield from ((rows, packing) for packing in ("", SHIFT)[: 1 + shifts])
        if geo.is_plain and (rows == w.oh or threads > 1):
            yield rows, ON_DEMAND
            if not kernel.isa.lane_operand and geo.in_place:
                yield rows, IN_PLACE


def _is_useful(workload: Conv2dWorkload, config: Im2colConfig) -> bool:
    """Whether tiles that are to be packed on demand are, once each."""
    geo = Im2colGeometry(workload, config)
    return config.packing != ON_DEMAND or (geo.on_demand and geo.filter_blocks == 1)


def _depths(
    workload: Conv2dWorkload, filters: int, windows: int, core: Core, threads: int
) -> tuple[int, ...]:
    """Channels in a set: N_c of the slicing analysis, all of them, and some in between."""
    taps, ci = workload.kh * workload.kw, workload.ci // workload.groups
    n_c = slicings(workload, core, filters, windows, threads=threads)[0].n_c
    divisors = [c for c in range(1, ci + 1) if ci % c == 0]
    wanted = {n_c, ci, *(max(1, depth // taps) for depth in DEPTHS)}
    return tuple(sorted({max(d for d in divisors if d <= w) for w in wanted if w <= ci}))


def _ordered(
    workload: Conv2dWorkload, size: int, channels: int, core: Core, threads: int
) -> Iterator[Im2colConfig]:
    """Yield both orders, with the filters of a set: K2, or a thread's share."""
    tiles = math.ceil(workload.co // workload.groups / size)
    taps = workload.kh * workload.kw
    in_l2 = max(
        1, int(L2_PLANNED * l2_bytes(core, threads) / 2 // (size * channels * taps * ITEM_BYTES))
    )
    for order in (INPUT_STATIONARY, WEIGHT_STATIONARY):
        blocks = {tiles, math.ceil(tiles / threads)}
        if order == INPUT_STATIONARY and in_l2 < tiles:
            blocks.add(math.ceil(tiles / math.ceil(tiles / in_l2)))
        for block in sorted(blocks):
            yield Im2colConfig(
                mc=block * size,
                kc=channels * taps,
                loop_order=order,
            )
