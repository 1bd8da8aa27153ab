"""Register blocks inside the products of a Winograd convolution, for what LLVM makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from tvm_blislike.cost_models.conv2d_winograd.config import WinogradConfig
from tvm_blislike.hardware import Core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.microkernels.spills import block_name, in_doubt
from tvm_blislike.model.nest import Nest
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Conv2dWorkload

NEST = "winograd"
# F(2, 3): the transforms around the products are the shortest to compile.
_TILE = 2
# More steps of k than LLVM unrolls completely.
_CHANNELS = 128


def nests(core: Core, types: Types) -> Iterator[Nest]:
    """Yield the blocks in doubt, in blocks of tiles whose last one they cut."""
    for kernel in in_doubt(k for k in kernels_for(core, types) if not k.takes_groups):
        layout = f"NCHW{kernel.lanes}c"
        tiles = 2 * kernel.mr - 1
        size = 2 * _TILE, 2 * tiles * _TILE
        workload = Conv2dWorkload(
            1, _CHANNELS, *size, 4 * kernel.nr, 3, 3, padding=(1,) * 4, types=types
        )
        config = WinogradConfig(
            mr=kernel.mr,
            nr=kernel.nr,
            tile_h=_TILE,
            tile_w=_TILE,
            mc=tiles,
            nc=2 * kernel.nr,
            data_layout=layout,
            out_layout=layout,
            oh_block=1,
            prefetch=1,
        )
        yield Nest(NEST, block_name(kernel), workload, config, kernel.mr * kernel.vectors)
