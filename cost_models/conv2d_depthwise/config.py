"""The choices of `conv2d_depthwise`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.cost_models.conv_geometry import TiledConfig


@dataclass(frozen=True, kw_only=True)
class DepthwiseConfig(TiledConfig):
    """Which tile of outputs stays in registers; `mr` is `tile_h * tile_w`, `nr` the channels.

    Parameters
    ----------
    loop_order : str
        The outer loop: "rows" or "channels".
    ks : int
        Rows of the kernel that a multiply-add takes at once.
    """

    implementation: str = "conv2d_depthwise"
    loop_order: str = ""
    ks: int = 1

    @property
    def kind(self) -> tuple[str | int, ...]:
        """See `Config.kind`."""
        return (*super().kind, self.ks)
