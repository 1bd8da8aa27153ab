"""Every configuration of the direct convolution (`conv2d_direct`).

The parallel loop is no axis: it follows from the loop order ("rows": slabs, "channels": groups or
tiles of channels) unless the images of a batch go to the threads. Neither is a prefetch distance:
`prefetch` asks for all of the next panel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_direct.candidates import (
    layouts,
    may_prefetch,
    or_nhwc,
    suits_channels,
)
from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of, kernels_for
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.space import Axis, Space, Value, single, unrolls
from tvm_blislike.model.workload import Conv2dWorkload


def space(workload: Conv2dWorkload, core: Core, _threads: int) -> Space:
    """Return the choices of layouts, block, loop order, slab, unrolling and prefetching."""
    w, lanes = workload, core.lanes(workload.types.acc)
    grouped = any(k.takes_groups for k in kernels_for(core, w.types))

    def kernels(c: DirectConfig) -> list[Value]:
        offered = kernels_for(core, w.types)
        fitting = (k for k in offered if suits_channels(k, w, c.out_layout))
        return [(k.mr, k.nr, k.ks) for k in fitting if k.takes_groups == grouped]

    def kernel_at(c: DirectConfig) -> Microkernel:
        return kernel_of(core, c.mr, c.nr, w.types, c.ks)

    def pixels(c: DirectConfig) -> list[Value]:
        kernel = kernel_at(c)
        return [tile for tile in _tiles(c.mr, w) if kernel.takes(tile[0])]

    def slabs(c: DirectConfig) -> Iterator[int]:
        tiles_h = math.ceil(w.oh / c.tile_h)
        if c.loop_order == "channels":
            return iter((tiles_h,))
        # A cut last row of blocks must be a slab of its own, or the only slab.
        return iter(sorted({1, tiles_h}) if w.oh % c.tile_h else range(1, tiles_h + 1))

    def unrolled(c: DirectConfig) -> list[int]:
        if c.data_layout == "NCHW":
            return sorted({1, *unrolls(w.kw)})
        return unrolls(DirectGeometry(w, c).run_groups)

    return Space(
        DirectConfig(),
        (
            Axis("layouts", ("data_layout", "out_layout"), lambda _: _layouts(w, lanes, grouped)),
            Axis("block", ("mr", "nr", "ks"), kernels),
            Axis("pixels", ("tile_h", "tile_w"), pixels),
            single("loop_order", lambda _: ("channels", "rows")),
            single("oh_block", slabs),
            single("unroll", unrolled),
            single("prefetch", lambda c: (0, 1) if may_prefetch(kernel_at(c)) else (0,)),
        ),
    )


def _layouts(workload: Conv2dWorkload, lanes: int, grouped: bool) -> list[Value]:
    """Pairs of layouts; those of groups are alike, since a block may not straddle two."""
    w = workload
    if grouped:
        return [("NHWC", "NHWC")]
    usual = layouts(w, lanes)
    if w.groups > 1:
        return list(dict.fromkeys((usual, ("NHWC", "NHWC"))))
    # A single channel has no other channel to run along.
    data = ("NCHW", *(or_nhwc(Layout.preferred(w.ci, 1, lanes)) if w.ci > 1 else ()))
    return list(itertools.product(data, or_nhwc(usual[1])))


def _tiles(mr: int, workload: Conv2dWorkload) -> Iterator[Value]:
    """Blocks of pixels with mr rows, of any shape that the image holds."""
    for tile_h in range(1, min(mr, workload.oh) + 1):
        if mr % tile_h == 0 and mr // tile_h <= workload.ow:
            yield tile_h, mr // tile_h
