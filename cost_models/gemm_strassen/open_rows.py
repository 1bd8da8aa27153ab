"""Configurations of products by seven of half the size whose rows only running tells."""

from __future__ import annotations

from dataclasses import replace

from tvm_blislike.cost_models.gemm_strassen.config import StrassenConfig
from tvm_blislike.cost_models.gemm_strassen.geometry import StrassenGeometry
from tvm_blislike.model.workload import GemmWorkload


def of_open_rows(
    workload: GemmWorkload, config: StrassenConfig, _threads: int, least: int
) -> StrassenConfig:
    """Return a configuration for any number of rows.

    Blocks of pairs are whole and equal in the product that is scheduled; at run time they are as
    equal as they can be, and as many for each thread that divides them.

    Parameters
    ----------
    workload : GemmWorkload
        Of the rows that the product is scheduled for: whole tiles of pairs.
    config : StrassenConfig
        What was chosen for a number of rows.
    least : int
        The smallest number of rows that may come: as many calls at least share a panel of B, and
        ask for the next one.
    """
    geometry = StrassenGeometry(workload, config)
    most, tiles = geometry.block_m, geometry.tiles_m
    block = max(n for n in range(1, most + 1) if tiles % n == 0)
    return replace(config, mc=block * config.mr, open_rows=least)
