"""Channel-blocked layouts. Data types are kept: nothing is computed here."""

from __future__ import annotations

import numpy as np


def pack_nchwc(x: np.ndarray, block: int) -> np.ndarray:
    """Return NCHWc (n, ceil(c / block), h, w, block) of x (n, c, h, w), filled up with zeros."""
    n, c, h, w = x.shape
    blocks = -(-c // block)
    packed = np.zeros((n, blocks, h, w, block), x.dtype)
    for channel in range(c):
        packed[:, channel // block, :, :, channel % block] = x[:, channel]
    return packed


def unpack_nchwc(x: np.ndarray, channels: int) -> np.ndarray:
    """Return NCHW (n, channels, h, w) of x (n, blocks, h, w, block), without what filled it up."""
    block = x.shape[-1]
    planes = [x[:, channel // block, :, :, channel % block] for channel in range(channels)]
    return np.stack(planes, axis=1)
