"""Every configuration of the im2col convolution (`conv2d_im2col`): NCHW images, no prefetching."""

from __future__ import annotations

import math

from tvm_blislike.config import Config
from tvm_blislike.cost_models.im2col import is_short, packings
from tvm_blislike.cost_models.im2col_geometry import Im2colGeometry
from tvm_blislike.cost_models.slicing import INPUT_STATIONARY, WEIGHT_STATIONARY
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, get_kernel, kernel_name, kernels_for
from tvm_blislike.space import Axis, Space, Value, divisors, even_parts, single, unrolls
from tvm_blislike.workload import Conv2dWorkload


def space(workload: Conv2dWorkload, core: Core, threads: int) -> Space:
    """Return the choices of block, blocking, what stays, packing, unrolling and threads."""
    w = workload
    taps = w.kh * w.kw

    def kernels(_: Config) -> list[Value]:
        offered = kernels_for(core.isa, w.dtype, panels=True)
        most = w.oh * w.ow
        return [(k.mr, k.nr) for k in offered if k.mr <= w.co and k.nr < most + k.lanes]

    def kernel(c: Config) -> Microkernel:
        return get_kernel(kernel_name(core.isa, c.mr, c.nr, w.dtype))

    def rows(c: Config) -> list[int]:
        # Divisors: all blocks are alike.
        wide = (r for r in divisors(w.oh) if c.nr < r * w.ow + kernel(c).lanes)
        return [r for r in wide if is_short(w, kernel(c), r)]

    def unrolled(c: Config) -> list[int]:
        return [4] if kernel(c).a_by_lane else unrolls(c.kc)

    return Space(
        Config("conv2d_im2col", data_layout="NCHW", out_layout="NCHW"),
        (
            Axis("block", ("mr", "nr"), kernels),
            single("oh_block", rows),
            single("kc", lambda _: [channels * taps for channels in divisors(w.ci)]),
            single("mc", lambda c: [t * c.mr for t in even_parts(math.ceil(w.co / c.mr))]),
            single("loop_order", lambda _: (INPUT_STATIONARY, WEIGHT_STATIONARY)),
            single("packing", lambda c: packings(w, kernel(c))),
            single("kr", unrolled),
            single("parallel", lambda c: Im2colGeometry(w, c).parallel_loops(threads)),
        ),
    )
