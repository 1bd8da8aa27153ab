"""Weights as they are stored: rounded to fewer bits, with a scale for each output channel or none.

bfloat16 and float16 hold weights as they are. In 8 bits there is not enough range: channels get
scales, of int8 so that the largest weight is 127, of e4m3 and e5m2 powers of two, which round
nothing, so that the largest one is as large as the type allows, but for the largest exponents
(`microkernels.byte_codes`). All rounding is to the nearest, of
two equally near to the even one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes  # noqa: F401  TVM's Python package requires it; it names bfloat16 and the like for NumPy
import numpy as np

from tvm_blislike.microkernels import byte_codes

_MOST_INT8 = 127
# Channels that are looked at together: temporaries stay small beside weights of hundreds of MB.
_TOGETHER = 64
# Elements that say in most cases that weights are not numbers of fewer bits.
_SAMPLE = 1024


@dataclass(frozen=True)
class StoredWeights:
    """Weights in fewer bytes.

    Parameters
    ----------
    values : numpy.ndarray
        In the storage type, of the shape of the weights.
    scales : numpy.ndarray or None
        float32, a factor for each output channel.
    error : float
        Root of the sum of squared differences over that of squared weights.
    """

    values: np.ndarray
    scales: np.ndarray | None
    error: float


def stored(weights: np.ndarray, dtype: str, axis: int) -> StoredWeights | None:
    """Round weights to a storage type.

    Parameters
    ----------
    weights : numpy.ndarray
        float32.
    dtype : str
        One of `model.types.STORED`.
    axis : int
        Of the output channels.

    Returns
    -------
    StoredWeights or None
        None where a weight is not finite or becomes infinite.
    """
    values = np.empty(weights.shape, dtype)
    scales = None if values.itemsize > 1 else np.empty(weights.shape[axis], np.float32)
    difference = whole = 0.0
    for part in _parts(weights.shape[axis]):
        at = (*[slice(None)] * axis, part)
        chunk = weights[at]
        if not np.isfinite(chunk).all():
            return None
        factors = np.float32(1) if scales is None else _scales(chunk, dtype, axis)
        rounded = _rounded(chunk / factors, values.dtype)
        again = rounded.astype(np.float32) * factors
        if not np.isfinite(again).all():
            return None
        values[at] = rounded
        if scales is not None:
            scales[part] = factors.reshape(-1)
        difference += float(np.square(again - chunk, dtype=np.float64).sum())
        whole += float(np.square(chunk, dtype=np.float64).sum())
    return StoredWeights(values, scales, math.sqrt(difference / whole) if whole else 0.0)


def is_exact(weights: np.ndarray, dtype: str) -> bool:
    """Whether all weights, finite ones, are numbers of a type with fewer bits."""
    flat = weights.reshape(-1)
    return _same(flat[:_SAMPLE], dtype) and all(
        _same(flat[start : start + (1 << 20)], dtype) for start in range(0, flat.size, 1 << 20)
    )


def _same(part: np.ndarray, dtype: str) -> bool:
    with np.errstate(over="ignore"):
        return bool((part.astype(dtype).astype(np.float32) == part).all())


def _parts(channels: int) -> Iterator[slice]:
    return (slice(i, i + _TOGETHER) for i in range(0, channels, _TOGETHER))


def _scales(chunk: np.ndarray, dtype: str, axis: int) -> np.ndarray:
    """Return the factors of channels, with as many axes as the weights; 1 where all are zero."""
    others = tuple(a for a in range(chunk.ndim) if a != axis)
    largest = np.abs(chunk).max(axis=others, keepdims=True)
    if dtype == "int8":
        scales = largest / np.float32(_MOST_INT8)
    else:
        # The least power of two with `largest` <= `most` * scale.
        fraction, exponent = np.frexp(largest / np.float32(byte_codes.most(dtype)))
        scales = np.ldexp(np.float32(1), exponent - (fraction == 0.5))
    # Of weights that are denormal, or all zero.
    scales[scales < np.finfo(np.float32).tiny] = 1
    return scales.astype(np.float32)


def _rounded(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "i":
        return np.clip(np.rint(values), -_MOST_INT8, _MOST_INT8).astype(dtype)
    with np.errstate(over="ignore"):
        return values.astype(dtype)
