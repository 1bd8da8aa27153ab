"""Every configuration of the depthwise convolution.

A tile of outputs stays in registers and the whole kernel is unrolled: there is no k loop to unroll,
no cache blocking, nothing to prefetch, and threads divide what the outer loop counts.
"""

from __future__ import annotations

from tvm_blislike.cost_models.conv2d_depthwise.candidates import (
    layouts,
    row_groups,
    widths,
)
from tvm_blislike.cost_models.conv2d_depthwise.config import DepthwiseConfig
from tvm_blislike.cost_models.conv2d_depthwise.geometry import CODE_BYTES, DepthwiseGeometry
from tvm_blislike.hardware import Core
from tvm_blislike.model.layouts import Layout
from tvm_blislike.model.space import Axis, Space, Value, single
from tvm_blislike.model.workload import Conv2dWorkload


def space(
    workload: Conv2dWorkload,
    core: Core,
    _threads: int,
    config_type: type[DepthwiseConfig] = DepthwiseConfig,
    relaid: bool = True,
) -> Space:
    """Return the choices of layouts, tile and outer loop.

    Parameters
    ----------
    config_type : type
        The algorithm's.
    relaid : bool
        Whether it computes on NHWC images where blocks are possible.
    """
    w, lanes = workload, core.lanes(workload.types.acc)
    usual = layouts(w, lanes)
    by_row, wide = row_groups(w, core), widths(w, core)
    in_blocks = all(layout.block for layout in usual)
    offered = [usual, ("NHWC", "NHWC")] if relaid and in_blocks else [usual]

    def tiles(c: DepthwiseConfig) -> list[Value]:
        most = core.vector_registers - 1
        shapes = [
            (h, w_)
            for h in range(1, min(w.oh, most) + 1)
            for w_ in range(1, min(w.ow, most // h) + 1)
        ]
        return [(h * w_, h, w_) for h, w_ in shapes if (h, w_) == (1, 1) or is_short(c, h, w_)]

    def is_short(c: DepthwiseConfig, tile_h: int, tile_w: int) -> bool:
        tiled = c.with_fields(tile_h=tile_h, tile_w=tile_w)
        return DepthwiseGeometry(w, tiled).code_bytes <= CODE_BYTES

    def orders(c: DepthwiseConfig) -> tuple[str, ...]:
        return ("channels", "rows") if Layout(c.out_layout).block else ("rows",)

    return Space(
        config_type(nr=wide[0]),
        (
            Axis("layouts", ("data_layout", "out_layout"), lambda _: offered),
            *([single("nr", lambda _: wide)] if len(wide) > 1 else []),
            *([single("ks", lambda _: by_row)] if len(by_row) > 1 else []),
            Axis("tile", ("mr", "tile_h", "tile_w"), tiles),
            single("loop_order", orders),
        ),
    )
