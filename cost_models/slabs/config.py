"""The choices for a depthwise and a 1x1 convolution that are computed slab by slab."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_blislike.model.config import Config

# What `--without` and pins call it.
NAME = "conv2d_slabs"


@dataclass(frozen=True, kw_only=True)
class SlabConfig(Config):
    """Rows of the result that are computed at a time.

    Parameters
    ----------
    rows : int
        So many rows of the depthwise result are computed, then multiplied.
    """

    implementation: str = NAME
    rows: int = 0
