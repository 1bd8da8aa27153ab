"""Sizes of the direct convolution's operands in bytes, and the cache levels that hold them.

"rows" and "channels" are the loop orders of `Config`: in the first one all threads use the same
panel of weights and each a slab of its own, in the second it is the other way round. Where the
images of a batch go to the threads, each has slabs of its own in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from tvm_blislike.cost_models.conv2d_direct.geometry import DirectGeometry
from tvm_blislike.cost_models.moving import beyond_l2, sharers
from tvm_blislike.hardware import Core
from tvm_blislike.model.workload import Conv2dWorkload


def input_bytes(workload: Conv2dWorkload) -> int:
    """Return the size of the image batch."""
    return workload.n * workload.ci * workload.h * workload.w * workload.types.a_bytes


def slab_bytes(geo: DirectGeometry) -> int:
    """Return the size of a padded slab of the input."""
    w, c = geo.workload, geo.config
    rows = (c.oh_block * c.tile_h - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1
    row = copy_bytes(geo) / (w.n * geo.padded_size[0])
    return int(min(rows, geo.padded_size[0]) * row)


def copy_bytes(geo: DirectGeometry) -> int:
    """Return the size of the padded image batch."""
    return math.prod(geo.copy_shape) * geo.workload.types.a_bytes


def block_input_bytes(geo: DirectGeometry) -> int:
    """Return the size of what one block of C reads of the input."""
    w, c = geo.workload, geo.config
    rows = (c.tile_h - 1) * w.stride[0] + (w.kh - 1) * w.dilation[0] + 1
    columns = (c.tile_w - 1) * w.stride[1] + (w.kw - 1) * w.dilation[1] + 1
    used = min(rows * columns, c.tile_h * c.tile_w * w.kh * w.kw)
    return used * geo.ci_group * w.types.a_bytes


def levels(
    geo: DirectGeometry, core: Core, threads: int, panel: int, slab: int, weights: int
) -> tuple[int, int, int]:
    """Return the levels that hold the panel of weights (if L1 does not), the slab, and all weights.

    Parameters
    ----------
    panel, slab, weights : int
        Their sizes in bytes.
    """
    slabs_of, panels_of = partial(_slabs_of, geo, threads), partial(_panels_of, geo)
    # The panel shares L2 with the next one, which is being prefetched, and with the input: on
    # Golden Cove 0.95 of it stream at the speed of L2, 1.07 at that of L3.
    near = _level(core, threads, lambda n: 2 * panels_of(n) * panel + slabs_of(n) * slab) in (1, 2)
    # The result and the next panel pass through the level too (a slab of 1.7 of 2 MiB costs 6 % on
    # the 224x224 layers of VGG).
    held = _level(core, threads, lambda n: 1.5 * slabs_of(n) * slab + 2 * panels_of(n) * panel)
    return (
        2 if near and core.cache(2) else beyond_l2(core),
        held or beyond_l2(core),
        _level(core, threads, lambda n: weights + slabs_of(n) * slab),
    )


def _level(core: Core, threads: int, size: Callable[[int], float]) -> int:
    """Return the first level that holds the `size(n)` bytes of the n threads that share it."""
    for cache in core.caches:
        if size(sharers(core, cache, threads)) <= cache.bytes:
            return cache.level
    return 0


def _slabs_of(geo: DirectGeometry, threads: int, sharers: int) -> int:
    """Slabs that `sharers` threads use at a time: in "channels" order it is the image for all."""
    own = geo.config.loop_order == "rows" or geo.workload.n % threads == 0
    return sharers if own else 1


def _panels_of(geo: DirectGeometry, sharers: int) -> int:
    """Weight panels that `sharers` threads use at a time: in "rows" order all use the same."""
    return 1 if geo.config.loop_order == "rows" else sharers
