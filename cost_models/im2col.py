"""Configurations of the im2col convolution and their predicted time.

The slicing analysis (`slicing`) says how many channels fit into L1 and how many filters into L2;
beside its N_c all channels at once are a candidate, and so are some numbers in between: partial
sums cost a load and a store of C per set of channels, panels beyond L1 cost next to nothing as
long as L2 holds them, since 8x48 blocks draw 19 of the 36 bytes a cycle that L2 delivers.

Where the operands live:

- "IS": a panel of windows stays while a set of `mc` filters passes by, from L2 or beyond;
- "WS": a panel of filters stays while all panels of a block of rows pass by;
- all filters pass at least once per block of rows: few blocks where filters exceed L2.

A layer of a model has neighbours that want NCHWc: unless it reads the model's input, moving its
input and its output is a part of its price.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tvm_blislike.config import Config
from tvm_blislike.cost_models.im2col_geometry import (
    FILTERS,
    ITEM_BYTES,
    SHIFT,
    Im2colGeometry,
)
from tvm_blislike.cost_models.roofline import (
    CALL_CYCLES,
    FMA_EFFICIENCY,
    FORK_JOIN_CYCLES,
    NEIGHBOURS,
    Estimate,
    bytes_per_cycle,
    finish,
    level_holding,
    share_bytes,
    step_cycles,
)
from tvm_blislike.cost_models.slicing import (
    INPUT_STATIONARY,
    WEIGHT_STATIONARY,
    line_bytes,
    slicings,
)
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, get_kernel, kernel_name, kernels_for
from tvm_blislike.workload import Conv2dWorkload

# Part of L2 that may be planned for: the result and the next operands pass through the rest.
L2_PLANNED = 0.7
# Share of a stream from beyond L2 that shows although the FMAs of the same pass run meanwhile.
EXPOSED = 0.4
# Vectors that packing a channel may write out per kernel tap: code, compiled once for each.
MOST_COPIES = 160
# Steps of k that a set of channels should have besides N_c: sums are then moved rarely.
DEPTHS = (288, 576, 1152)
# Cycles of a vector copied into a panel, and of a cache line that panels occupy (Golden Cove: 3x3
# on 56x56 takes 4.7 per line, on 14x14, in vectors of 8 lanes, 8).
COPY_CYCLES = 2.5
LINE_CYCLES = 2.5
# Cycles of a vector of the slab, and of one that parts columns of stride 2 or more.
SLAB_CYCLES = 4.0
PART_CYCLES = 7.0
# Cycles per vector of moving an image to another layout and back, from L2.
MOVE_CYCLES = 8.0
# Images of fewer channels are a model's input, which is NCHW.
FEW_CHANNELS = 8


def applies(workload: Conv2dWorkload, _core: Core) -> str:
    """Return "" for fp32 convolutions of one group, else the reason."""
    if workload.dtype != "float32":
        return f"no {workload.dtype} micro-kernels"
    if workload.groups > 1:
        return "only for one group"
    return ""


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[Config]:
    """Yield the configurations worth estimating."""
    pixels = workload.oh * workload.ow
    for kernel in _kernels(workload, core):
        depths = _depths(workload, kernel, core, threads)
        for rows in _block_rows(workload, kernel):
            if kernel.nr >= min(pixels, rows * workload.ow) + kernel.lanes:
                continue
            for channels in depths:
                yield from _ordered(workload, kernel, rows, channels, core, threads)


def _kernels(workload: Conv2dWorkload, core: Core) -> Iterator[Microkernel]:
    """Per width the tallest kernel, and the one that cuts the filters into equal tiles.

    Two registers stay free: with fewer LLVM spills at times, unless the loop is not LLVM's.
    """
    by_width: dict[int, list[Microkernel]] = {}
    for kernel in kernels_for(core.isa, workload.dtype, panels=True):
        spare = kernel.panels_only or kernel.registers + 2 <= core.vector_registers
        if spare and kernel.mr <= workload.co:
            by_width.setdefault(kernel.nr, []).append(kernel)
    for kernels in by_width.values():
        tallest = max(kernels, key=lambda k: k.mr)
        even = math.ceil(workload.co / math.ceil(workload.co / tallest.mr))
        yield from (k for k in kernels if k.mr in (even, tallest.mr))


def _block_rows(workload: Conv2dWorkload, kernel: Microkernel) -> Iterator[int]:
    """Heights of blocks: divisors of the image's, so that all blocks are alike."""
    for rows in range(1, workload.oh + 1):
        if workload.oh % rows == 0 and is_short(workload, kernel, rows):
            yield rows


def is_short(workload: Conv2dWorkload, kernel: Microkernel, rows: int) -> bool:
    """Whether the code that packs a block of rows is short enough to compile."""
    return rows == 1 or _copies(workload, kernel, rows) < MOST_COPIES


def _copies(workload: Conv2dWorkload, kernel: Microkernel, rows: int) -> float:
    """Vectors that packing a row of k writes: panels and rows of the image both end pieces."""
    width, pixels = workload.ow, rows * workload.ow
    lanes = min(kernel.lanes, 1 << (width.bit_length() - 1))
    if workload.kh * workload.kw == 1 and workload.stride == (1, 1) and not any(workload.padding):
        return pixels / kernel.lanes
    return rows * math.ceil(width / lanes) + pixels / kernel.nr


def _depths(
    workload: Conv2dWorkload, kernel: Microkernel, core: Core, threads: int
) -> tuple[int, ...]:
    """Channels in a set: N_c of the slicing analysis, all of them, and some in between."""
    taps = workload.kh * workload.kw
    n_c = slicings(workload, core, kernel.mr, kernel.nr, threads=threads)[0].n_c
    divisors = [c for c in range(1, workload.ci + 1) if workload.ci % c == 0]
    wanted = {n_c, workload.ci, *(max(1, depth // taps) for depth in DEPTHS)}
    return tuple(sorted({max(d for d in divisors if d <= w) for w in wanted if w <= workload.ci}))


def _ordered(
    workload: Conv2dWorkload,
    kernel: Microkernel,
    rows: int,
    channels: int,
    core: Core,
    threads: int,
) -> Iterator[Config]:
    """Yield both orders and packings, with the filters of a set: K2, or a thread's share."""
    tiles = math.ceil(workload.co / kernel.mr)
    filters = kernel.mr * channels * workload.kh * workload.kw * ITEM_BYTES
    in_l2 = max(1, int(L2_PLANNED * _l2(core, threads) / 2 // filters))
    for order in (INPUT_STATIONARY, WEIGHT_STATIONARY):
        blocks = {tiles, math.ceil(tiles / threads)}
        if order == INPUT_STATIONARY and in_l2 < tiles:
            blocks.add(math.ceil(tiles / math.ceil(tiles / in_l2)))
        for block, packing in itertools.product(sorted(blocks), packings(workload, kernel)):
            yield Config(
                "conv2d_im2col",
                mr=kernel.mr,
                nr=kernel.nr,
                mc=block * kernel.mr,
                kc=channels * workload.kh * workload.kw,
                loop_order=order,
                data_layout="NCHW",
                out_layout="NCHW",
                oh_block=rows,
                packing=packing,
            )


def packings(workload: Conv2dWorkload, kernel: Microkernel) -> tuple[str, ...]:
    """Ways to pack: shifts where a row holds a vector, and two vectors hold a row of the kernel."""
    reach = (workload.kw - 1) * workload.dilation[1]
    shifts = workload.stride[1] == 1 and 0 < reach < kernel.lanes <= workload.ow
    return ("", SHIFT) if shifts else ("",)


def estimate(workload: Conv2dWorkload, config: Config, core: Core, threads: int) -> Estimate:
    """Predict the time of one layer, with what its neighbours' layouts cost.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of a panel of windows, of a block of rows, and of all
        filters per cache level.
    """
    geo = Im2colGeometry(workload, config)
    kernel = get_kernel(kernel_name(core.isa, config.mr, config.nr, workload.dtype))
    loop = geo.parallel_loop(threads)
    share = geo.share(loop, threads) if loop else 1.0
    # Threads that divide the filters pack all windows each.
    packed = 1.0 if loop == FILTERS else share
    cycles = {name: value * share for name, value in _calls(geo, kernel, core).items()}
    cycles["sums"] = _sums_cycles(geo, core, threads) * share
    busy = sum(cycles.values())
    stream = _stream_cycles(geo, core, threads, share)
    cycles["beyond L2"] = max(stream - (1 - EXPOSED) * busy, EXPOSED * stream)
    cycles["packing"] = _packing_cycles(geo, core, threads) * packed
    cycles[NEIGHBOURS] = _layout_cycles(workload, core, threads) / threads
    cycles["fork"] = FORK_JOIN_CYCLES if loop else 0.0
    panel = geo.panels_bytes // geo.tiles_n
    sizes = (("panel", panel), ("block", geo.panels_bytes), ("filters", _filters_bytes(geo)))
    footprint = tuple(_placed(core, name, size, threads) for name, size in sizes)
    return finish(core, threads, workload, cycles, footprint)


def workspace_bytes(workload: Conv2dWorkload, config: Config, threads: int) -> int:
    """Return the size of panels, partial sums and padded rows of all threads."""
    geo = Im2colGeometry(workload, config)
    sums = geo.sums_bytes
    if geo.parallel_loop(threads) == FILTERS:
        sums = math.ceil(sums * geo.block_m / geo.tiles_m)
    return threads * (geo.panels_bytes + sums + geo.slab_bytes)


def _l2(core: Core, threads: int) -> int:
    return share_bytes(core, 2, threads) or share_bytes(core, 1, threads)


def _filters_bytes(geo: Im2colGeometry) -> int:
    return ITEM_BYTES * math.prod(geo.packed_shape)


def _placed(core: Core, name: str, size: int, threads: int) -> tuple[str, int, int, float]:
    level = level_holding(core, size, threads)
    share = share_bytes(core, level, threads)
    return name, level, size, size / share if share else 0.0


def _calls(geo: Im2colGeometry, kernel: Microkernel, core: Core) -> dict[str, float]:
    """Cycles of all micro-kernel calls on one thread, by what limits them."""
    w, c = geo.workload, geo.config
    rows = [(geo.tiles_m - 1, c.mr), (1, w.co - (geo.tiles_m - 1) * c.mr)]
    columns = [(geo.tiles_n - 1, c.nr), (1, geo.pixels - (geo.tiles_n - 1) * c.nr)]
    total = {"fma": 0.0, "loads and edges": 0.0, "L2": 0.0, "calls": 0.0}
    blocks = w.n * geo.blocks_h
    for count_m, height in rows:
        for count_n, width in columns:
            number = blocks * count_m * count_n
            vectors = math.ceil(width / kernel.lanes)
            a_loads = kernel.a_loads(height, "panel", core.in_order)
            issue = geo.k * step_cycles(core, height, vectors, a_loads)
            useful = geo.k * height * width / kernel.lanes / core.fma_per_cycle / FMA_EFFICIENCY
            arrival = geo.k * _l2_bytes(geo, core, vectors * kernel.lanes)
            stores = height * vectors / core.stores_per_cycle
            total["fma"] += number * useful
            total["loads and edges"] += number * max(0.0, issue - useful)
            total["L2"] += number * max(0.0, arrival / bytes_per_cycle(core, 2) - issue)
            total["calls"] += number * (geo.sets * CALL_CYCLES + 1.5 * stores)
    return total


def _l2_bytes(geo: Im2colGeometry, core: Core, width: int) -> float:
    """Bytes from L2 per step of k: the panel that passes by, and the other if L1 is too small."""
    c, steps = geo.config, geo.channels * geo.taps
    passes, stays = (c.mr, width) if c.loop_order == INPUT_STATIONARY else (width, c.mr)
    crowded = ITEM_BYTES * steps * (c.mr + width) > share_bytes(core, 1, 1)
    return ITEM_BYTES * (passes + (stays if crowded else 0))


def _sums_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles of partial sums: zeros, a load and a store per set of channels, and the epilogue."""
    if geo.sets == 1:
        return 0.0
    vectors = geo.workload.n * geo.blocks_h * geo.sums_bytes / (core.vector_bits / 8)
    near = geo.sums_bytes <= share_bytes(core, 1, threads) / 2
    beyond = geo.sums_bytes > L2_PLANNED * _l2(core, threads)
    return vectors * (geo.sets + 1) * (2.0 if near else 8.0 if beyond else 3.0)


def _stream_cycles(geo: Im2colGeometry, core: Core, threads: int, share: float) -> float:
    """Cycles of one thread's traffic beyond L2: filters of each pass, panels that L2 cannot hold.

    The first pass over the filters finds them in memory, as everywhere else in a model.
    """
    room = L2_PLANNED * _l2(core, threads)
    filters = _filters_bytes(geo)
    own = filters * (share if geo.parallel_loop(threads) == FILTERS else 1.0)
    far = 3 if core.cache(3) else 0
    blocks = geo.workload.n * geo.blocks_h * (share if own == filters else 1.0)
    one_set = own / geo.sets
    panel, block = geo.panels_bytes / geo.tiles_n, geo.panels_bytes
    if geo.config.loop_order == INPUT_STATIONARY:
        part = one_set * geo.block_m / geo.tiles_m
        per_block = geo.tiles_n if part + panel > room else 1
        panel_reads = geo.blocks_m if block + part > room else 0
    else:
        per_block = 1
        panel_reads = geo.tiles_m if block > room else 0
    stays = own + block <= room
    passes = 1.0 if stays else max(1.0, blocks * per_block)
    cycles = own / bytes_per_cycle(core, 0) + (passes - 1) * own / bytes_per_cycle(core, far)
    return cycles + blocks * geo.sets * panel_reads * block / bytes_per_cycle(core, far)


def _packing_cycles(geo: Im2colGeometry, core: Core, threads: int) -> float:
    """Cycles of copying all windows, and of padding or parting rows before."""
    w, c = geo.workload, geo.config
    blocks = w.n * geo.blocks_h
    kernel = get_kernel(kernel_name(core.isa, c.mr, c.nr, w.dtype))
    lines = geo.panels_bytes * geo.sets / 64
    beyond = geo.panels_bytes > L2_PLANNED * _l2(core, threads)
    work = _copy_cycles(geo, kernel, core) * geo.k * _copies(w, kernel, geo.rows)
    work += LINE_CYCLES * lines * (4.0 if beyond else 1.0)
    if geo.has_slab:
        rows, phases, columns = geo.slab_size
        vectors = w.ci * rows * phases * math.ceil(columns / kernel.lanes)
        work += vectors * (PART_CYCLES if w.stride[1] > 1 else SLAB_CYCLES)
    image = w.n * w.ci * w.h * w.w * ITEM_BYTES
    source = level_holding(core, image, threads)
    arrival = 0.0 if source in (1, 2) else EXPOSED * image / bytes_per_cycle(core, source)
    return blocks * work + arrival


def _copy_cycles(geo: Im2colGeometry, kernel: Microkernel, core: Core) -> float:
    """Cycles of a vector copied into a panel: what a shift saves are loads, not stores.

    Golden Cove with 64-byte vectors, seven 3x3 and 5x5 layers from 14x14 to 224x224, the sides
    taking turns: shifts took 0.98 to 1.02 of the layer's time with plain loads. It stores one
    vector a cycle, and unaligned loads, which cross a line each, still come as fast as that. Where
    a load takes two cycles (Cortex-A53 and A55), loads limit, and shifts are predicted to help.
    """
    if not geo.shifts:
        return COPY_CYCLES
    bytes_ = ITEM_BYTES * kernel.lanes
    loads = (1 + bytes_ / line_bytes(core)) / core.loads_per_cycle
    stores = 1 / core.stores_per_cycle
    # Shifts of 32-byte vectors are two instructions; one of the x86 ports has them.
    pipes = core.fma_per_cycle if core.isa == "neon" else 1 if bytes_ == 64 else 0.5
    taps = geo.workload.kw
    shifted = max(loads / taps, stores, (taps - 1) / taps / pipes)
    return COPY_CYCLES * shifted / max(loads, stores)


def _layout_cycles(workload: Conv2dWorkload, core: Core, threads: int) -> float:
    """Cycles of moving input and output between NCHW and the neighbours' layout."""
    w = workload
    moved = w.co * w.oh * w.ow + (w.ci * w.h * w.w if w.ci >= FEW_CHANNELS else 0)
    level = level_holding(core, w.n * moved * ITEM_BYTES, threads)
    far = 2.0 if level not in (1, 2) else 1.0
    return MOVE_CYCLES * far * w.n * moved / core.lanes(w.dtype)
