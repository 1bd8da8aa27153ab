"""The choices of `conv2d_direct`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.cost_models.conv_geometry import TiledConfig
from tvm_blislike.model.config import KernelConfig


@dataclass(frozen=True, kw_only=True)
class DirectConfig(TiledConfig, KernelConfig):
    """How a direct convolution is blocked; `mr` is `tile_h * tile_w`.

    Parameters
    ----------
    loop_order : str
        The outer loop: "rows" or "channels".
    oh_block : int
        Tiles (of `tile_h` rows) that share one padded slab of the input.
    prefetch : int
        1 to prefetch the next panel of the weights during the present one.
    """

    implementation: str = "conv2d_direct"
    loop_order: str = ""
    oh_block: int = 0
    prefetch: int = 0
