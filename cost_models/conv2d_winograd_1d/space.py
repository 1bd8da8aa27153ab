"""Every configuration of the one-dimensional Winograd convolution."""

from __future__ import annotations

import math

from tvm_blislike.cost_models.conv2d_winograd.candidates import sizes
from tvm_blislike.cost_models.conv2d_winograd.space import TILE_SIZES, blocks_space
from tvm_blislike.cost_models.conv2d_winograd_1d.config import Winograd1dConfig
from tvm_blislike.cost_models.conv2d_winograd_1d.geometry import Winograd1dGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.model.space import Space, even_parts, single
from tvm_blislike.model.workload import Conv2dWorkload


def space(workload: Conv2dWorkload, core: Core, threads: int) -> Space:
    """Return the choices of F(m, r), blocks, chunks and rings."""
    w = workload

    def rings(c: Winograd1dConfig) -> list[int]:
        blocks = math.ceil(w.oh / c.oh_block)
        return [0, *(strip for strip in even_parts(blocks) if strip > 1)]

    return blocks_space(
        Winograd1dConfig(),
        w,
        core,
        threads,
        [(1, tile_w) for tile_w in sizes(w.kw, w.types.acc, TILE_SIZES)],
        (single("ring", rings),),
        Winograd1dGeometry,
    )
