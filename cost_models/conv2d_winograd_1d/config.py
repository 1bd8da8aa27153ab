"""The choices of `conv2d_winograd_1d`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.cost_models.conv2d_winograd.config import BlockedConfig


@dataclass(frozen=True, kw_only=True)
class Winograd1dConfig(BlockedConfig):
    """How a convolution is transformed along its width; tiles are one row high.

    Parameters
    ----------
    ring : int
        Blocks in a strip, whose transformed rows lie in a ring; 0: no ring.
    """

    implementation: str = "conv2d_winograd_1d"
    ring: int = 0
