"""Winograd convolution along the width only, on NCHWc images: little memory, twice fewer products.

A convolution is the sum over its kernel rows of one-dimensional convolutions, and their sum can be
taken before the output transform (thesis section 6.12, Winogen-1D):

    Y[y] = AT [ sum_ry (G g[ry]) * (BT d[y + ry]) ]

With F(4, 3) that is half of the products of direct convolution (a quarter in two dimensions) for
twice the weights (four times), six points instead of 36 in the workspace, a third of the error.
It wins where the weights of the two-dimensional form take longer to arrive than its products.

A row of the image is transformed once and used by all kernel rows: V[point, row and tile, ci] of a
block has kh - 1 rows more than the block. The sum over ry stays in registers. What becomes of the
kh - 1 rows is `Winograd1dConfig.ring`:

- 0: each block transforms its first kh - 1 rows again. All rows of a block are one long row of
  tiles, in which ry is a step of a row; micro-kernel blocks of mr tiles cross from row to row;
- s > 0: blocks are strips of s, one below the other, and V is a ring of the rows of one block
  (`schedules.rings`). Rows lie apart, since a micro-kernel block cannot go around the end.

F(4, 3) on one core with 2 MiB of L2, ms (KiB of workspace): the fastest of each, and a ring of
little workspace.

    channels, size    no ring        ring           small ring
    64, 112           2.82 (1093)    2.74 (757)     2.77 (169)
    64, 56            0.67 (631)     0.67 (295)     0.69 (85)
    128, 28           0.64 (226)     0.66 (410)     0.68 (95)
    256, 56           9.73 (925)     9.89 (1009)    11.1 (358)

Where micro-kernel blocks fill rows it is equal, elsewhere slower: transforming a fifth of the rows
again is a hundredth of the time. But it takes a quarter of the workspace where the weights are
few, so it wins under `--max-workspace` and on cores with small caches.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.conv2d_winograd import estimate as model
from tvm_blislike.cost_models.conv2d_winograd_1d import candidates
from tvm_blislike.cost_models.conv2d_winograd_1d.config import Winograd1dConfig
from tvm_blislike.cost_models.conv2d_winograd_1d.geometry import Winograd1dGeometry
from tvm_blislike.cost_models.conv2d_winograd_1d.space import space
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.common import stage
from tvm_blislike.schedules.conditions import inside
from tvm_blislike.schedules.conv2d_winograd.passes import one_pass, transform
from tvm_blislike.schedules.conv2d_winograd.transforms import error_bound as transforms_error
from tvm_blislike.schedules.conv2d_winograd.transforms import matrices, transform_weights
from tvm_blislike.schedules.conv2d_winograd_1d.schedule import schedule


def pack_weights(
    workload: Conv2dWorkload, config: Winograd1dConfig, weights: np.ndarray
) -> np.ndarray:
    """Transform the rows of OIHW weights: `Winograd1dGeometry.packed_shape`."""
    geo = Winograd1dGeometry(workload, config)
    # F(1, kh) leaves the rows of a kernel as they are.
    rows, columns = transform(1, workload.kh), transform(config.tile_w, workload.kw)
    points = transform_weights(weights, rows, columns)
    panels = points.reshape(*points.shape[:3], geo.chunks, geo.panels, config.nr)
    return np.ascontiguousarray(panels.transpose(3, 1, 4, 0, 2, 5))


def pack_weights_te(
    workload: Conv2dWorkload, config: Winograd1dConfig, weights: te.Tensor
) -> te.Tensor:
    """`pack_weights` as a TE stage, for weights that are not known at compile time."""
    geo = Winograd1dGeometry(workload, config)
    g = transform(config.tile_w, workload.kw).g

    def value(chunk: Any, nu: Any, panel: Any, ry: Any, ci: Any, j: Any) -> Any:
        co = chunk * config.nc + panel * config.nr + j
        return one_pass(g, nu, [weights[co, ci, ry, rx] for rx in range(workload.kw)])

    return te.compute(geo.packed_shape, value, name="packed_weights")


def error_bound(workload: Conv2dWorkload, config: Winograd1dConfig) -> float:
    """Return the error to expect relative to the largest output (`winograd_transforms`)."""
    return _error_bound(config.tile_w, workload.kw, workload.kh * workload.ci)


@functools.cache
def _error_bound(tile_w: int, kw: int, terms: int) -> float:
    return transforms_error(transform(tile_w, kw), matrices(1, 1), channels=terms)


def compute(
    workload: Conv2dWorkload, config: Winograd1dConfig, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the convolution; operands and result as for `conv2d_winograd`."""
    geo = Winograd1dGeometry(workload, config)
    transformed = _input_transform(geo, data)
    ry = te.reduce_axis((0, workload.kh), "ry")
    k = te.reduce_axis((0, workload.ci), "k")
    mr, nr = config.mr, config.nr

    def product(*index: Any) -> Any:
        n, yb, xb, chunk, nu, panel, row, group, i, j = index
        t = group * mr + i
        if geo.ring:
            pixel = transformed[n, 0, xb, nu, yb * geo.block_h + row + ry, t, k]
        else:
            pixel = transformed[n, yb, xb, nu, row, t + ry * geo.block_w, k]
        return te.sum(pixel * packed[chunk, nu, panel, ry, k, j], axis=[ry, k])

    blocks = (workload.n, geo.blocks_h, geo.blocks_w)
    grid = (*blocks, geo.chunks, geo.patch_w, geo.panels, geo.rows)
    # Whole micro-kernel blocks: those that reach beyond the tiles are cut in the schedule.
    groups = -(-geo.row_tiles // mr)
    acc = te.compute((*grid, groups, mr, nr), product, name="acc", attrs=stage("acc"))
    products = te.compute(
        (*grid, geo.row_tiles, nr),
        lambda *i: acc[(*i[:-2], i[-2] // mr, i[-2] % mr, i[-1])],
        name="products",
        attrs=stage("products"),
    )
    return _output_transform(geo, products)


def _input_transform(geo: Winograd1dGeometry, data: te.Tensor) -> te.Tensor:
    """Return V: (n, yb, xb, patch_w, 1, rows and tiles, ci).

    For a ring, (n, 1, xb, patch_w, rows of the whole image, tiles, ci).
    """
    w, c, lanes = geo.workload, geo.config, geo.lanes
    bt = transform(c.tile_w, w.kw).bt

    def value(n: Any, yb: Any, xb: Any, nu: Any, row: Any, t: Any, channel: Any) -> Any:
        row, q = (row, t) if geo.ring else (t // geo.block_w, t % geo.block_w)
        y = yb * geo.block_h + row - w.padding[0]
        x = (xb * geo.block_w + q) * c.tile_w - w.padding[1]

        def pixel(j: int) -> Any:
            is_there = inside(y >= 0, y < w.h, x + j >= 0, x + j < w.w)
            loaded = data[n, channel // lanes, y, x + j, channel % lanes]
            return tirx.if_then_else(is_there, loaded, 0.0)

        return one_pass(bt, nu, [pixel(j) for j in range(geo.patch_w)])

    rows = geo.blocks_h * geo.block_h + w.kh - 1
    matrix = (rows, geo.block_w) if geo.ring else (1, geo.v_rows)
    return te.compute(
        (w.n, 1 if geo.ring else geo.blocks_h, geo.blocks_w, geo.patch_w, *matrix, w.ci),
        value,
        name="transformed",
        attrs=stage("transformed"),
    )


def _output_transform(geo: Winograd1dGeometry, products: te.Tensor) -> te.Tensor:
    w, c, lanes = geo.workload, geo.config, geo.lanes
    at = transform(c.tile_w, w.kw).at

    def value(n: Any, ob: Any, y: Any, x: Any, lane: Any) -> Any:
        xt, yb, row = x // c.tile_w, y // geo.block_h, y % geo.block_h
        q = xt % geo.block_w
        place = (row, q) if geo.ring else (0, row * geo.block_w + q)
        chunk, channel = ob * lanes // c.nc, ob * lanes % c.nc
        column = (*place, channel % c.nr + lane)
        block = (n, yb, xt // geo.block_w, chunk)
        points = [products[(*block, nu, channel // c.nr, *column)] for nu in range(geo.patch_w)]
        return one_pass(at, x % c.tile_w, points)

    return te.compute(
        (w.n, w.co // lanes, w.oh, w.ow, lanes), value, name="unpack", attrs=stage("unpack")
    )


IMPLEMENTATION = Template(
    name="conv2d_winograd_1d",
    kind="conv2d",
    config_type=Winograd1dConfig,
    applies=candidates.applies,
    configs=candidates.configs,
    estimate=partial(model.estimate, geometry=Winograd1dGeometry),
    least_of=partial(model.least_of, geometry=Winograd1dGeometry),
    least_seconds=candidates.least_seconds,
    workspace_bytes=partial(model.workspace_bytes, geometry=Winograd1dGeometry),
    pack=pack_weights,
    pack_te=pack_weights_te,
    compute=compute,
    schedule=schedule,
    error_bound=error_bound,
    every=space,
)
