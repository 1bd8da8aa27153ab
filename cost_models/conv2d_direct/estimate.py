"""Predicted time of the direct convolution.

Where the operands live (per thread, "rows" and "channels" order alike):

- the block of C in registers;
- the weight panel of one tile of nr channels (K x nr) in L1 if it fits beside the input, else it
  streams from L2 once per block of C. The prefetchers hide nearly all of that stream up to what L2
  delivers: of 36 bytes a cycle 14x32 (9) and 6x64 (21) hardly notice, 2x128 (64) does;
- the slab of the input in L2, so that every tile of channels rereads it there; larger slabs are
  reread from L3, and the time of that adds to the time of the FMAs;
- all weights in L2, L3 or memory: they pass once per slab, which adds too (7x7 images).
"""

from __future__ import annotations

import functools

from tvm_blislike.cost_models.conv2d_direct.calls import cycles_of_calls
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.cost_models.conv2d_direct.operands import (
    block_input_bytes,
    copy_bytes,
    input_bytes,
    levels,
    slab_bytes,
)
from tvm_blislike.cost_models.issue import call_cycles
from tvm_blislike.cost_models.moving import (
    L2_BUSY_LOSS,
    apart_cycles,
    beyond_l2,
    beyond_l2_cycles,
    bytes_per_cycle,
    l2_bytes,
    late_share,
    level_holding,
    line_cycles,
    lost_share,
    missing_share,
    placed,
    share_bytes,
    vector_cycles,
    waits_for_rows,
    weights_cycles,
)
from tvm_blislike.cost_models.roofline import ROUNDED_DOWN, clock_hz, finish, fork_cycles
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of
from tvm_blislike.model.estimate import Estimate
from tvm_blislike.model.workload import Conv2dWorkload

# Share of panels on their way from beyond L2 that shows as well (Zen 4: next to nothing).
EXPOSED = 0.1
# Share of the weights' way from memory that computation hides where L2 is not busy. 512 channels
# of 7x7 pixels to 2048 on Golden Cove: 14x32 blocks, a quarter of whose time L2 is busy, hide 0.6
# (9.4 MB add 0.36 ms), 4x64 blocks half of that.
WEIGHTS_HIDDEN = 0.7
# The same of an image that passes through L2 in slabs, as of one that Winograd transforms.
IMAGE_HIDDEN = 0.85
# Part of L2 that is there for what the layer before has written.
L2_PLANNED = 0.7
# Cycles that a line of a result beyond L2 takes longer where the next ones in memory are not stored
# soon, by blocks of channels each in a pass of its own over the image (NHWC). 256 channels of 56x56
# pixels by tiles: 0.28 ms, by slabs of four rows 0.20.
FAR_LINE_CYCLES = 4.0


def estimate(workload: Conv2dWorkload, config: DirectConfig, core: Core, threads: int) -> Estimate:
    """Predict the time of one layer.

    Returns
    -------
    Estimate
        Cycles by cause; the footprint of panel, slab and weights per cache level.
    """
    geo = DirectGeometry(workload, config)
    kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
    k_steps = geo.k_groups
    panel = k_steps * config.ks * config.nr * workload.types.b_bytes
    slab = slab_bytes(geo)
    weights = panel * geo.tiles * workload.groups
    panel_level, slab_level, weight_level = levels(geo, core, threads, panel, slab, weights)
    lost = _lost_share(geo, core, kernel, threads, panel)
    streamed = block_input_bytes(geo) + lost * panel
    arrival = streamed / bytes_per_cycle(core, panel_level)
    exposed = 0.0 if panel_level == 2 else EXPOSED
    apart = _apart_cycles(geo, kernel, core, panel)
    calls = cycles_of_calls(geo, kernel, core, k_steps, arrival, exposed, apart)
    tiles = geo.tiles * workload.groups
    slabs, share = workload.n * geo.slabs, geo.busiest_share(threads)
    cycles = {name: value * share for name, value in calls.items()}
    cycles["strides"] = sum(cycles.values()) * _stride_loss(workload, config, core)
    passes = slabs * share if config.loop_order == "rows" else slabs
    once = weights * (share if config.loop_order != "rows" else 1.0)
    hidden = WEIGHTS_HIDDEN * (1 - L2_BUSY_LOSS * _l2_share(geo, kernel, core, k_steps, arrival))
    compute = sum(cycles.values()) / passes
    first = once / bytes_per_cycle(core, 0)
    later = 0.0 if weight_level in (1, 2) else once / bytes_per_cycle(core, weight_level)
    cycles["weights"] = weights_cycles(first, later, passes, hidden, compute)
    steps = k_steps * tiles * (share if config.loop_order != "rows" else 1.0)
    cycles["weights"] += steps * _late_step_cycles(geo, kernel, core)
    cycles["input"] = _slab_cycles(
        geo, core, slab_level, slabs * slab * share, sum(cycles.values())
    )
    if threads > 1 and config.loop_order != "rows":
        # Every thread reads the whole image; the others' part is in their caches. Charged at the
        # rate of what passes between cores, with the result, which others read by rows, 1x1 layers
        # of 14x14 go by rows: MobileNetV2, V1, ResNet-50, DenseNet-121 and EfficientNet-B0 took
        # 0.99 to 1.01 of the time (two virtual cores of Zen 3).
        foreign = input_bytes(workload) * (threads - 1) / threads
        cycles["input"] += foreign / bytes_per_cycle(core, 3)
    cycles["input"] += _late_cycles(geo, core, threads)
    cycles["epilogue"] += _far_line_cycles(geo, core, threads)
    # Threads whose slabs share a cache lose at most what they gain by sharing the work.
    copies = (_padding_cycles(geo, core, threads) * share, _padding_cycles(geo, core, 1))
    cycles["padding"] = min(copies)
    forks = 2 if geo.copies and config.loop_order != "rows" else 1
    cycles["fork"] = forks * fork_cycles(core) if threads > 1 else 0.0
    footprint = (
        placed(core, "weight panel", panel, threads, panel_level if lost == 1 else 1),
        placed(core, "input slab", slab, threads, slab_level),
        placed(core, "weights", weights, threads, weight_level),
    )
    return finish(core, threads, workload, cycles, footprint)


def least_of(workload: Conv2dWorkload, config: DirectConfig, core: Core, threads: int) -> float:
    """Return seconds that no estimate of a configuration is below: of its calls, from L1.

    Candidates that have the same blocks of registers and layouts are many.
    """
    geo, known, c = DirectGeometry(workload, config), _calls_from_l1(workload, core), config
    key = (c.nr, c.ks, c.tile_h, c.tile_w, c.data_layout, c.out_layout)
    if key not in known:
        kernel = kernel_of(core, config.mr, config.nr, workload.types, config.ks)
        calls = cycles_of_calls(geo, kernel, core, geo.k_groups, 0.0, 0.0, 0.0)
        known[key] = sum(calls.values())
    cycles = known[key] * geo.busiest_share(threads) + _far_line_cycles(geo, core, threads)
    cycles += fork_cycles(core) if threads > 1 else 0.0
    return ROUNDED_DOWN * cycles / clock_hz(core)


@functools.lru_cache(maxsize=1)
def _calls_from_l1(_workload: Conv2dWorkload, _core: Core) -> dict[tuple[int | str, ...], float]:
    """Return cycles of all calls of a layer as found so far: its configurations follow each other.

    By the fields of a configuration that they depend on.
    """
    return {}


def workspace_bytes(workload: Conv2dWorkload, config: DirectConfig, threads: int) -> int:
    """Return the size of the padded slabs of all threads, or of the padded input."""
    geo = DirectGeometry(workload, config)
    if not geo.copies:
        return 0
    if config.loop_order == "rows":
        return slab_bytes(geo) * threads
    return copy_bytes(geo)


def _lost_share(
    geo: DirectGeometry, core: Core, kernel: Microkernel, threads: int, panel: int
) -> float:
    """Share of a panel of weights, of `panel` bytes, that L1 has lost before the next call.

    Where calls wait for rows of pixels those of the call before are there still: 1024 channels of
    14x14 pixels to 512 in bytes take no longer with 7x32 blocks (0.93 to 0.97 of the peak, Zen 4),
    whose panels come from L2, than with 7x16 (0.77 to 0.93) and 14x16 (0.88).
    """
    rows, room = block_input_bytes(geo), share_bytes(core, 1, threads)
    if waits_for_rows(core, kernel):
        return lost_share(panel + 2 * rows, room)
    return float(panel + rows > room)


def _apart_cycles(geo: DirectGeometry, kernel: Microkernel, core: Core, panel: int) -> float:
    """Cycles that a call waits for lines from L2 of its pixels.

    Those between which others lie; neighbours where no prefetcher follows their rows, unless L1
    holds them beside the panel of weights, of `panel` bytes.
    """
    is_near = slab_bytes(geo) + panel <= share_bytes(core, 1, threads=1)
    comes = geo.workload.stride[1] == 1 and (is_near or not waits_for_rows(core, kernel))
    if comes or geo.window:
        return 0.0
    rows = geo.config.tile_h * geo.config.tile_w
    return apart_cycles(core, rows, block_input_bytes(geo) / rows)


def _l2_share(
    geo: DirectGeometry, kernel: Microkernel, core: Core, k_steps: int, arrival: float
) -> float:
    """Share of a call's time that L2 is busy with the operands of a whole block."""
    rows = geo.config.tile_h * geo.config.tile_w
    call = call_cycles(core, kernel, rows, kernel.vectors, geo.run_groups, geo.config.tile_h)
    return min(1.0, arrival * geo.run_groups / (k_steps * call))


def _slab_cycles(geo: DirectGeometry, core: Core, level: int, size: float, compute: float) -> float:
    """Cycles that slabs of `size` bytes altogether add to those of computing on them.

    Where L2 holds a slab, or one tile of channels uses it, it comes once, most of it while the one
    before is in use (256 channels of 56x56 to 64 take as long as their FMAs, and the image's way
    would be a quarter of that). Else it comes for every tile of channels.
    """
    passes = geo.tiles * geo.workload.groups
    if level not in (1, 2) and passes > 1:
        return size * passes * beyond_l2_cycles(core, level)
    way = size * beyond_l2_cycles(core, level_holding(core, input_bytes(geo.workload), threads=1))
    return way - IMAGE_HIDDEN * min(way, compute)


def _late_step_cycles(geo: DirectGeometry, kernel: Microkernel, core: Core) -> float:
    """Cycles by which a step of k is late while its panel comes from memory.

    Where nobody asks for it in advance a step begins as early as the queue of loads allows, which
    those of the image fill: the shorter steps of narrow panels wait. 512 channels of 7x7 pixels to
    as many on Zen 4, bytes: 0.98 of the peak with 14x32 blocks, 0.81 with 14x16, 0.69 with 21x16.
    Of floats only panels that take memory's time anyway are not asked for.
    """
    if core.loads_in_flight is None or core.memory_ns is None:
        return 0.0
    if geo.config.prefetch or not kernel.takes_groups:
        return 0.0
    rows = geo.config.tile_h * geo.config.tile_w
    step = call_cycles(core, kernel, rows, kernel.vectors, 1, geo.config.tile_h)
    ahead = core.loads_in_flight / (kernel.a_loads(rows) + kernel.vectors)
    return max(0.0, core.memory_ns * core.ghz / ahead - step)


def _late_cycles(geo: DirectGeometry, core: Core, threads: int) -> float:
    """Cycles per thread that the first pass over an image beyond L2 waits for lines.

    A block of one image row asks for a line of each of its pixels at once, block of channels by
    block of channels: what it waits for are those behind the first ones. 128 channels of 55x55 to
    16 on Golden Cove: 8x16 and 12x16 blocks lose nothing, 28x16 blocks a quarter.
    """
    w, size = geo.workload, input_bytes(geo.workload)
    # The layer before has read and written as much since; results of the first pass follow.
    between = 2 * size + w.n * w.co * w.oh * w.ow * w.types.out_bytes / geo.tiles / w.groups
    missing = missing_share(between, L2_PLANNED * l2_bytes(core, threads=1))
    late = late_share(core, geo.config.tile_w * w.stride[1])
    return missing * late * size / threads / bytes_per_cycle(core, beyond_l2(core))


def _far_line_cycles(geo: DirectGeometry, core: Core, threads: int) -> float:
    """Cycles per thread that lines of the result wait for since their neighbours are not next."""
    w, c = geo.workload, geo.config
    size = w.n * w.co * w.oh * w.ow * w.types.out_bytes
    passes = geo.tiles > 1 and c.loop_order != "rows" and c.out_layout == "NHWC"
    if not passes or w.n > 1 or level_holding(core, size + input_bytes(w), threads=1) in (1, 2):
        return 0.0
    return FAR_LINE_CYCLES * size / core.line_bytes / threads


def _stride_loss(workload: Conv2dWorkload, config: DirectConfig, core: Core) -> float:
    """Share of the time that NHWC costs more than blocks, where there is a choice.

    The lines of pixels at a large stride share sets. Golden Cove, 14x32 blocks: 0 to 5 % for the
    input, 0 to 15 % for the result.
    """
    if config.ks > 1 or workload.types.is_bits:
        return 0.0
    lanes = core.lanes(workload.types.acc)
    reads = config.data_layout == "NHWC" and workload.ci % lanes == 0
    writes = config.out_layout == "NHWC" and workload.co % lanes == 0
    return 0.02 * reads + 0.04 * writes


def _padding_cycles(geo: DirectGeometry, core: Core, threads: int) -> float:
    """Cycles of copying the padded input, all slabs.

    Lines of image and slab come from where they are, those of the slab are read before they are
    written. In "channels" order the copy is a pass of its own: its lines go, and come again. Golden
    Cove: 2.5 cycles per vector where the slab about fits into L1, 6 in half of L2, 10 in "channels"
    order, 25 beyond; here 1.4, 6.4, 11.4 and 26.
    """
    w, c = geo.workload, geo.config
    if not geo.copies:
        return 0.0
    rows = c.loop_order == "rows"
    slabs = geo.slabs if rows else 1
    size = slab_bytes(geo)
    if 2 * size > l2_bytes(core, threads):
        level, lines = beyond_l2(core), 4
    elif not rows:
        level, lines = 2, 4
    else:
        level, lines = (1 if size <= 2 * share_bytes(core, 1, threads) else 2), 2
    cycles = size * 8 / core.vector_bits * vector_cycles(core)
    cycles += size / core.line_bytes * line_cycles(core, level, lines)
    return slabs * w.n * cycles
