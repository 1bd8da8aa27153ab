"""The choices of `conv2d_winograd`, and what all Winograd convolutions choose."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.cost_models.conv2d_winograd.integers import transformed
from tvm_blislike.cost_models.conv_geometry import TiledConfig
from tvm_blislike.model.config import KernelConfig
from tvm_blislike.model.types import Types

# Blocks of tiles outermost; or channels outermost, all tiles of the image transformed first.
TILES = "tiles"
CHANNELS = "channels"
# Patches transformed in one pass; by default rows first, then columns.
FLAT = "flat"


@dataclass(frozen=True, kw_only=True)
class BlockedConfig(TiledConfig, KernelConfig):
    """How tiles are blocked; `tile_h` x `tile_w` outputs are one tile of F(m, r).

    Parameters
    ----------
    mc : int
        Tiles of a block.
    nc : int
        Output channels of a chunk.
    oh_block : int
        Rows of tiles in a block.
    oc_parts : int
        "tiles" order: parts of the output channels that threads take apart, each of which
        transforms patches for itself.
    prefetch : int
        1 to prefetch the next panel of the weights during the present one.
    """

    loop_order, transform = TILES, ""

    mc: int = 0
    nc: int = 0
    oh_block: int = 0
    oc_parts: int = 1
    prefetch: int = 0


@dataclass(frozen=True, kw_only=True)
class WinogradConfig(BlockedConfig):
    """How a convolution is transformed along both axes.

    Parameters
    ----------
    loop_order : str
        What is outermost: "tiles" or "channels".
    transform : str
        "flat" transforms patches in one pass, "" rows and columns one by one.
    """

    implementation: str = "conv2d_winograd"
    loop_order: str = TILES
    transform: str = ""

    @property
    def kind(self) -> tuple[str | int, ...]:
        """See `Config.kind`."""
        return (*super().kind, self.transform)

    def microkernel(self, isa: str, types: Types) -> str:
        """See `Config.microkernel`."""
        return super().microkernel(isa, transformed(types))
