"""Predicted time of a depthwise convolution: a register tile's loads and FMAs, cache traffic.

The paper (Zhang, Lo, Lu, "High Performance Depthwise and Pointwise Convolutions on Mobile
Devices", AAAI 2020, section "High Performance DWConv and PWConv", equation 1) keeps a tile of
outputs in registers over the whole kernel and judges it by its arithmetic intensity, FLOPs per
byte between L1 and the registers: filter, output stores and input loads. It loads one input vector
per FMA. Here the FMAs are ordered by input pixel: every vector of the window is loaded once and
meets all the outputs that it contributes to: (th - 1) * sh + (kh - 1) * dh + 1 rows, columns alike
(fewer where strides or dilations leave gaps). The filter stays in registers from tile to tile. So
intensity by itself, which only grows with the tile, decides nothing: the same loads are counted as
cycles (`loads_per_fma`) beside FMAs, latency, edges and traffic. Operational intensity, FLOPs per
byte between the caches, is what the loops outside the tile decide: an image row is fetched again by
the next row of tiles unless L1 still holds it.
"""

from __future__ import annotations

import math

from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_depthwise.geometry import DepthwiseGeometry
from tvm_blislike.cost_models.issue import CALL_CYCLES, FMA_EFFICIENCY, LOAD_EFFICIENCY
from tvm_blislike.cost_models.moving import (
    BY_TURNS,
    bytes_per_cycle,
    level_holding,
    placed,
    share_bytes,
)
from tvm_blislike.cost_models.roofline import finish, fork_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels.products import groups
from tvm_blislike.model.estimate import Estimate, Placed
from tvm_blislike.model.workload import Conv2dWorkload

# Registers that LLVM fills beside accumulators and filter: pixels loaded ahead, the epilogue's
# constants. With fewer it spills (counted in its code for AVX-512, 2x7 clean and 2x8 not).
SPARE_REGISTERS = 8
# The same where columns are mixed: rows of them, the order of the bytes (counted for AVX-512 VNNI:
# 1x14 clean and 2x8 not, of 5x5 kernels 1x8 clean and 1x10 not).
SPARE_BESIDE_MIXED = 14
# NEON, where every pixel takes a register: filter vectors that stay in registers beside a tile;
# columns of a tile (1x7 and 1x10 spill).
LOADED_FILTER_REGISTERS = 9
LOADED_COLUMNS = 6
# FMAs that one reload of a filter vector serves when it has no register (AVX2 and NEON code).
FMAS_PER_RELOAD = 3.0
# Pixels at the stride of an NHWC image: their lines share sets, and each tile reads part of a line
# run (Golden Cove: 25 to 50 % more time than blocks of channels, where there is a choice).
STRIDE_LOSS = 0.3
# Neighbouring tiles that an out-of-order core works on at a time.
IN_FLIGHT = 2.0
# Of memory traffic and arithmetic the smaller one is not hidden completely.
OVERLAP_LOSS = 0.1


def accumulators(workload: Conv2dWorkload, core: Core, ks: int = 1) -> int:
    """Return the largest tile, in pixels, whose code stays free of spills.

    The filter takes a register for each column and group of ks rows.

    A filter that would leave less than a quarter of the registers does not get one for each of
    its vectors: half of the registers accumulate.
    """
    registers = core.vector_registers
    if not core.isa.memory_operand:
        return _loaded_accumulators(workload, core)
    filters = workload.kd * groups(workload.kh, ks) * workload.kw
    if ks > 1:
        return max(1, registers - filters - SPARE_BESIDE_MIXED)
    room = registers - filters - SPARE_REGISTERS
    return room if room >= registers // 4 else registers // 2 - 1


def _loaded_accumulators(workload: Conv2dWorkload, core: Core) -> int:
    """Return the same where every pixel takes a register, counted in LLVM's code for NEON.

    3x3 tiles of 12 pixels are clean with stride 1, of 10 with stride 2; LLVM moves loads further
    apart for cores that issue in order, which takes two registers more. A filter that does not fit
    is loaded again and again: then the smallest tiles spill least.
    """
    if workload.kd * workload.kh * workload.kw > LOADED_FILTER_REGISTERS:
        return 8
    return 10 if core.in_order or max(workload.stride) > 1 else 12


def widest(core: Core) -> int:
    """Return the columns that a tile may have: where pixels take registers longer rows spill."""
    return core.vector_registers if core.isa.memory_operand else LOADED_COLUMNS


def _channels(workload: Conv2dWorkload) -> int:
    """Input channels of a group: a depthwise sum each (`schedules.conv2d_grouped`)."""
    return workload.ci // workload.groups


def _sums(workload: Conv2dWorkload) -> int:
    """Return the sums that a result has, of channels or of slices of a kernel."""
    return _channels(workload) * workload.kd


def window_loads(workload: Conv2dWorkload, tile_h: int, tile_w: int) -> int:
    """Return the distinct input pixels that a tile of outputs reads."""
    rows = _positions(tile_h, workload.stride[0], workload.kh, workload.dilation[0])
    columns = _positions(tile_w, workload.stride[1], workload.kw, workload.dilation[1])
    return rows * columns


def _positions(outputs: int, stride: int, kernel: int, dilation: int) -> int:
    return len({i * stride + r * dilation for i in range(outputs) for r in range(kernel)})


def columns_mixed(workload: Conv2dWorkload, tile_h: int, tile_w: int, ks: int) -> int:
    """Return the vectors of ks pixels of a column that a tile of outputs mixes in registers."""
    columns = _positions(tile_w, workload.stride[1], workload.kw, workload.dilation[1])
    return tile_h * groups(workload.kh, ks) * columns


def loads_per_fma(workload: Conv2dWorkload, tile_h: int, tile_w: int, core: Core) -> float:
    """Return vector loads over FMAs of one tile, the filter's share without a register included."""
    taps, outputs = workload.kh * workload.kw, tile_h * tile_w
    missing = max(0, workload.kd * taps + outputs + SPARE_REGISTERS - core.vector_registers)
    reloads = min(missing, taps) * outputs / FMAS_PER_RELOAD
    pixels = window_loads(workload, tile_h, tile_w) * _loads_per_pixel(
        workload, core.lanes(workload.types.acc)
    )
    return (pixels + reloads) / (outputs * taps)


def _loads_per_pixel(workload: Conv2dWorkload, lanes: int) -> int:
    """Load instructions for one pixel's vector: a multiplier of odd phase takes one per lane."""
    if _channels(workload) > 1:
        return 1
    times = workload.co // workload.ci
    return 1 if times % lanes == 0 or lanes % times == 0 else 2 * lanes


def workspace_bytes(workload: Conv2dWorkload, config: DepthwiseConfig, threads: int) -> int:
    """Return the bytes of the padded image, 0 where borders are split off instead."""
    geo = DepthwiseGeometry(workload, config)
    if not geo.copies:
        return 0
    return workload.types.a_bytes * workload.n * workload.ci * math.prod(geo.padded_size)


def estimate(
    workload: Conv2dWorkload, config: DepthwiseConfig, core: Core, threads: int
) -> Estimate:
    """Predict the time of one call, with its breakdown."""
    vectors = workload.od * math.ceil(workload.co / config.nr)
    chunks = math.ceil(workload.oh / config.tile_h) if config.loop_order == "rows" else vectors
    share = math.ceil(chunks / threads) / chunks
    cycles = _tile_cycles(workload, config, core, vectors * share)
    busy = cycles["fma"] + cycles["loads"] + cycles["edges"] + cycles["epilogue"]
    moving, footprint = _traffic(workload, config, core, threads)
    # Prefetched streams overlap with arithmetic: what exceeds it costs time.
    moving *= share
    cycles["traffic"] = max(0.0, moving - busy) + OVERLAP_LOSS * min(moving, busy)
    if config.data_layout == "NHWC" and workload.ci % core.lanes(workload.types.acc) == 0:
        cycles["strides"] = STRIDE_LOSS * max(busy, moving)
    copied = workspace_bytes(workload, config, threads)
    cycles["packing"] = 2 * copied * share / bytes_per_cycle(core, 2)
    cycles["fork"] = fork_cycles(core) if threads > 1 else 0.0
    return finish(core, threads, workload, cycles, footprint)


def _tile_cycles(
    workload: Conv2dWorkload, config: DepthwiseConfig, core: Core, vectors: float
) -> dict[str, float]:
    """Cycles of the tiles of `vectors` vectors of channels, by what they go to."""
    pixels = workload.oh * workload.ow
    taps = workload.kh * workload.kw * _sums(workload)
    sums = math.ceil(config.nr / core.lanes(workload.types.acc))
    fma = sums * taps / config.ks / (core.fma_per_cycle * FMA_EFFICIENCY)
    whole = _vector_cycles(workload, config.tile_h, config.tile_w, config.ks, core, sums)
    exact = sum(
        count * rows * columns * _vector_cycles(workload, rows, columns, config.ks, core, sums)
        for rows, columns, count in tile_sizes(workload, config)
    )
    tiles = sum(count for _, _, count in tile_sizes(workload, config))
    return {
        "fma": vectors * pixels * fma,
        "loads": vectors * max(0.0, min(exact, pixels * whole) - pixels * fma),
        "edges": vectors * max(0.0, exact - pixels * whole),
        "epilogue": vectors * tiles * CALL_CYCLES / (1.0 if core.in_order else IN_FLIGHT),
    }


def _grouped_cycles(
    workload: Conv2dWorkload, rows: int, columns: int, ks: int, core: Core
) -> float:
    """Cycles for one vector of outputs in a tile whose multiply-adds take ks rows of the kernel."""
    dots = groups(workload.kh, ks) * workload.kw
    mixed = columns_mixed(workload, rows, columns, ks) / (rows * columns)
    # A vector of ks loaded rows takes ks - 1 to join them and one to mix.
    busy = (dots + ks * mixed) / (core.fma_per_cycle * FMA_EFFICIENCY)
    loads = ks * mixed / (core.loads_per_cycle * LOAD_EFFICIENCY)
    return max(busy, loads, dots * core.fma_latency / (IN_FLIGHT * rows * columns))


def _vector_cycles(
    workload: Conv2dWorkload, rows: int, columns: int, ks: int, core: Core, sums: int = 1
) -> float:
    """Cycles for one vector of outputs, so many registers, in a tile: FMAs, loads, or latency."""
    if ks > 1:
        return _grouped_cycles(workload, rows, columns, ks, core)
    taps = workload.kh * workload.kw * _sums(workload)
    permutations = 0.0
    if _channels(workload) > 1:
        # One for each pixel and channel of the group, on a port that FMAs use as well.
        pixels = window_loads(workload, rows, columns) / (rows * columns)
        permutations = _channels(workload) * pixels
    products = float(sums * taps)
    if not workload.types.is_uniform:
        # A product and a sum each, and a pixel is widened where it is loaded, once for all sums.
        widened = workload.kd * window_loads(workload, rows, columns)
        products = 2 * products + widened / (rows * columns)
    fma = (products + permutations) / (core.fma_per_cycle * FMA_EFFICIENCY)
    loads = taps * loads_per_fma(workload, rows, columns, core)
    loads /= core.loads_per_cycle * LOAD_EFFICIENCY
    latency = taps * core.fma_latency / (IN_FLIGHT * rows * columns * sums)
    return max(fma, loads, latency)


def tile_sizes(workload: Conv2dWorkload, config: DepthwiseConfig) -> list[tuple[int, int, int]]:
    """Return (rows, columns, count) of whole and cut tiles."""
    return [
        (rows, columns, count_h * count_w)
        for rows, count_h in _parts(workload.oh, config.tile_h)
        for columns, count_w in _parts(workload.ow, config.tile_w)
    ]


def _parts(size: int, tile: int) -> list[tuple[int, int]]:
    whole, cut = divmod(size, tile)
    return [(tile, whole)] * (whole > 0) + [(cut, 1)] * (cut > 0)


def _foreign_bytes(config: DepthwiseConfig, core: Core, threads: int, image_in: int) -> float:
    """Return the bytes of the input that lie in other cores' caches.

    Layers before this one split large images by rows and small ones by channels. Golden Cove, two
    threads: 128 channels of 56x56 take 37 us by rows and 61 by channels, 512 of 14x14 28 and 15.
    """
    private = core.cache(2)
    if private is None or private.shared_by >= threads:
        return 0.0
    came_by_rows = image_in > private.bytes // 2
    goes_by_rows = config.loop_order == "rows"
    return 0.0 if came_by_rows == goes_by_rows else image_in * (threads - 1) / threads


def _traffic(
    workload: Conv2dWorkload, config: DepthwiseConfig, core: Core, threads: int
) -> tuple[float, tuple[Placed, ...]]:
    """Cycles that one core's caches need to move all of input and output, and where they lie."""
    w = workload
    image_in = w.types.a_bytes * w.n * w.ci * w.h * w.w
    image_out = w.types.out_bytes * w.od * w.co * w.oh * w.ow
    channels = w.ci if config.loop_order == "rows" else min(config.nr, w.ci)
    row = w.types.a_bytes * w.w * channels
    reach = (config.tile_h - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1
    window = reach * row
    # What the next row of tiles reads again comes from L2 unless L1 kept it.
    again = max(0.0, reach / (config.tile_h * w.stride[0]) - 1)
    kept = window <= 0.75 * share_bytes(core, 1, threads)
    # A thread keeps its own part of both images from one layer to the next.
    level = level_holding(core, (image_in + image_out) // threads, threads)
    near = level in (1, 2)
    rate = bytes_per_cycle(core, 2) if near else BY_TURNS * bytes_per_cycle(core, level)
    # A line of output is read before it is written.
    cycles = (image_in + 2 * image_out) / rate
    cycles += 0.0 if kept else again * image_in / bytes_per_cycle(core, 2)
    foreign = _foreign_bytes(config, core, threads, image_in)
    cycles += foreign / (bytes_per_cycle(core, 3) * BY_TURNS)
    sizes = (("input rows", window), ("input", image_in), ("output", image_out))
    return cycles, tuple(placed(core, name, size, threads) for name, size in sizes)
