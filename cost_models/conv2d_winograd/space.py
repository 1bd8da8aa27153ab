"""Every configuration of the Winograd convolution, and what other ones have of it.

The parallel loop is no axis: threads divide all blocks, in "channels" order those of every chunk,
one after the other. Neither is a prefetch distance: `prefetch` asks for
all of the next panel.
"""

from __future__ import annotations

import itertools
import math

from tvm_blislike.cost_models.conv2d_winograd.candidates import (
    BLOCK_ROWS,
    fills_panels,
    layouts_of,
    parts_of_channels,
    sizes,
    taps_of_phases,
)
from tvm_blislike.cost_models.conv2d_winograd.config import (
    CHANNELS,
    FLAT,
    TILES,
    BlockedConfig,
    WinogradConfig,
)
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.cost_models.conv2d_winograd.integers import offered
from tvm_blislike.hardware import Core
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.space import Axis, Space, Value, divisors, even_parts, single, unrolls
from tvm_blislike.model.workload import Conv2dWorkload

# Outputs per tile and axis.
TILE_SIZES = range(2, 7)


def space(workload: Conv2dWorkload, core: Core, threads: int) -> Space:
    """Return the choices of `conv2d_winograd`: F(m, r), blocks, chunks, parts, order and passes."""
    w = workload
    taps = taps_of_phases(w)
    tiles = list(itertools.product(*(sizes(r, w.types.acc, TILE_SIZES) for r in taps)))
    # A kernel of one row or column takes one pass anyhow.
    passes = ("", FLAT) if min(w.kh, w.kw) > 1 else ("",)
    own = (
        single("loop_order", lambda _: (TILES, CHANNELS)),
        single("transform", lambda _: passes),
    )
    return blocks_space(WinogradConfig(), w, core, threads, tiles, own)


def blocks_space(
    start: BlockedConfig,
    workload: Conv2dWorkload,
    core: Core,
    threads: int,
    tiles: list[Value],
    own: tuple[Axis, ...],
    geometry: type[WinogradGeometry] = WinogradGeometry,
) -> Space:
    """Return a space with axes of its own between those of blocks and those of the products."""
    w, lanes = workload, core.lanes(workload.types.acc)
    layouts = layouts_of(w, lanes)

    def rows(c: BlockedConfig) -> list[int]:
        tiles_h = math.ceil(w.oh / c.tile_h)
        usual = (r for r in BLOCK_ROWS if r <= tiles_h)
        return sorted({*even_parts(tiles_h), *usual})

    def blocks(c: BlockedConfig) -> list[int]:
        return [c.oh_block * width for width in even_parts(math.ceil(w.ow / c.tile_w))]

    def kernels(c: BlockedConfig) -> list[Value]:
        row_tiles = geometry(w, c).row_tiles
        filled = (k for k in offered(core, w.types) if fills_panels(w, k, lanes))
        return [(k.mr, k.nr, k.ks) for k in filled if k.mr <= row_tiles]

    def chunks(c: BlockedConfig) -> list[int]:
        panels = math.ceil(w.co / c.nr)
        # The last panel of an NHWC image, if it is cut, is in the same chunk as all others.
        whole = Layout(c.out_layout).block or w.co % c.nr == 0
        counts = divisors(panels) if whole else [panels]
        return [count * c.nr for count in counts]

    def parts(c: BlockedConfig) -> list[int]:
        return parts_of_channels(geometry(w, c), threads)

    return Space(
        start.with_fields(data_layout=layouts[0], out_layout=layouts[1]),
        (
            Axis("tile", ("tile_h", "tile_w"), lambda _: tiles),
            single("oh_block", rows),
            single("mc", blocks),
            *own,
            Axis("block", ("mr", "nr", "ks"), kernels),
            single("nc", chunks),
            single("oc_parts", parts),
            single("unroll", lambda c: unrolls(geometry(w, c).summed // c.ks)),
            single("prefetch", lambda _: (0, 1)),
        ),
    )
