"""Cycles of blocks in tile registers (`microkernels.tile_loops`)."""

from __future__ import annotations

import math

from tvm_blislike.microkernels import Microkernel
from tvm_blislike.microkernels.tile_loops import LEAST_ROWS, ROWS, TileBlock, tile_rows

# Cycles of copying a row of A for one tile of k, beside products: 32 rows take 55.
COPIED_ROW_CYCLES = 1.7


def tile_call_cycles(
    kernel: Microkernel, rows: int, vectors: int, steps: int, image_rows: int = 1
) -> float:
    """Return the cycles that a call takes for `steps` groups of k.

    Loads of tiles are hidden: four of them take half as long as the four products that they serve.

    Parameters
    ----------
    rows, vectors : int
        Of the block, cut or whole.
    image_rows : int
        Of a whole block, where rows of it are not all equally far apart.
    """
    block = _block(kernel, rows, vectors, steps, image_rows)
    products = block.tall * block.wide * math.ceil(steps / block.groups)
    copied = rows if block.is_short else 0
    tails = rows if steps % block.groups else 0
    copies = COPIED_ROW_CYCLES * (copied * (steps // block.groups) + tails)
    return products * max(block.rows, LEAST_ROWS) + copies


def tile_store_cycles(kernel: Microkernel, rows: int, vectors: int, image_rows: int = 1) -> float:
    """Return the cycles of storing a block to memory, a row of a tile each."""
    block = _block(kernel, rows, vectors, 1, image_rows)
    return float(block.tall * block.wide * block.rows)


def _block(kernel: Microkernel, rows: int, vectors: int, steps: int, image_rows: int) -> TileBlock:
    of_tile = tile_rows(kernel.mr, image_rows)
    mh, mw = (math.ceil(rows / of_tile), of_tile) if image_rows > 1 else (1, rows)
    return TileBlock(mh, mw, vectors * ROWS, of_tile, kernel.nr, steps)
