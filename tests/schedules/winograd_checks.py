"""Winograd configurations made by hand, and how exact their results must be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from conv_harness import error
from conv_workloads import NATIVE

from tvm_blislike.cost_models.conv2d_winograd.config import TILES
from tvm_blislike.cost_models.conv2d_winograd.geometry import WinogradGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import Microkernel, kernels_for
from tvm_blislike.model.config import Config
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.space import divisors
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules import get_implementation

# The order TILES with output channels in parts, if there are several chunks.
PARTS = "parts"


def kernel_of(core: Core, rows: int, columns: int) -> Microkernel:
    """The highest micro-kernel of at most `rows`, among the widest that `columns` fill."""
    empty = core.lanes() if columns % core.lanes() else 1
    fitting = [k for k in kernels_for(core) if -columns % k.nr < empty and k.mr <= rows]
    return max(fitting, key=lambda k: (k.nr <= 2 * core.lanes(), k.nr, k.mr))


def kernel_for(
    workload: Conv2dWorkload, block: tuple[int, int], core: Core = NATIVE
) -> Microkernel:
    """The kernel for tiles of a block (rows, columns), whose panels a group or several fill."""
    group, lanes = workload.co // workload.groups, core.lanes()
    return kernel_of(
        core, block[0] * block[1], math.lcm(group, lanes) if workload.groups > 1 else group
    )


def blocking(
    implementation: str,
    workload: Conv2dWorkload,
    tile: tuple[int, int],
    block: tuple[int, int],
    order: str = TILES,
    chunk: int = 1,
    kernel: Microkernel | None = None,
    core: Core = NATIVE,
) -> Config:
    """Describe a blocking: tiles of a block (rows, columns), panels of a chunk."""
    kernel = kernel or kernel_for(workload, block, core)
    data_layout, out_layout = (
        Layout.preferred(c, 1, core.lanes()) for c in (workload.ci, workload.co)
    )
    if out_layout == "NHWC":
        chunk = -(-workload.co // kernel.nr)
    config_type = get_implementation(implementation).config_type
    config = config_type(
        mr=kernel.mr,
        nr=kernel.nr,
        mc=block[0] * block[1],
        nc=chunk * kernel.nr,
        data_layout=data_layout,
        out_layout=out_layout,
        tile_h=tile[0],
        tile_w=tile[1],
        oh_block=block[0],
        prefetch=1,
    )
    if order == PARTS:
        geo = WinogradGeometry(workload, config)
        possible = (parts for parts in divisors(geo.chunks)[1:] if geo.may_have_parts(parts))
        return config.with_fields(oc_parts=min(possible, default=1))
    return config if order == TILES else config.with_fields(loop_order=order)


def assert_right(
    workload: Conv2dWorkload,
    config: Config,
    threads: int = 1,
    steps: Sequence[str] = (),
    core: Core = NATIVE,
) -> None:
    """Allow twice the error to expect of random data, and roundings of the epilogue."""
    implementation = get_implementation(config.implementation)
    assert implementation.applies(workload, core) == ""
    bound = 2 * implementation.error_bound(workload, config) + 1e-6
    assert error(workload, config, core, threads, steps) < bound
