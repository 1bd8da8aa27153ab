"""Configurations of the direct convolution that are worth an estimate.

Blocks that a micro-kernel computes without spills, and slabs of their rows in both loop orders.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator

from tvm_blislike.cost_models.cache_room import room_bytes
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.cost_models.conv2d_direct.nests import fits_window, nest_of, unroll
from tvm_blislike.cost_models.conv2d_direct.operands import slab_bytes
from tvm_blislike.cost_models.data_types import missing
from tvm_blislike.cost_models.moving import share_bytes, uses_as_it_comes
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.space import divisors
from tvm_blislike.model.workload import Conv2dWorkload

# First layers of fewer channels than this read NCHW directly, k running along a kernel row.
MIN_BLOCKED_CHANNELS = 8
# Panels of groups of k are asked for in advance where so many blocks of pixels use each. Zen 4,
# bytes, 14x32 blocks: 56 and 14 take 0.98 of the time then, 4 (images of 7x7) 1.2.
_MANY_BLOCKS = 8
# Blocks of pixels in which tiles ask for the next lines of the present panel as they pass by: with
# more, asking for the next panel is in nobody's way.
FEW_TILES = 4


def layouts(workload: Conv2dWorkload, lanes: int, groups: bool = False) -> tuple[str, str]:
    """Return the layouts of the input and output images.

    Both are blocked or both NHWC when there are groups: a block may not straddle two groups. Groups
    of k are channels side by side.
    """
    if groups:
        return "NHWC", "NHWC"
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
    if lacking := missing(workload, core, grouped=True):
        return lacking
    if workload.is_depthwise:
        return "one input channel per group: a micro-kernel would use one lane"
    if next(configs(workload, core, threads=1), None) is None:
        return "no micro-kernel fits the channels of a group"
    return ""


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[DirectConfig]:
    """Yield the configurations worth estimating."""
    across = workload.groups == 1 and workload.dilation[1] == 1
    for kernel in kernels_for(core, workload.types):
        # Vectors of several groups of A are loads of their own: windows share none in registers.
        shares = across and kernel.takes_groups and not kernel.isa.lane_operand
        step = workload.stride[1] * workload.ci if shares else 0
        data_layout, out_layout = layouts(workload, kernel.lanes, kernel.takes_groups)
        if not suits_channels(kernel, workload, out_layout):
            continue
        for tile_h, tile_w in _tiles(kernel.mr, workload):
            if not kernel.takes(tile_h):
                continue
            block = DirectConfig(
                mr=kernel.mr,
                nr=kernel.nr,
                ks=kernel.ks,
                unroll=unroll(data_layout, step, kernel.ks),
                data_layout=data_layout,
                out_layout=out_layout,
                tile_h=tile_h,
                tile_w=tile_w,
            )
            if not _keeps_registers(kernel, workload, block, core):
                continue
            for order, oh_block in _slabs(workload, block, core, threads):
                blocks = oh_block * math.ceil(workload.ow / tile_w)
                ahead = may_prefetch(kernel) and _asks_ahead(kernel, blocks, core)
                yield block.with_fields(loop_order=order, oh_block=oh_block, prefetch=int(ahead))


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


def may_prefetch(kernel: Microkernel) -> bool:
    """Whether calls may ask for the next panel of weights."""
    return not kernel.takes_groups or (kernel.ks > 1 and not kernel.isa.lane_operand)


def _asks_ahead(kernel: Microkernel, blocks: int, core: Core) -> bool:
    """Whether panels that so many blocks of pixels share should be asked for in advance."""
    if kernel.tiles is not None:
        return True
    if kernel.takes_groups:
        return blocks >= _MANY_BLOCKS
    return blocks > 1 or not uses_as_it_comes(core, kernel.mr)


def suits_channels(kernel: Microkernel, workload: Conv2dWorkload, out_layout: str) -> bool:
    """Whether tiles of nr channels end where groups do."""
    channels = workload.co // workload.groups
    wanted = math.ceil(channels / kernel.lanes) * kernel.lanes
    if kernel.nr > wanted:
        return False
    return workload.groups == 1 or kernel.nr == wanted or channels % kernel.nr == 0


def _keeps_registers(
    kernel: Microkernel, workload: Conv2dWorkload, block: DirectConfig, core: Core
) -> bool:
    """Whether a block stays in registers inside the loops of the convolution."""
    windows = block.data_layout == "NCHW"
    if windows and fits_window(kernel, workload, block.tile_h, block.tile_w, core):
        return True
    # Windows that nobody has compiled have no such room.
    otherwise = False if windows else None
    return keeps_registers(core, kernel, nest_of(workload, block, core), otherwise)


def _tiles(mr: int, workload: Conv2dWorkload) -> Iterator[tuple[int, int]]:
    """Blocks of pixels with mr rows: one image row wide unless the image is narrower than that."""
    for tile_h in range(1, min(mr, workload.oh) + 1):
        tile_w, rest = divmod(mr, tile_h)
        if rest == 0 and tile_w <= workload.ow and (tile_h == 1 or tile_w == workload.ow):
            yield tile_h, tile_w


def _slabs(
    workload: Conv2dWorkload, block: DirectConfig, core: Core, threads: int
) -> Iterator[tuple[str, int]]:
    """Loop orders with the block rows of one slab."""
    tiles_h = math.ceil(workload.oh / block.tile_h)
    yield "channels", tiles_h
    if workload.oh % block.tile_h:
        # A cut last row of blocks must be a slab of its own, or the only slab.
        heights = {1, tiles_h}
    else:
        most = slab_rows(workload, block, core, threads)
        equal = divisors(tiles_h)
        # Around the model's, and around what L1 holds, where padding costs least.
        heights = {1, math.ceil(tiles_h / threads), tiles_h}
        for wanted in most:
            heights |= {*sorted(equal, key=lambda rows: abs(math.log(rows / wanted)))[:4]}
        if not any(1 < rows < tiles_h for rows in heights):
            heights |= {math.ceil(tiles_h / parts) for parts in (2, 4)}
    for rows in sorted(heights):
        yield "rows", rows


def slab_rows(
    workload: Conv2dWorkload, block: DirectConfig, core: Core, threads: int
) -> tuple[int, int]:
    """Return the most rows of blocks whose input L2 holds, and L1.

    L2 holds a slab as it holds Ac in `cache_blocking`; a panel of weights has the part of Br: one
    is in use, the next on its way.
    """
    tiled = DirectGeometry(workload, block)
    panel = tiled.k_groups * block.ks * block.nr * workload.types.b_bytes

    def size(rows: int) -> int:
        slab = block.with_fields(loop_order="rows", oh_block=rows)
        return slab_bytes(DirectGeometry(workload, slab))

    rows = range(1, tiled.tiles_h + 1)
    rooms = room_bytes(core, 2 * panel, threads), share_bytes(core, 1, threads)
    in_l2, in_l1 = (max(1, bisect.bisect_right(rows, room, key=size)) for room in rooms)
    return in_l2, in_l1


def derivation(
    workload: Conv2dWorkload, config: DirectConfig, core: Core, threads: int
) -> tuple[str, ...]:
    """Say how many rows of blocks L2 and L1 hold beside the panels of weights."""
    if config.loop_order != "rows":
        return ()
    in_l2, in_l1 = slab_rows(workload, config, core, threads)
    rows = math.ceil(workload.oh / config.tile_h)
    return (
        f"slab of {config.oh_block} of {rows} rows of blocks: L2 holds {in_l2} beside two panels "
        f"of weights and a way for C, L1 {in_l1}",
    )
