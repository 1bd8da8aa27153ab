"""Configurations of the direct convolution and their predicted time.

Where the operands live (per thread, "rows" and "channels" order alike):

- the block of C in registers;
- the weight panel of one tile of nr channels (K x nr) in L1 if it fits beside the input, else it
  streams from L2 once per block of C: the term that makes low and wide blocks (7x64) lose to
  14x32 on large K although they have fewer loads per FMA;
- the slab of the input in L2: every block of C reads its pixels from there, once per tile;
- all weights in L2, L3 or memory: they pass once per slab.

Traffic adds to the time of the FMAs instead of hiding behind it: on Golden Cove 14x32 blocks with
K = 576 take 17.3 cycles per k step and 7x64 blocks 20, against 14 for the FMAs alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvm_blislike.config import Config
from tvm_blislike.cost_models.roofline import (
    CALL_CYCLES,
    FORK_JOIN_CYCLES,
    ISSUE_EFFICIENCY,
    Estimate,
    bytes_per_cycle,
    finish,
    level_holding,
    share_bytes,
    step_cycles,
)
from tvm_blislike.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.layouts import preferred
from tvm_blislike.microkernels import Microkernel, get_kernel, kernel_name, kernels_for
from tvm_blislike.workload import Conv2dWorkload

ITEM_BYTES = 4
# First layers of fewer channels than this read NCHW directly, k running along a kernel row.
MIN_BLOCKED_CHANNELS = 8
# Input channels from which a 1x1 kernel makes an NHWC copy of NCHW input worthwhile is any: a
# `window` of one column would have no k loop.
SLAB_ROWS = (1, 2, 4, 7, 8, 14, 16, 28)


def layouts(workload: Conv2dWorkload, lanes: int) -> tuple[str, str]:
    """Return the layouts of the input and output images.

    Both are blocked or both NHWC when there are groups: a block may not straddle two groups.
    """
    w = workload
    out = preferred(w.co, w.groups, lanes)
    if w.groups == 1 and w.ci < MIN_BLOCKED_CHANNELS and w.kw > 1:
        return "NCHW", out
    data = preferred(w.ci, w.groups, lanes)
    if w.groups > 1 and "NHWC" in (data, out):
        return "NHWC", "NHWC"
    return data, out


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Config]:
    """Yield the configurations worth estimating."""
    data_layout, out_layout = layouts(workload, core.lanes(workload.dtype))
    for kernel in kernels_for(core.isa, workload.dtype):
        if not _suits_channels(kernel, workload, out_layout):
            continue
        for tile_h, tile_w in _tiles(kernel.mr, workload):
            for order, oh_block in _slabs(workload, tile_h, threads):
                yield Config(
                    "conv2d_direct",
                    mr=kernel.mr,
                    nr=kernel.nr,
                    kr=_unroll(workload, data_layout, kernel),
                    loop_order=order,
                    data_layout=data_layout,
                    out_layout=out_layout,
                    tile_h=tile_h,
                    tile_w=tile_w,
                    oh_block=oh_block,
                )


def _suits_channels(kernel: Microkernel, workload: Conv2dWorkload, out_layout: str) -> bool:
    channels = workload.co // workload.groups
    wanted = math.ceil(channels / kernel.lanes) * kernel.lanes
    if kernel.nr > wanted:
        return False
    return workload.groups == 1 or kernel.nr == wanted or channels % kernel.nr == 0


def _tiles(mr: int, workload: Conv2dWorkload) -> Iterator[tuple[int, int]]:
    """Blocks of pixels with mr rows: one image row wide unless the image is narrower than that."""
    for tile_h in range(1, min(mr, workload.oh) + 1):
        tile_w, rest = divmod(mr, tile_h)
        if rest == 0 and tile_w <= workload.ow and (tile_h == 1 or tile_w == workload.ow):
            yield tile_h, tile_w


def _slabs(workload: Conv2dWorkload, tile_h: int, threads: int) -> Iterator[tuple[str, int]]:
    """Loop orders with the block rows of one slab."""
    tiles_h = math.ceil(workload.oh / tile_h)
    yield "channels", tiles_h
    if workload.oh % tile_h:
        # A cut last row of blocks must be a slab of its own, or the only slab.
        heights = {1, tiles_h}
    else:
        heights = {rows for rows in SLAB_ROWS if rows < tiles_h and tiles_h % rows == 0}
        heights |= {math.ceil(tiles_h / threads), tiles_h}
        if not any(1 < rows < tiles_h for rows in heights):
            heights |= {rows for rows in SLAB_ROWS if rows < tiles_h}
    for rows in sorted(heights):
        yield "rows", rows


def _unroll(workload: Conv2dWorkload, data_layout: str, kernel: Microkernel) -> int:
    """k steps per iteration of the emitted loop: about 112 FMAs, at most what there is."""
    if data_layout == "NCHW":
        return workload.kw if workload.kw <= 8 else 4
    return 4


def estimate(workload: Conv2dWorkload, config: Config, core: Core, threads: int) -> Estimate:
    """Predict the time of one layer.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of panel, slab and weights per cache level.
    """
    geo = DirectGeometry(workload, config)
    kernel = get_kernel(kernel_name(core.isa, config.mr, config.nr, workload.dtype))
    parts = _parts(geo, threads)
    k_steps = geo.ci_group * workload.kh * workload.kw
    panel = k_steps * config.nr * ITEM_BYTES
    slab = _slab_bytes(geo)
    weights = panel * geo.tiles * workload.groups
    slab_level = level_holding(core, slab + panel, threads) or 3
    weight_level = level_holding(core, weights + slab, threads)

    blocks = geo.tiles_w * config.oh_block
    calls = _call_cycles(geo, kernel, core, k_steps)
    in_l1 = panel + _block_input_bytes(geo) <= share_bytes(core, 1, threads)
    panel_again = 0.0 if in_l1 else panel / _stream(core, 2)
    pixels = 0.0 if slab_level == 1 else _block_input_bytes(geo) / _stream(core, slab_level)
    panel_first = panel / _stream(core, weight_level)

    tiles = geo.tiles * workload.groups
    per_slab_traffic = tiles * (panel_first + (blocks - 1) * panel_again + blocks * pixels)
    slabs = workload.n * math.ceil(geo.tiles_h / config.oh_block)
    share = parts / (slabs if config.loop_order == "rows" else slabs * tiles)
    cycles = {
        "fma": calls["fma"] * share,
        "edges": calls["edges"] * share,
        "epilogue": calls["epilogue"] * share,
        "traffic": per_slab_traffic * slabs * share,
        "packing": _padding_cycles(geo, core, threads) * share,
        "fork": FORK_JOIN_CYCLES if threads > 1 else 0.0,
    }
    footprint = (
        ("weight panel", 1 if in_l1 else 2, panel, _fraction(core, 1, panel, threads)),
        ("input slab", slab_level, slab, _fraction(core, slab_level, slab, threads)),
        ("weights", weight_level, weights, _fraction(core, weight_level, weights, threads)),
    )
    return finish(core, threads, workload.macs, cycles, footprint)


def workspace_bytes(workload: Conv2dWorkload, config: Config, threads: int) -> int:
    """Return the size of the padded slabs of all threads, or of the padded input."""
    if not any(workload.padding):
        return 0
    geo = DirectGeometry(workload, config)
    if config.loop_order == "rows":
        return _slab_bytes(geo) * threads
    return workload.n * workload.ci * math.prod(geo.padded_size) * ITEM_BYTES


def _stream(core: Core, level: int) -> float:
    """Bytes per cycle that add to the time of the FMAs.

    Prefetch hides part of a stream: 56 of 32 nominal bytes per cycle from L2 on Golden Cove.
    """
    return 1.75 * bytes_per_cycle(core, level)


def _fraction(core: Core, level: int, size: int, threads: int) -> float:
    share = share_bytes(core, level, threads)
    return size / share if share else 0.0


def _parts(geo: DirectGeometry, threads: int) -> float:
    """Slabs (or tiles, in "channels" order) that the busiest thread computes."""
    n, config = geo.workload.n, geo.config
    slabs = math.ceil(geo.tiles_h / config.oh_block)
    tiles = geo.tiles * geo.workload.groups
    if config.loop_order == "rows":
        if n % threads == 0:
            return n * slabs / threads
        return n * math.ceil(slabs / threads)
    if n % threads == 0:
        return n * slabs * tiles / threads
    outer = geo.workload.groups if geo.workload.groups > 1 else tiles
    return n * slabs * math.ceil(outer / threads) * tiles / outer


def _slab_bytes(geo: DirectGeometry) -> int:
    w, c = geo.workload, geo.config
    rows = (c.oh_block * c.tile_h - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1
    return min(rows, geo.padded_size[0]) * geo.padded_size[1] * w.ci * ITEM_BYTES


def _block_input_bytes(geo: DirectGeometry) -> int:
    """Input that one block of C reads."""
    w, c = geo.workload, geo.config
    rows = (c.tile_h - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1
    columns = (c.tile_w - 1) * w.stride[1] + (w.kw - 1) * w.dilation[1] + 1
    used = min(rows * columns, c.tile_h * c.tile_w * w.kh * w.kw)
    return used * geo.ci_group * ITEM_BYTES


def _call_cycles(
    geo: DirectGeometry, kernel: Microkernel, core: Core, k_steps: int
) -> dict[str, float]:
    """Cycles of all micro-kernel calls of the layer on one thread, edges apart."""
    w, c = geo.workload, geo.config
    full_h, cut_h = divmod(w.oh, c.tile_h)
    full_w, cut_w = divmod(w.ow, c.tile_w)
    cut_columns = geo.co_group - (geo.tiles - 1) * c.nr
    shapes = [
        (full_h * full_w, c.tile_h * c.tile_w),
        (full_h if cut_w else 0, c.tile_h * cut_w),
        (full_w if cut_h else 0, cut_h * c.tile_w),
        (1 if cut_h and cut_w else 0, cut_h * cut_w),
    ]
    total = {"fma": 0.0, "edges": 0.0, "epilogue": 0.0}
    for columns, tiles in ((c.nr, geo.tiles - 1), (cut_columns, 1)):
        vectors = math.ceil(columns / kernel.lanes)
        for count, rows in shapes:
            number = count * tiles * w.n * w.groups
            if number == 0:
                continue
            a_loads = rows / kernel.lanes if kernel.a_by_lane else rows
            step = step_cycles(core, rows, vectors, a_loads) / ISSUE_EFFICIENCY
            useful = rows * columns / kernel.lanes / core.fma_per_cycle / ISSUE_EFFICIENCY
            total["fma"] += number * k_steps * useful
            total["edges"] += number * k_steps * (step - useful)
            stores = rows * vectors / core.stores_per_cycle
            total["epilogue"] += number * (CALL_CYCLES + 1.5 * stores)
    return total


def _padding_cycles(geo: DirectGeometry, core: Core, threads: int) -> float:
    """Cycles of copying the padded input, all slabs: a load, a store, and the input's traffic."""
    w, c = geo.workload, geo.config
    if not any(w.padding):
        return 0.0
    slabs = math.ceil(geo.tiles_h / c.oh_block) if c.loop_order == "rows" else 1
    size = _slab_bytes(geo) * slabs * w.n
    level = level_holding(core, w.ci * w.h * w.w * ITEM_BYTES, threads)
    return size / (core.vector_bits / 8) * 2.0 + size / _stream(core, level)
