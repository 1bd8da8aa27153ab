"""Configurations of the im2col convolution that are worth an estimate.

Blocks of either orientation, heights of blocks of rows, both loop orders, and the ways to pack
windows. Sets of channels and of filters are those of the models: N_c and K2 of SConv's slicing
analysis (`slicing`), kc and mc of `cache_blocking`; and all at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tvm_blislike.cost_models.cache_blocking import CacheBlocking, cache_blocking
from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import (
    FILTER_COLUMNS,
    IN_PLACE,
    ON_DEMAND,
    SHIFT,
    Im2colGeometry,
)
from tvm_blislike.cost_models.conv2d_im2col.nests import nest_of
from tvm_blislike.cost_models.conv2d_im2col.slicing import (
    INPUT_STATIONARY,
    WEIGHT_STATIONARY,
    slicing,
    slicings,
)
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.space import divisors
from tvm_blislike.model.types import FLOAT32
from tvm_blislike.model.workload import Conv2dWorkload

# Vectors that packing a channel may write out per kernel tap: code, compiled once for each.
MOST_COPIES = 160
# The same of all taps, with the elements of rows that are parted by columns: a kernel of 512 taps
# and stride 256 took half a minute to compile.
MOST_WRITTEN = 8192


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
            for ordered in _ordered(workload, filters, windows, channels, core, threads):
                every = (ordered.with_fields(**way) for way in found)
                yield from (config for config in every if _is_useful(workload, config))


def _blocks(workload: Conv2dWorkload, core: Core) -> Iterator[tuple[Microkernel, str]]:
    """Blocks of either orientation: per width the tallest, and those that cut tiles evenly.

    Rows of a block are cut exactly, columns up to whole vectors: 196 pixels are 12.25 vectors.
    """
    w, pixels = workload, workload.oh * workload.ow
    filters = w.co // w.groups
    for kernel in _even(_kept(w, core, filters, ""), (filters,)):
        yield kernel, ""
    lanes = core.lanes(w.types.acc)
    wide = [k for k in _kept(w, core, pixels, FILTER_COLUMNS) if k.nr < filters + lanes]
    for kernel in _even(wide, (pixels, w.ow)):
        yield kernel, FILTER_COLUMNS


def _kept(workload: Conv2dWorkload, core: Core, rows: int, columns: str) -> list[Microkernel]:
    """Kernels of at most so many rows that stay in registers."""
    return [
        kernel
        for kernel in kernels_for(core, workload.types, panels=True)
        if kernel.mr <= rows and keeps_registers(core, kernel, nest_of(columns))
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
        few = rows == 1 or geo.copies(kernel.lanes) < MOST_COPIES
        if few and geo.written(kernel.lanes) <= MOST_WRITTEN:
            yield from ((rows, packing) for packing in ("", SHIFT)[: 1 + shifts])
        if geo.is_plain and (rows == w.oh or threads > 1):
            yield rows, ON_DEMAND
            if not kernel.isa.lane_operand and geo.in_place:
                yield rows, IN_PLACE


def _is_useful(workload: Conv2dWorkload, config: Im2colConfig) -> bool:
    """Whether tiles that are to be packed on demand are, once each."""
    geo = Im2colGeometry(workload, config)
    return config.packing != ON_DEMAND or (geo.on_demand and geo.filter_blocks == 1)


def blocking(
    workload: Conv2dWorkload,
    filters: int,
    windows: int,
    order: str,
    core: Core,
    threads: int,
    kc: int | None = None,
) -> CacheBlocking:
    """Return the model's blocks of the product of filters (A) by windows (B) of an image.

    Parameters
    ----------
    filters, windows : int
        Rows of a micro-panel of either.
    order : str
        The windows stay while the filters pass ("IS": B3A2C0), or the filters (A3B2C0).
    kc : int, optional
        Steps of k of a set of channels; the model's if not given.
    """
    w = workload
    return cache_blocking(
        core,
        filters,
        windows,
        unroll=1,
        loop_order="B3A2C0" if order == INPUT_STATIONARY else "A3B2C0",
        threads=threads,
        dtype=w.types.a,
        m=w.co // w.groups,
        n=w.oh * w.ow,
        k=w.ci // w.groups * w.kh * w.kw,
        pinned=None if kc is None else {"kc": kc},
    )


def derivation(
    workload: Conv2dWorkload, config: Im2colConfig, core: Core, threads: int
) -> tuple[str, ...]:
    """Say what bounds the blocks of a configuration, and what the slicing analysis would do."""
    geo = Im2colGeometry(workload, config)
    sizes = workload, geo.filters, geo.windows
    order, kc = config.loop_order, geo.channels * geo.taps
    given = blocking(*sizes, order, core, threads, kc)
    depth = blocking(*sizes, order, core, threads).explained(kc=kc)
    sliced = slicing(workload, core, *sizes[1:], threads=threads)
    analysis = f"SConv: {sliced.schedule}, N_c {sliced.n_c}, K2 {sliced.k2}, K3 {sliced.k3}"
    taken = f"taken: {order}, N_c {geo.channels}, {geo.block_tiles} tiles of filters in a set"
    return *depth, *given.explained(mc=config.mc), *given.places(), f"{analysis}; {taken}"


def _depths(
    workload: Conv2dWorkload, filters: int, windows: int, core: Core, threads: int
) -> tuple[int, ...]:
    """Channels in a set: N_c of the slicing analysis, all, and what is next to the model's kc."""
    taps, ci = workload.kh * workload.kw, workload.ci // workload.groups
    n_c = slicings(workload, core, filters, windows, threads=threads)[0].n_c
    kc = blocking(workload, filters, windows, INPUT_STATIONARY, core, threads).kc
    equal = divisors(ci)
    below = {max(c for c in equal if c <= most) for most in (n_c, max(1, kc // taps))}
    above = min((c for c in equal if c * taps > kc), default=ci)
    return tuple(sorted({*below, above, ci}))


def _ordered(
    workload: Conv2dWorkload,
    filters: int,
    windows: int,
    channels: int,
    core: Core,
    threads: int,
) -> Iterator[Im2colConfig]:
    """Yield both orders, with the filters of a set: K2 or mc, a thread's share, or all."""
    tiles = math.ceil(workload.co // workload.groups / filters)
    kc = channels * workload.kh * workload.kw
    for order in (INPUT_STATIONARY, WEIGHT_STATIONARY):
        blocks = {tiles, math.ceil(tiles / threads)}
        if order == INPUT_STATIONARY:
            sliced = slicings(workload, core, filters, windows, threads=threads, n_c=channels)[0]
            model = blocking(workload, filters, windows, order, core, threads, kc)
            # Half of mc leaves as much of L2 to the windows of a block.
            sizes = (sliced.k2, model.mc // filters, max(1, model.mc // 2 // filters))
            blocks |= {math.ceil(tiles / math.ceil(tiles / size)) for size in sizes}
        for block in sorted(blocks):
            yield Im2colConfig(mc=block * filters, kc=kc, loop_order=order)
