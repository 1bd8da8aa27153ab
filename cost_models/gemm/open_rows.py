"""Configurations of products whose number of rows only running tells."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm_blislike.cost_models.gemm.config import GemmConfig
from tvm_blislike.cost_models.gemm.geometry import GemmGeometry
from tvm_blislike.model.workload import GemmWorkload


def of_open_rows(
    workload: GemmWorkload, config: GemmConfig, threads: int, least: int
) -> GemmConfig | None:
    """Return a configuration for any number of rows; None where rows have to be known.

    Blocks of rows are whole and equal in the product that is scheduled. Threads divide columns, of
    which there are as many for each number of rows.

    Parameters
    ----------
    workload : GemmWorkload
        Of the rows that the product is scheduled for: whole tiles.
    config : GemmConfig
        What was chosen for a number of rows.
    least : int
        The smallest number of rows that may come: as many calls at least share a panel of B, and
        ask for the next one.
    """
    if workload.batch != 1 or workload.types.a != "float32" or workload.types.is_stored:
        return None
    geometry = GemmGeometry(workload, config)
    tiles, share = workload.m // config.mr, math.ceil(geometry.tiles_n / threads)
    block = max(n for n in range(1, tiles + 1) if tiles % n == 0 and n <= geometry.block_m)
    return replace(
        config,
        mc=block * config.mr,
        nc=min(geometry.block_n, share) * config.nr,
        parallel="jc" if threads > 1 else config.parallel,
        open_rows=least,
    )
