"""Configurations of products by seven of half the size whose rows only running tells."""

from __future__ import annotations

from dataclasses import replace

from tvm_blislike.cost_models.gemm_strassen.config import StrassenConfig
from tvm_blislike.cost_models.gemm_strassen.geometry import StrassenGeometry
from tvm_blislike.model.workload import GemmWorkload


def of_open_rows(
    workload: GemmWorkload, config: StrassenConfig, threads: int, least: int
) -> StrassenConfig | None:
    """Return a configuration for any number of rows; None where threads cannot divide columns.

    Blocks of pairs are whole and equal in the product that is scheduled. Threads divide columns, of
    which there are as many for each number of rows.

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
    if geometry.tiles_n % threads:
        return None
    most, tiles = geometry.block_m, geometry.tiles_m
    block = max(n for n in range(1, most + 1) if tiles % n == 0)
    share = geometry.tiles_n // threads * config.nr
    return replace(config, mc=block * config.mr, nc=share if threads > 1 else 0, open_rows=least)
