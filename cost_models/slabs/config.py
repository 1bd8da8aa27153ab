"""The choices for a chain of depthwise and 1x1 convolutions that is computed slab by slab."""

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
        Of the last layer; those before it compute what these rows read.
    """

    implementation: str = NAME
    rows: int = 0
