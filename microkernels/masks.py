"""Exact products of bytes by `vpmaddubsw`: panels of B as magnitudes and masks.

`vpmaddubsw` multiplies unsigned bytes by signed ones and adds two products in 16 bits, where the
sum of 255 * 127 and another such saturates. Of magnitudes of B and shifted bytes of A no sum does:
with u8 data a and s8 weights w,

    w >= 0:   x = a ^ 0x80 as a signed byte = a - 128      |w| * x = w * a - 128 * w
    w <  0:   x = a ^ 0x7f as a signed byte = 127 - a      |w| * x = w * a - 127 * w

as |w| is -w below 0. x lies in -128 to 127 and |w| in 0 to 128, so that two products add up to
-2 * 128 * 128 = -32768 at least, and, as x reaches -128 only downwards, to 2 * 128 * 127 = 32512 at
most: 16 bits hold both. What the sum of a column lacks does not depend on the data:

    offset = sum of 128 * w where w >= 0, 127 * w elsewhere

So a row of a panel of B, of a group of four steps of k, holds for each vector of sums the 32 bytes
|w| and then the 32 masks; and behind the groups of each micro-kernel call lies a *closing row*, of
the offsets of these groups, 32 bits for each column, with which the call begins. Whatever is cut
off, added up in parts or filled up with zeros is exact like any product: a call is.

In memory the rows are of 16-bit integers, one for each weight, as which they are addressed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.model.types import MASKED, Types, weights_range

# Steps of k in a group, and bytes of magnitudes of a vector, which its masks follow.
KS = 4
_BYTES = 32
_POSITIVE, _NEGATIVE = 0x80, 0x7F


def closing_rows(types: Types) -> int:
    """Return the rows of a panel behind the groups of a micro-kernel call."""
    return int(types.is_masked)


def masked_panels(panels: np.ndarray, groups: int) -> np.ndarray:
    """Return panels of magnitudes and masks with their closing rows.

    Parameters
    ----------
    panels : numpy.ndarray
        int16, (..., groups of k, nr * 4), as `products.panels_of_b` packs them.
    groups : int
        Those of a micro-kernel call; the last one may have fewer.

    Returns
    -------
    numpy.ndarray
        int16, (..., groups of k + calls, nr * 4).

    Raises
    ------
    ValueError
        When a weight has more than 8 bits.
    """
    low, high = weights_range(MASKED)
    if panels.min(initial=0) < low or panels.max(initial=0) > high:
        raise ValueError("weights of products of bytes have at most 8 bits")
    *outer, depth, width = panels.shape
    rows = []
    for first in range(0, depth, groups):
        call = panels[..., first : first + groups, :]
        closing = np.zeros((*outer, 1, width), np.int16)
        closing.view(np.int32)[..., 0, : width // KS] = _offsets(call)
        rows += [_split(call), closing]
    return np.concatenate(rows, axis=-2)


def _split(weights: np.ndarray) -> np.ndarray:
    """Return rows of magnitudes and masks of rows of weights, int16 of the same shape."""
    vectors = weights.reshape(*weights.shape[:-1], -1, 1, _BYTES)
    parts = np.abs(vectors), np.where(vectors < 0, _NEGATIVE, _POSITIVE)
    both = np.concatenate(parts, axis=-2).astype(np.uint8)
    return both.reshape(*weights.shape[:-1], -1).view(np.int16)


def _offsets(weights: np.ndarray) -> np.ndarray:
    """Return what the sum of each column of rows of weights lacks, int32 (..., nr)."""
    wide = weights.astype(np.int32)
    lacking = wide * np.where(wide < 0, _NEGATIVE, _POSITIVE)
    return lacking.reshape(*weights.shape[:-1], -1, KS).sum((-3, -1), dtype=np.int32)


def masked_panels_te(panels: te.Tensor, groups: int, **marks: Any) -> te.Tensor:
    """`masked_panels` as TE stages, of panels of 16-bit integers of 8 bits.

    Parameters
    ----------
    marks : dict
        Name and attributes of the last stage.
    """
    *outer, depth, width = map(int, panels.shape)
    calls = -(-depth // groups)
    g, s = te.reduce_axis((0, groups), "g"), te.reduce_axis((0, KS), "s")

    def lacking(*at: Any) -> Any:
        *place, call, column = at
        group = call * groups + g
        weight = panels[(*place, tirx.min(group, depth - 1), column * KS + s)].astype("int32")
        product = weight * tirx.Select(weight < 0, _NEGATIVE, _POSITIVE)
        return te.sum(tirx.Select(group < depth, product, 0), axis=[g, s])

    offsets = te.compute((*outer, calls, width // KS), lacking, name="offsets")

    def value(*at: Any) -> Any:
        *place, row, lane = at
        call, last = row // (groups + 1), row % (groups + 1) == groups
        closing = tirx.any(last, row == depth + calls - 1)
        offset = offsets[(*place, call, tirx.min(lane // 2, width // KS - 1))]
        half = (offset >> (lane % 2 * 16)).astype("int16")
        half = tirx.Select(lane // 2 < width // KS, half, tirx.const(0, "int16"))
        first, is_mask = lane // _BYTES * _BYTES + lane % (_BYTES // 2) * 2, lane % _BYTES
        group = tirx.min(row - call, depth - 1)
        pair = [panels[(*place, group, first + i)].astype("int32") for i in range(2)]
        low, high = (_byte(weight, is_mask >= _BYTES // 2) for weight in pair)
        return tirx.Select(closing, half, (high << 8 | low).astype("int16"))

    return te.compute((*outer, depth + calls, width), value, **marks)


def _byte(weight: Any, is_mask: Any) -> Any:
    mask = tirx.Select(weight < 0, _NEGATIVE, _POSITIVE)
    return tirx.Select(is_mask, mask, tirx.Select(weight < 0, -weight, weight))
