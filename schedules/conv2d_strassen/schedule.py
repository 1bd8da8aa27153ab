"""The schedule template of a 1x1 convolution by seven products: that of the product."""

from __future__ import annotations

from typing import Any

from tvm import s_tir

from tvm_blislike.cost_models.conv2d_strassen.config import ConvStrassenConfig
from tvm_blislike.cost_models.conv2d_strassen.product import product_of
from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import AXES
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.schedules.gemm_strassen.schedule import schedule as schedule_product


def schedule(
    sch: s_tir.Schedule,
    workload: Conv2dWorkload,
    config: ConvStrassenConfig,
    core: Core,
    threads: int,
) -> None:
    """Schedule a PrimFunc made of `compute` and whatever was fused behind it."""
    schedule_product(sch, product_of(workload), config, core, threads, _rows_and_columns)


def _rows_and_columns(sch: s_tir.Schedule, result: Any) -> tuple[Any, Any]:
    """Return the loops over pixels and over channels of a blocked image.

    They become axes of the block: where loops are fused alone, TVM takes all pixels for what a tile
    needs of which the last one is cut. What it reads is found anew, in these axes, when the result
    is inlined into its copy.
    """
    copy = sch.cache_write(result, 0, "local")
    width, lanes = (int(sch.get(loop).extent) for loop in sch.get_loops(copy)[-2:])
    sch.transform_block_layout(
        copy, lambda n, block, y, x, lane: (n, y * width + x, block * lanes + lane)
    )
    sch.compute_inline(result)
    sch.annotate(copy, AXES, 1)
    *_, pixel, channel = sch.get_loops(copy)
    return pixel, channel
