"""Register blocks inside the loops of a direct convolution, for what LLVM makes of them.

Kernels of one element, whose loops over taps fold away, are a nest of their own. Where pixels of a
block take registers of addresses (NEON loads several elements of each), so are strides, and images
in NHWC. Where k runs along a row of an NCHW image, LLVM unrolls a short row and keeps each pixel
that several taps read in a register from the first to the last of them: each width and stride of a
kernel is a nest, and blocks that leave room for these pixels are in no doubt. Of a long row, such
as filters of sound have, it unrolls some steps at a time, and keeps no pixel for longer.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from tvm_blislike.cost_models.conv2d_direct.config import DirectConfig
from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.microkernels.spills import block_name, in_doubt
from tvm_blislike.model.nest import Nest
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload

# Width and stride of the kernels of first layers.
_WINDOWS = ((3, 1), (3, 2), (5, 1), (7, 2), (11, 4))
_IMAGE_ROWS = 4
_GROUPS = 16
# Instructions to which LLVM unrolls a row: those of 6x16 blocks on AVX2 (20 in a step) with 8 taps,
# not with 16.
_UNROLLED = 400


def nest_of(workload: Conv2dWorkload, config: DirectConfig, core: Core) -> str:
    """Return the kind of nest of a block."""
    w, data_layout = workload, config.data_layout
    if data_layout == "NCHW":
        dilated = f" dilation {w.dilation[1]}" if w.dilation[1] > 1 else ""
        rows = f" rows {config.tile_h}" if config.tile_h > 1 else ""
        return f"direct window {w.kw}/{w.stride[1]}{dilated}{rows}"
    if DirectGeometry(w, config).by_row:
        return "direct row"
    if core.isa.lane_operand and data_layout == "NHWC":
        return "direct NHWC"
    if core.isa.lane_operand and max(w.stride) > 1:
        return "direct strided"
    return "direct 1x1" if w.kh == w.kw == 1 else "direct"


def nests(core: Core, types: Types) -> Iterator[Nest]:
    """Yield the blocks in doubt in images in blocks of channels, NHWC, and of first layers."""
    offered = kernels_for(core, types)
    for kernel in in_doubt(offered):
        if kernel.takes_groups:
            # In place without a border, and rows of a copy.
            for size in (1, 3):
                yield _nest(kernel, _depth(kernel), size, 1, "NHWC", core)
            continue
        blocked = f"NCHW{kernel.lanes}c"
        ways = [(1, 1, blocked), (3, 1, blocked)]
        if core.isa.lane_operand:
            ways += [(3, 2, blocked), (3, 1, "NHWC")]
        for size, stride, layout in ways:
            yield _nest(kernel, 4 * kernel.lanes, size, stride, layout, core)
    # Of weights in fewer bytes only blocks are offered that leave registers free everywhere.
    plain = [k for k in offered if not (k.takes_groups or k.types.is_stored)]
    for kernel, (size, stride) in itertools.product(plain, _WINDOWS):
        nest = _nest(kernel, 3, size, stride, "NCHW", core)
        if not fits_window(kernel, nest.workload, 1, kernel.mr, core):
            yield nest


def _depth(kernel: Microkernel) -> int:
    """Return the channels of a nest whose k runs in groups; of few LLVM unrolls x86's k loop."""
    depth = 4 * kernel.lanes
    return depth if kernel.isa.lane_operand else max(depth, _GROUPS * kernel.ks)


def fits_window(
    kernel: Microkernel, workload: Conv2dWorkload, tile_h: int, tile_w: int, core: Core
) -> bool:
    """Whether a block leaves registers for every pixel that several taps of a kernel row read.

    For cores that issue in order LLVM loads the pixels of a step early as well.
    """
    rows = tile_h * tile_w
    step = rows * kernel.vectors + rows + kernel.vectors
    steps = min(workload.kw, _UNROLLED // step)
    kept = tile_h * _pixels_kept(workload, tile_w, steps) + (rows if core.in_order else 0)
    return rows * kernel.vectors + kept + kernel.vectors + 1 <= core.vector_registers


def _pixels_kept(workload: Conv2dWorkload, tile_w: int, steps: int) -> int:
    """Most pixels of an image row that some steps both before and after a point among them read."""
    return _most_kept(steps, tile_w, workload.stride[1], workload.dilation[1])


@functools.cache
def _most_kept(steps: int, tile_w: int, stride: int, dilation: int) -> int:
    """Return the pixels kept at the step where most are: from their first reader to their last."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step in range(steps):
        for pixel in range(step * dilation, step * dilation + tile_w * stride, stride):
            first.setdefault(pixel, step)
            last[pixel] = step
    begins, ends = Counter(first.values()), Counter(last.values())
    # In front of step k are kept: those begun before it, less those that ended before it.
    kept = accumulate(begins[step] - ends[step] for step in range(steps))
    return max(kept, default=0)


def _nest(
    kernel: Microkernel, channels: int, size: int, stride: int, data_layout: str, core: Core
) -> Nest:
    workload = Conv2dWorkload(
        1,
        channels,
        _IMAGE_ROWS * stride,
        4 * kernel.mr * stride,
        4 * kernel.nr,
        size,
        size,
        (stride, stride),
        (size // 2,) * 4,
        types=kernel.types,
    )
    config = DirectConfig(
        mr=kernel.mr,
        nr=kernel.nr,
        ks=kernel.ks,
        unroll=unroll(data_layout),
        loop_order="rows",
        data_layout=data_layout,
        out_layout="NHWC" if data_layout == "NHWC" else f"NCHW{kernel.lanes}c",
        tile_h=1,
        tile_w=kernel.mr,
        oh_block=2,
        prefetch=int(not kernel.takes_groups),
    )
    name = nest_of(workload, config, core)
    return Nest(name, block_name(kernel), workload, config, kernel.mr * kernel.vectors)


def unroll(data_layout: str, step: int = 0, ks: int = 1) -> int:
    """Return the steps of k in an iteration of the emitted loop.

    Parameters
    ----------
    step : int
        Elements from a pixel to the next where k runs across pixels, in groups of ks; else 0.
    """
    # Unrolled windows overlap: LLVM keeps what two steps share in registers and spills (0.41 of
    # the peak instead of 0.85 for the first layer of ResNet with 14x32 blocks; of bytes 0.43
    # instead of 0.76 on Zen 4).
    shared = step and math.lcm(step, ks) < 4 * ks
    return 1 if data_layout == "NCHW" or shared else 4
