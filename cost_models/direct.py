"""Configurations of the direct convolution and their predicted time.

Where the operands live (per thread, "rows" and "channels" order alike):

- the block of C in registers;
- the weight panel of one tile of nr channels (K x nr) in L1 if it fits beside the input, else it
  streams from L2 once per block of C. The prefetchers hide that stream up to 36 bytes a cycle:
  14x32 (9 bytes) and 6x64 (21) do not notice, 2x128 (64) does;
- the slab of the input in L2, so that every tile of channels rereads it there; larger slabs are
  reread from L3, and the time of that adds to the time of the FMAs;
- all weights in L2, L3 or memory: they pass once per slab, which adds too (7x7 images).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

from tvm_blislike.config import Config
from tvm_blislike.cost_models.data_types import missing
from tvm_blislike.cost_models.roofline import (
    CALL_CYCLES,
    FMA_EFFICIENCY,
    FORK_JOIN_CYCLES,
    Estimate,
    bytes_per_cycle,
    calls_in_flight,
    finish,
    level_holding,
    share_bytes,
    step_cycles,
)
from tvm_blislike.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.layouts import block_of, preferred
from tvm_blislike.microkernels import Microkernel, get_kernel, kernel_name, kernels_for
from tvm_blislike.workload import Conv2dWorkload

# Share of a stream that prefetching hides behind computation of equal length.
HIDDEN = 0.6
# Lines that an out-of-order core has asked for before it needs the first of them.
LINES_IN_TIME = 8
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
SLAB_ROWS = (1, 2, 4, 7, 8, 14, 16, 28)


def layouts(workload: Conv2dWorkload, lanes: int) -> tuple[str, str]:
    """Return the layouts of the input and output images.

    Both are blocked or both NHWC when there are groups: a block may not straddle two groups.
    """
    w = workload
    out = preferred(w.co, w.groups, lanes)
    # A single channel has no other channel to run along, whatever the kernel.
    if w.groups == 1 and w.ci < MIN_BLOCKED_CHANNELS and (w.kw > 1 or w.ci == 1):
        return "NCHW", out
    data = preferred(w.ci, w.groups, lanes)
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


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Config]:
    """Yield the configurations worth estimating."""
    data_layout, out_layout = layouts(workload, core.lanes(workload.dtype))
    for kernel in kernels_for(core.isa, workload.dtype):
        if not suits_channels(kernel, workload, out_layout):
            continue
        if data_layout != "NCHW" and not _keeps_registers(kernel, core):
            continue
        for tile_h, tile_w in _tiles(kernel.mr, workload):
            if data_layout == "NCHW" and _spills(kernel, workload, tile_h, tile_w, core):
                continue
            for order, oh_block in _slabs(workload, tile_h, threads):
                yield Config(
                    "conv2d_direct",
                    mr=kernel.mr,
                    nr=kernel.nr,
                    kr=_unroll(data_layout),
                    loop_order=order,
                    data_layout=data_layout,
                    out_layout=out_layout,
                    tile_h=tile_h,
                    tile_w=tile_w,
                    oh_block=oh_block,
                    prefetch=1,
                )


def relaid(workload: Conv2dWorkload, config: Config, core: Core) -> Iterator[Config]:
    """Yield a configuration with NHWC, a block of all channels, where its images are blocked."""
    ways = itertools.product(or_nhwc(config.data_layout), or_nhwc(config.out_layout))
    for data_layout, out_layout in ways:
        is_new = (data_layout, out_layout) != (config.data_layout, config.out_layout)
        if is_new and (workload.groups == 1 or data_layout == out_layout):
            yield config.with_fields(data_layout=data_layout, out_layout=out_layout)


def or_nhwc(layout: str) -> tuple[str, ...]:
    """Return a layout, and the one that a block of all channels makes of it if it is blocked."""
    return (layout, "NHWC") if block_of(layout) else (layout,)


def _keeps_registers(kernel: Microkernel, core: Core) -> bool:
    """Whether a NEON micro-kernel stays free of spills inside the loops of the convolution.

    Those do that load A as vectors: where elements are loaded one by one, LLVM takes four steps of
    k together, which leaves no register for them (8x12: 20 stack accesses).
    """
    if not kernel.a_by_lane:
        return True
    if core.in_order and kernel.registers_in_place > _MOST_REGISTERS_IN_ORDER:
        return False
    return kernel.loads_a_vectors and kernel.name not in _SPILLED_IN_NESTS


def suits_channels(kernel: Microkernel, workload: Conv2dWorkload, out_layout: str) -> bool:
    """Whether tiles of nr channels end where groups do."""
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
        heights = {rows for rows in SLAB_ROWS if rows < tiles_h and tiles_h % rows == 0}
        heights |= {math.ceil(tiles_h / threads), tiles_h}
        if not any(1 < rows < tiles_h for rows in heights):
            heights |= {rows for rows in SLAB_ROWS if rows < tiles_h}
    for rows in sorted(heights):
        yield "rows", rows


def _unroll(data_layout: str) -> int:
    """K steps per iteration of the emitted loop."""
    # Unrolled windows overlap: LLVM keeps what two steps share in registers and spills (0.41 of
    # the peak instead of 0.85 for the first layer of ResNet with 14x32 blocks).
    return 1 if data_layout == "NCHW" else 4


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
    panel = k_steps * config.nr * workload.item_bytes
    slab = _slab_bytes(geo)
    weights = panel * geo.tiles * workload.groups
    panel_level, slab_level, weight_level = _levels(geo, core, threads, panel, slab, weights)
    in_l1 = panel + _block_input_bytes(geo) <= share_bytes(core, 1, threads)
    streamed = _block_input_bytes(geo) + (0 if in_l1 else panel)
    arrival = streamed / bytes_per_cycle(core, panel_level)
    exposed = 0.0 if panel_level == 2 else 1 - HIDDEN
    calls = _call_cycles(geo, kernel, core, k_steps, arrival, exposed)
    tiles = geo.tiles * workload.groups
    slabs = workload.n * math.ceil(geo.tiles_h / config.oh_block)
    share = parts / (slabs if config.loop_order == "rows" else slabs * tiles)
    cycles = {name: value * share for name, value in calls.items()}
    cycles["strides"] = sum(cycles.values()) * _stride_loss(workload, config, core)
    passes = slabs * share if config.loop_order == "rows" else slabs
    once = weights * (share if config.loop_order != "rows" else 1.0)
    cycles["weights"] = _weights_cycles(core, once, weight_level, passes, sum(cycles.values()))
    rereads = tiles if slab_level not in (1, 2) else 1
    source = slab_level if rereads > 1 else level_holding(core, _input_bytes(workload), threads=1)
    cycles["input"] = slab * slabs * rereads * share * _beyond_l2(core, source)
    if threads > 1 and config.loop_order != "rows":
        # Every thread reads the whole image; the others' part is in their caches.
        foreign = _input_bytes(workload) * (threads - 1) / threads
        cycles["input"] += foreign / bytes_per_cycle(core, 3)
    cycles["input"] += _late_cycles(geo, core, threads)
    # Threads whose slabs share a cache lose at most what they gain by sharing the work.
    copies = (_padding_cycles(geo, core, threads) * share, _padding_cycles(geo, core, 1))
    cycles["padding"] = min(copies)
    forks = 2 if any(workload.padding) and config.loop_order != "rows" else 1
    cycles["fork"] = forks * FORK_JOIN_CYCLES if threads > 1 else 0.0
    footprint = (
        _placed(core, "weight panel", 1 if in_l1 else panel_level, panel, threads),
        _placed(core, "input slab", slab_level, slab, threads),
        _placed(core, "weights", weight_level, weights, threads),
    )
    return finish(core, threads, workload, cycles, footprint)


def _late_cycles(geo: DirectGeometry, core: Core, threads: int) -> float:
    """Cycles per thread that the first pass over an image beyond L2 waits for lines.

    A block of one image row asks for a line of each of its pixels at once, block of channels by
    block of channels: what it waits for are those behind the first ones. 128 channels of 55x55 to
    16 on Golden Cove: 8x16 and 12x16 blocks lose nothing, 28x16 blocks a quarter.
    """
    size = _input_bytes(geo.workload)
    if level_holding(core, 2 * size, threads=1) in (1, 2):
        return 0.0
    lines = geo.config.tile_w * geo.workload.stride[1]
    late = max(0.0, 1 - LINES_IN_TIME / lines)
    return late * size / threads / bytes_per_cycle(core, _beyond(core))


def _stride_loss(workload: Conv2dWorkload, config: Config, core: Core) -> float:
    """Share of the time that NHWC costs more than blocks, where there is a choice.

    The lines of pixels at a large stride share sets. Golden Cove, 14x32 blocks: 0 to 5 % for the
    input, 0 to 15 % for the result.
    """
    lanes = core.lanes(workload.dtype)
    reads = config.data_layout == "NHWC" and workload.ci % lanes == 0
    writes = config.out_layout == "NHWC" and workload.co % lanes == 0
    return 0.02 * reads + 0.04 * writes


def workspace_bytes(workload: Conv2dWorkload, config: Config, threads: int) -> int:
    """Return the size of the padded slabs of all threads, or of the padded input."""
    if not any(workload.padding):
        return 0
    geo = DirectGeometry(workload, config)
    if config.loop_order == "rows":
        return _slab_bytes(geo) * threads
    return workload.n * workload.ci * math.prod(geo.padded_size) * workload.item_bytes


def _weights_cycles(core: Core, size: float, level: int, passes: float, compute: float) -> float:
    """Cycles that the weights add: they come from memory in the first pass over all panels.

    Later passes find them in `level`. The prefetch of the next panel hides what fits beside the
    computation of one pass, and about 0.6 of that (512 channels of 7x7: 9.4 MB add 0.36 ms).
    """
    total = 0.0
    for count, source in ((1, 0), (passes - 1, level)):
        stream = 0.0 if source in (1, 2) else size / bytes_per_cycle(core, source)
        total += count * (stream - HIDDEN * min(stream, compute / passes))
    return total


def _levels(
    geo: DirectGeometry, core: Core, threads: int, panel: int, slab: int, weights: int
) -> tuple[int, int, int]:
    """Levels that hold the weight panel (if L1 does not), the slab, and all weights."""
    slabs_of, panels_of = partial(_slabs_of, geo, threads), partial(_panels_of, geo)
    # The panel shares L2 with the next one, which is being prefetched, and with the input: on
    # Golden Cove 0.95 of it stream at the speed of L2, 1.07 at that of L3.
    near = _level(core, threads, lambda n: 2 * panels_of(n) * panel + slabs_of(n) * slab) in (1, 2)
    # The result and the next panel pass through the level too (a slab of 1.7 of 2 MiB costs 6 % on
    # the 224x224 layers of VGG).
    held = _level(core, threads, lambda n: 1.5 * slabs_of(n) * slab + 2 * panels_of(n) * panel)
    return (
        2 if near and core.cache(2) else _beyond(core),
        held or _beyond(core),
        _level(core, threads, lambda n: weights + slabs_of(n) * slab),
    )


def _level(core: Core, threads: int, size: Callable[[int], float]) -> int:
    """Return the first level that holds the `size(n)` bytes of the n threads that share it."""
    for cache in core.caches:
        if size(min(cache.shared_by, threads)) <= cache.bytes:
            return cache.level
    return 0


def _slabs_of(geo: DirectGeometry, threads: int, sharers: int) -> int:
    """Slabs that `sharers` threads use at a time: in "channels" order it is the image for all."""
    own = geo.config.loop_order == "rows" or geo.workload.n % threads == 0
    return sharers if own else 1


def _panels_of(geo: DirectGeometry, sharers: int) -> int:
    """Weight panels that `sharers` threads use at a time: in "rows" order all use the same."""
    return 1 if geo.config.loop_order == "rows" else sharers


def _beyond(core: Core) -> int:
    """Return the level behind L2: memory on most boards."""
    return 3 if core.cache(3) else 0


def _beyond_l2(core: Core, level: int) -> float:
    """Cycles per byte that a stream from a level adds to the FMAs; L1 and L2 are hidden."""
    return 0.0 if level in (1, 2) else 1.0 / bytes_per_cycle(core, level)


def _input_bytes(workload: Conv2dWorkload) -> int:
    return workload.n * workload.ci * workload.h * workload.w * workload.item_bytes


def _placed(
    core: Core, operand: str, level: int, size: int, threads: int
) -> tuple[str, int, int, float]:
    """Return an entry of the footprint: operand, level, bytes and fraction of the level."""
    share = share_bytes(core, level, threads)
    return operand, level, size, size / share if share else 0.0


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
    return min(rows, geo.padded_size[0]) * geo.padded_size[1] * w.ci * w.item_bytes


def _block_input_bytes(geo: DirectGeometry) -> int:
    """Input that one block of C reads."""
    w, c = geo.workload, geo.config
    rows = (c.tile_h - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1
    columns = (c.tile_w - 1) * w.stride[1] + (w.kw - 1) * w.dilation[1] + 1
    used = min(rows * columns, c.tile_h * c.tile_w * w.kh * w.kw)
    return used * geo.ci_group * w.item_bytes


def _call_cycles(
    geo: DirectGeometry,
    kernel: Microkernel,
    core: Core,
    k_steps: int,
    streamed: float,
    exposed: float,
) -> dict[str, float]:
    """Cycles of all micro-kernel calls of the layer on one thread, by what limits them.

    `exposed` is the share of the operands' arrival that shows although it is prefetched.

    Operands take `streamed` cycles to arrive from beyond L1 during a call of a whole block.
    """
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
    total = {"fma": 0.0, "loads and edges": 0.0, "L2": 0.0, "epilogue": 0.0}
    for columns, tiles in ((c.nr, geo.tiles - 1), (cut_columns, 1)):
        vectors = math.ceil(columns / kernel.lanes)
        for count, rows in shapes:
            number = count * tiles * w.n * w.groups
            if number == 0:
                continue
            a_loads = rows / kernel.lanes if kernel.loads_a_vectors else rows
            in_flight = calls_in_flight(core, rows, vectors, k_steps)
            issue = k_steps * step_cycles(core, rows, vectors, a_loads, in_flight)
            useful = k_steps * rows * columns / kernel.lanes / core.fma_per_cycle / FMA_EFFICIENCY
            total["fma"] += number * useful
            total["loads and edges"] += number * (issue - useful)
            arrival = streamed * vectors * kernel.lanes / c.nr
            total["L2"] += number * (max(0.0, arrival - issue) + exposed * arrival)
            stores = rows * vectors / core.stores_per_cycle
            total["epilogue"] += number * (CALL_CYCLES / in_flight + 1.5 * stores)
    return total


def _padding_cycles(geo: DirectGeometry, core: Core, threads: int) -> float:
    """Cycles of copying the padded input, all slabs.

    Per vector: 2.5 where the slab about fits into L1, 6 in half of L2, 10 in "channels" order,
    whose copy is a pass of its own, 25 beyond (measured on Golden Cove).
    """
    w, c = geo.workload, geo.config
    if not any(w.padding):
        return 0.0
    rows = c.loop_order == "rows"
    slabs = math.ceil(geo.tiles_h / c.oh_block) if rows else 1
    size = _slab_bytes(geo)
    if 2 * size > share_bytes(core, 2, threads):
        per_vector = 25.0
    elif not rows:
        per_vector = 10.0
    else:
        per_vector = 2.5 if size <= 2 * share_bytes(core, 1, threads) else 6.0
    return size * slabs * w.n / (core.vector_bits / 8) * per_vector
