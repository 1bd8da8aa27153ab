"""Configurations of the Winograd convolution worth estimating, and where it applies."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tvm_blislike.cost_models.cache_room import room_bytes
from tvm_blislike.cost_models.conv2d_winograd.config import CHANNELS, BlockedConfig, WinogradConfig
from tvm_blislike.cost_models.conv2d_winograd.estimate import bytes_beyond_l2
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.conv2d_winograd.integers import (
    MOST_POINTS as MOST_INTEGER_POINTS,
)
from tvm_blislike.cost_models.conv2d_winograd.integers import offered, transformed, why_not_integers
from tvm_blislike.cost_models.conv2d_winograd.nests import NEST
from tvm_blislike.cost_models.data_types import missing, missing_types, most_steps
from tvm_blislike.cost_models.moving import uses_as_it_comes
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel
from tvm_blislike.microkernels.spills import keeps_registers
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.space import divisors, even_parts
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload

_Own = TypeVar("_Own", bound=BlockedConfig)
# Outputs per tile and axis, and points per axis up to which a data type is accurate enough. In
# fp16, 64 and 512 channels, direct convolution errs by 3.7e-3 and 2.8e-3 of the largest output,
# F(2, 3) by 2.2e-3 and 5.0e-3, F(4, 3) by 1.1e-2 and 2.5e-2.
TILE_SIZES = (2, 4, 6)
# With stride 2; 5, 6 and 7 were slower than one of these in each of twelve layers (Golden Cove).
PHASED_TILE_SIZES = (2, 3, 4)
MOST_POINTS = {"float32": 8, "float16": 4, "int32": MOST_INTEGER_POINTS}
# "channels" order: V of the whole batch is reread for each chunk, from L3 at most.
MOST_KEPT_V = 16 << 20
# V and P of a block that pass by L2, and chunks of output channels, for each of which V does.
MOST_PASSING = 32 << 20
MOST_PASSES = 2
# Rows of tiles in a block.
BLOCK_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 28)
# Parts of a row of tiles, and those of rows as long as columns of volumes are: 16 frames of 56x56
# pixels have 3136 tiles in a row, of which L2 holds 98 with 144 channels.
_PARTS = (2, 3, 4, 6, 8)
_MORE_PARTS = (12, 16, 24, 32, 48, 64, 96, 128)
# Most that the busiest thread may compute of an equal part, in blocks made to be even.
EVEN_BLOCKS = 1.1
# One core of Golden Cove, ms, F(4, 3) against direct convolution: 3 to 64 channels of 112x112 0.33
# and 0.25, 8 to 64 of 56x56 0.10 and 0.16, 24 to 24 0.11 and 0.22, 57 to 57 of 28x28 0.13 and 0.29.
FEWEST_CHANNELS = 8
# One core of Zen 4, against `conv2d_grouped`: groups of 8 channels, two of which are joined, 0.36
# and 0.34 ms of 28x28, 0.16 and 0.14 of 14x14; of 24 channels twice as fast as any other.
FEWEST_GROUPED_CHANNELS = 16
# One core of Zen 4, by phases against direct convolution: groups of 16 channels of 56x56 0.94 and
# 0.75 ms, of 28x28 0.40 and 0.34, of 32 0.48 and 0.58. Products of 16 steps are mostly calls.
FEWEST_STRIDED_CHANNELS = 32
MOST_STRIDE = 2


def applies(workload: Conv2dWorkload, core: Core) -> str:
    """Return "" for convolutions that transforms may pay for, else the reason."""
    w = workload
    taps = taps_of_phases(w)
    if w.types.is_integer_dot:
        reason = missing_types(w.types, core) or why_not_integers(w)
        if not reason and not offered(core, w.types):
            reason = missing_types(transformed(w.types), core)
    else:
        reason = missing(w, core)
    if reason:
        return reason
    if w.types.is_integer_dot and w.stride != (1, 1):
        return "strided ones of integers save fewer products than words instead of bytes cost"
    summed, made = w.ci // w.groups, w.co // w.groups
    terms = summed * min(w.kh, w.stride[0]) * min(w.kw, w.stride[1])
    if terms > most_steps(w.types):
        return f"{terms} products are too many for a sum in {w.types.acc}"
    if max(w.stride) > MOST_STRIDE or w.dilation != (1, 1):
        return f"only for strides up to {MOST_STRIDE} without dilation"
    if max(taps) == 1 or not all(sizes(each, w.types.acc) for each in taps):
        return f"no transform for {w.kh}x{w.kw} kernels of stride {max(w.stride)}"
    if min(summed, made) < (FEWEST_CHANNELS if w.groups == 1 else FEWEST_GROUPED_CHANNELS):
        return f"{min(summed, made)} channels: transforms would take longer than direct products"
    return _why_not_groups(w, core) if w.groups > 1 else ""


def _why_not_groups(workload: Conv2dWorkload, core: Core) -> str:
    """Return why transforms do not pay for several groups; "" if they may."""
    w = workload
    if w.types.is_integer_dot:
        return "only for one group of integers"
    joined, channels = joined_groups(w, core.lanes(w.types.acc)), w.ci // w.groups
    if w.groups % joined:
        return f"{w.groups} groups of {w.co // w.groups} output channels fill no vectors"
    if max(w.stride) > 1 and joined * channels < FEWEST_STRIDED_CHANNELS:
        return f"strided groups of {channels} channels: products of each phase would be too short"
    return ""


def taps_of_phases(workload: Conv2dWorkload) -> tuple[int, int]:
    """Return the taps along height and width of a phase of the image, which is one of `stride`."""
    w = workload
    return math.ceil(w.kh / w.stride[0]), math.ceil(w.kw / w.stride[1])


def sizes(r: int, dtype: str, among: Iterable[int] = TILE_SIZES) -> tuple[int, ...]:
    """Return the tile sizes m of F(m, r) that are accurate enough."""
    return (1,) if r == 1 else tuple(m for m in among if m + r - 1 <= MOST_POINTS[dtype])


def configs(workload: Conv2dWorkload, core: Core, threads: int) -> Iterator[WinogradConfig]:
    """Yield the configurations worth estimating: V and P of a block fit into L2 or pass by it."""
    w, beyond = workload, bytes_beyond_l2(core, threads)
    taps = taps_of_phases(w)
    among = TILE_SIZES if w.stride == (1, 1) else PHASED_TILE_SIZES
    for tile_h, tile_w in itertools.product(*(sizes(each, w.types.acc, among) for each in taps)):
        if min(taps) > 1 and tile_h != tile_w:
            continue
        start = WinogradConfig(tile_h=tile_h, tile_w=tile_w)
        for config in (c for k in kernels(w, core) for c in blocked(start, w, k, core, threads)):
            geo = WinogradGeometry(w, config)
            room = planned_bytes(geo, core, threads)
            if geo.v_bytes + geo.p_bytes <= max(room, beyond):
                yield from parted(config, geo, threads)
            elif _passes_by(geo, room):
                yield config
            keeps_v = geo.blocks * geo.v_bytes <= MOST_KEPT_V
            if keeps_v and geo.p_bytes <= room / 2 and geo.chunks > 1:
                yield config.with_fields(loop_order=CHANNELS)


def _passes_by(geo: WinogradGeometry, room: float) -> bool:
    """Whether V and P of a block may pass by L2: seldom, while V of a point stays there."""
    passing = geo.v_bytes + geo.p_bytes
    of_point = geo.v_bytes / geo.multiplications
    return geo.chunks <= MOST_PASSES and passing <= MOST_PASSING and of_point <= room


def parted(config: _Own, geo: WinogradGeometry, threads: int) -> Iterator[_Own]:
    """Yield a config with the output channels in each number of parts that threads can take."""
    for parts in parts_of_channels(geo, threads):
        yield config.with_fields(oc_parts=parts)


def parts_of_channels(geo: WinogradGeometry, threads: int) -> list[int]:
    """Return the values of `oc_parts` that threads can share evenly.

    More parts than threads would have a thread transform its patches several times.
    """
    if geo.config.loop_order == CHANNELS:
        return [1]
    return [parts for parts in divisors(threads) if geo.may_have_parts(parts)]


def planned_bytes(geo: WinogradGeometry, core: Core, threads: int) -> float:
    """Return what V and P of a block may take of L2, where panels of U pass through (Low et al.).

    U has the part of Br in the model of `cache_blocking`: a panel is in use, the next on its way.
    """
    terms = geo.summed * math.prod(geo.phases)
    panel = terms * geo.config.nr * transformed(geo.workload.types).b_bytes
    return room_bytes(core, 2 * panel, threads)


def derivation(
    workload: Conv2dWorkload, config: WinogradConfig, core: Core, threads: int
) -> tuple[str, ...]:
    """Say what bounds a block of tiles."""
    geo = WinogradGeometry(workload, config)
    room = planned_bytes(geo, core, threads)
    taken = geo.v_bytes + geo.p_bytes
    beyond = "" if taken <= room else _why_beyond(geo, core, threads)
    return (
        f"block of {config.mc} tiles: V and P take {taken:,} of {room:,.0f} "
        f"bytes that L2 has beside two panels of U and a way for C{beyond}",
    )


def _why_beyond(geo: WinogradGeometry, core: Core, threads: int) -> str:
    if geo.v_bytes + geo.p_bytes <= bytes_beyond_l2(core, threads):
        return ": more, as the level beyond is near"
    return ": more, which pass by, so that weights do so less often"


def kernels(workload: Conv2dWorkload, core: Core) -> Iterator[Microkernel]:
    """Yield the micro-kernels whose panels the output channels fill."""
    lanes = core.lanes(workload.types.acc)
    for kernel in offered(core, workload.types):
        if fills_panels(workload, kernel, lanes) and keeps_registers(core, kernel, NEST):
            yield kernel


def fills_panels(workload: Conv2dWorkload, kernel: Microkernel, lanes: int) -> bool:
    """Whether output channels fill a kernel's panels.

    Those of as many groups as fill vectors. Of one group, lanes of the last panel may be empty
    where those of the last vector are as well.
    """
    if workload.groups == 1:
        return -workload.co % kernel.nr < (lanes if workload.co % lanes else 1)
    return joined_groups(workload, lanes) * workload.co // workload.groups % kernel.nr == 0


def joined_groups(workload: Conv2dWorkload, lanes: int) -> int:
    """Return of how many groups the output channels fill whole vectors."""
    return lanes // math.gcd(lanes, workload.co // workload.groups)


@functools.cache
def suits_tiles(kernel: Microkernel, tiles: int, core: Core) -> bool:
    """Whether it is the lowest kernel of its width that needs fewest calls for a block."""
    heights = [mr for mr in _heights(core, kernel.types, kernel.nr) if mr <= tiles]
    if not heights:
        return False
    calls = math.ceil(tiles / max(heights))
    return kernel.mr == min(mr for mr in heights if math.ceil(tiles / mr) == calls)


@functools.cache
def _heights(core: Core, types: Types, nr: int) -> tuple[int, ...]:
    """Return the rows of the kernels of a width that stay in registers."""
    kernels = (k for k in offered(core, types) if k.nr == nr)
    return tuple(k.mr for k in kernels if keeps_registers(core, k, NEST))


def blocked(
    start: _Own, workload: Conv2dWorkload, kernel: Microkernel, core: Core, threads: int
) -> Iterator[_Own]:
    """Yield the blocks of tiles that a micro-kernel suits, with their chunks; `start` has tiles."""
    tiles_h, tiles_w = (
        math.ceil(out / tile)
        for out, tile in ((workload.oh, start.tile_h), (workload.ow, start.tile_w))
    )
    even = _even_blocks(tiles_h, tiles_w, workload.n, threads)
    for block in dict.fromkeys([*_blocks(tiles_h, tiles_w), *even]):
        if suits_tiles(kernel, block[0] * block[1], core):
            yield from chunked(start, workload, kernel, block, core)


def chunked(
    start: _Own,
    workload: Conv2dWorkload,
    kernel: Microkernel,
    block: tuple[int, int],
    core: Core,
) -> Iterator[_Own]:
    """Yield a config for each number of panels that divides the output channels."""
    panels, several = math.ceil(workload.co / kernel.nr), block[0] * block[1] > kernel.mr
    lanes = core.lanes(workload.types.acc)
    layouts = layouts_of(workload, lanes)
    # The last panel of an NHWC image, if it is cut, is in the same chunk as all others.
    least = 1 if layouts[1].block or workload.co % kernel.nr == 0 else panels
    for chunk in (c for c in range(least, panels + 1) if panels % c == 0):
        yield start.with_fields(
            mr=kernel.mr,
            nr=kernel.nr,
            ks=kernel.ks,
            mc=block[0] * block[1],
            nc=chunk * kernel.nr,
            data_layout=layouts[0],
            out_layout=layouts[1],
            oh_block=block[0],
            prefetch=int(several or not uses_as_it_comes(core, kernel.mr)),
        )


def layouts_of(workload: Conv2dWorkload, lanes: int) -> tuple[Layout, Layout]:
    """Return the layouts of both images; those of integers are NHWC as in other algorithms."""
    if workload.types.is_integer_dot:
        return Layout("NHWC"), Layout("NHWC")
    return Layout.preferred(workload.ci, 1, lanes), Layout.preferred(workload.co, 1, lanes)


def _blocks(tiles_h: int, tiles_w: int) -> Iterator[tuple[int, int]]:
    """Yield whole rows of tiles, or a part of one row where rows are long."""
    for rows in BLOCK_ROWS:
        if rows <= tiles_h:
            yield rows, tiles_w
    usual = [parts for parts in _PARTS if tiles_w >= 4 * parts]
    more = [parts for parts in _MORE_PARTS if tiles_w >= 24 * parts]
    for parts in (*usual, *more):
        yield 1, math.ceil(tiles_w / parts)


def _even_blocks(
    tiles_h: int, tiles_w: int, images: int, threads: int
) -> Iterator[tuple[int, int]]:
    """Yield blocks of several rows and a part of each, one or two for each thread.

    Whole rows leave threads idle where there are about as many threads as rows. What the busiest
    thread computes, tiles beyond the image included, is at most `EVEN_BLOCKS` times an equal part.
    """
    widths = [width for width in even_parts(tiles_w) if 1 < width < tiles_w]
    for blocks, width in itertools.product((threads, 2 * threads), widths):
        across = math.ceil(tiles_w / width)
        down = math.ceil(blocks / (across * images))
        rows = math.ceil(tiles_h / down)
        parts = images * across * math.ceil(tiles_h / rows)
        busiest = math.ceil(parts / threads) * rows * width
        equal = images * tiles_h * tiles_w / threads
        if threads > 1 < rows and busiest <= EVEN_BLOCKS * equal:
            yield rows, width
