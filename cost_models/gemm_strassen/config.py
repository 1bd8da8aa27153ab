"""The choices of `gemm_strassen`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.model.config import KernelConfig

# The seven products of a tile one after the other, summed up while they lie in L1.
TILES = "tiles"
# A product of all tiles of a block after the other: only its own sums of A lie in L2.
PRODUCTS = "products"
LOOP_ORDERS = (TILES, PRODUCTS)


@dataclass(frozen=True, kw_only=True)
class StrassenConfig(KernelConfig):
    """How the seven products of half the size are blocked.

    Parameters
    ----------
    mc : int
        Pairs of rows of a block; 0: all of them.
    nc : int
        Columns of each product in a block, rounded down to what divides all of them; 0: all.
        Threads divide blocks of columns if there are several, else those of rows.
    loop_order : str
        "tiles" or "products" (see above).
    prefetch : int
        1 to prefetch the next panel of B during the present one.
    open_rows : int
        Where any number of rows may come at run time, the least one; m is then the size that the
        kernel is scheduled for, whole blocks. 0: m rows.
    """

    implementation: str = "gemm_strassen"
    loop_order: str = TILES
    mc: int = 0
    nc: int = 0
    prefetch: int = 0
    open_rows: int = 0

    @property
    def tile_rows(self) -> int:
        """See `KernelConfig.tile_rows`: mr pairs."""
        return 2 * self.mr
