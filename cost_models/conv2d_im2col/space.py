"""Every configuration of the im2col convolution (`conv2d_im2col`): NCHW images, no prefetching."""

from __future__ import annotations

import math

from tvm_blislike.cost_models.conv2d_im2col.candidates import ways
from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import (
    FILTER_COLUMNS,
    ON_DEMAND,
    Im2colGeometry,
)
from tvm_blislike.cost_models.conv2d_im2col.slicing import INPUT_STATIONARY, WEIGHT_STATIONARY
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernel_of, kernels_for
from tvm_blislike.model.space import Axis, Space, Value, divisors, even_parts, single, unrolls
from tvm_blislike.model.workload import Conv2dWorkload

_ORDERS = (INPUT_STATIONARY, WEIGHT_STATIONARY)


def space(workload: Conv2dWorkload, core: Core, threads: int) -> Space:
    """Return the choices of block, blocking, what stays, packing, unrolling and threads."""
    w = workload
    pixels, filters, channels = w.oh * w.ow, w.co // w.groups, w.ci // w.groups
    taps = w.kh * w.kw

    def kernels(c: Im2colConfig) -> list[Value]:
        rows, columns = filters, pixels
        if c.columns == FILTER_COLUMNS:
            rows, columns = pixels, filters
        offered = kernels_for(core, w.types, panels=True)
        return [(k.mr, k.nr) for k in offered if k.mr <= rows and k.nr < columns + k.lanes]

    def kernel(c: Im2colConfig) -> Microkernel:
        return kernel_of(core, c.mr, c.nr, w.types)

    def heights(c: Im2colConfig) -> list[Value]:
        # With several threads, blocks of any height may be left unpacked.
        return list(ways(w, kernel(c), c.columns, max(2, threads)))

    def depths(c: Im2colConfig) -> list[int]:
        # What is packed tile by tile is packed once.
        sets = [channels] if c.packing == ON_DEMAND else divisors(channels)
        return [size * taps for size in sets]

    def filter_blocks(c: Im2colConfig) -> list[int]:
        size = Im2colGeometry(w, c).filters
        tiles = math.ceil(filters / size)
        return [n * size for n in ([tiles] if c.packing == ON_DEMAND else even_parts(tiles))]

    def orders(c: Im2colConfig) -> tuple[str, ...]:
        return (INPUT_STATIONARY,) if c.packing == ON_DEMAND else _ORDERS

    def unrolled(c: Im2colConfig) -> list[int]:
        return [4] if kernel(c).isa.lane_operand else unrolls(c.kc)

    return Space(
        Im2colConfig(),
        (
            single("columns", lambda _: ("", FILTER_COLUMNS)),
            Axis("block", ("mr", "nr"), kernels),
            Axis("rows", ("oh_block", "packing"), heights),
            single("kc", depths),
            single("mc", filter_blocks),
            single("loop_order", orders),
            single("unroll", unrolled),
            single("parallel", lambda c: Im2colGeometry(w, c).parallel_loops(threads)),
        ),
    )
