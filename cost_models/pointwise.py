"""Arithmetic intensity of a pointwise convolution: bytes between L1 and the registers.

Zhang, Lo and Lu ("High Performance Depthwise and Pointwise Convolutions on Mobile Devices", AAAI
2020, section "Pointwise Convolution Implementation") compare two ways to tile registers, by FLOPs
per byte that is loaded or stored. A block of the result is D (mr x nr), summed over k:

- RTRA keeps a block of A (mr x kr) in registers; D is loaded and stored for every kr steps;
- RTRD keeps D until all of k is summed, and stores it once. The schedules of `conv2d_direct`,
  `conv2d_im2col` and `gemm` do this where k is one block.

For 8x8 blocks with 4-byte elements RTRA moves a byte per 1.33 FLOPs, RTRD one per 1.97 (256
channels): the 1.5 times of the paper.
"""

from __future__ import annotations

ITEM_BYTES = 4


def rtrd_bytes(mr: int, nr: int, k: int) -> int:
    """Return the bytes that a block moves when the result stays in registers: A, B, D once."""
    return ITEM_BYTES * (k * (mr + nr) + mr * nr)


def rtra_bytes(mr: int, nr: int, kr: int) -> int:
    """Return the bytes that kr steps move when A stays in registers: B, and D in and out."""
    return ITEM_BYTES * (kr * nr + 2 * mr * nr)


def rtrd_intensity(mr: int, nr: int, k: int) -> float:
    """Return FLOPs per byte of a block of mr x nr over all k, result in registers."""
    return 2 * mr * nr * k / rtrd_bytes(mr, nr, k)


def rtra_intensity(mr: int, nr: int, kr: int) -> float:
    """Return FLOPs per byte of kr steps of a block of mr x nr, A in registers."""
    return 2 * mr * nr * kr / rtra_bytes(mr, nr, kr)
