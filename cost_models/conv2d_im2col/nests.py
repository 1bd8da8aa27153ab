"""Register blocks inside the loops of an im2col convolution, for what LLVM makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_im2col.config import Im2colConfig
from tvm_blislike.cost_models.conv2d_im2col.geometry import FILTER_COLUMNS
from tvm_blislike.cost_models.conv2d_im2col.slicing import INPUT_STATIONARY
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.microkernels.spills import block_name, in_doubt
from tvm_blislike.model.nest import Nest
from tvm_blislike.model.types import FLOAT32, Types
from tvm_blislike.model.workload import Conv2dWorkload

_CHANNELS, _TAPS = 64, 9


def nest_of(columns: str) -> str:
    """Return the kind of nest of an orientation of blocks."""
    return f"im2col {columns or 'pixels'} across"


def nests(core: Core, types: Types) -> Iterator[Nest]:
    """Yield the blocks in doubt in both orientations."""
    if types != FLOAT32:
        return
    for kernel in in_doubt(kernels_for(core, types)):
        for columns in ("", FILTER_COLUMNS):
            filters, windows = (kernel.nr, kernel.mr) if columns else (kernel.mr, kernel.nr)
            width = 4 * max(windows, kernel.lanes)
            workload = Conv2dWorkload(1, _CHANNELS, 8, width, 4 * filters, 3, 3, padding=(1,) * 4)
            config = Im2colConfig(
                mr=kernel.mr,
                nr=kernel.nr,
                mc=2 * filters,
                kc=_CHANNELS * _TAPS,
                loop_order=INPUT_STATIONARY,
                columns=columns,
                oh_block=2,
            )
            fmas = kernel.mr * kernel.vectors
            yield Nest(nest_of(columns), block_name(kernel), workload, config, fmas)
