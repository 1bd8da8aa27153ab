"""Fourier transforms of known length: products with constant matrices, framed by convolutions.

For the lengths of models (some hundreds) a product at the machine's peak takes about as long as a
fast transform, and the strides of frames cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site

# Of a matrix of coefficients; longer transforms would take it from memory again and again.
_MOST_ELEMENTS = 1 << 25


class _Parts(NamedTuple):
    """A matrix or a tensor of complex numbers."""

    real: np.ndarray
    imaginary: np.ndarray


def dft(site: Site) -> Sequence[str]:
    """Write `DFT` as a product of the interleaved parts with one matrix.

    ONNX, DFT-17 and DFT-20; the inverse of one side is real, as ONNX's reference has it.
    """
    shape = site.shape()
    axis = _axis(site, len(shape))
    inverse, onesided = bool(site.attribute("inverse", 0)), bool(site.attribute("onesided", 0))
    if shape[-1] not in (1, 2):
        site.refuse(f"its data has {shape[-1]} parts, not one (real) or two (complex)")
    if onesided and not inverse and shape[-1] == 2:
        site.refuse("it is onesided, and its data is complex")
    size = shape[axis]
    length = _length(site, 2 * (size - 1) if inverse and onesided else size)
    bins = length if inverse else _bins(length, onesided)
    taken = min(size, _bins(length, inverse and onesided))
    _check_size(site, taken * shape[-1], bins * 2)
    matrix = (
        _real_inverse(length, taken)
        if inverse and onesided
        else _complex(length, taken, bins, inverse)
    )
    parts = 1 if inverse and onesided else 2
    weights = _on_pairs(matrix, shape[-1], parts)
    last = len(shape) - 2
    order = [*(i for i in range(last + 1) if i != axis), axis, last + 1]
    name = _in_floats(site)
    rows = site.sliced(name, [axis], [0], [taken]) if taken < size else name
    rows = site.add("Transpose", rows, perm=order)
    outer = [shape[i] for i in order[:-2]]
    rows = site.reshaped(rows, [math.prod(outer), taken * shape[-1]])
    result = site.add("MatMul", rows, site.constant(weights.astype(_computed(site))))
    result = site.reshaped(result, [*outer, bins, parts])
    result = site.add("Transpose", result, perm=[order.index(i) for i in range(len(order))])
    return [_as_before(site, result)]


def stft(site: Site) -> Sequence[str]:
    """Write `STFT` as a convolution: a filter per frequency and part, strided by the frame step.

    ONNX, STFT-17: a window shorter than a frame belongs to its begin, as in its reference.
    """
    shape = site.shape()
    if len(shape) == 2:
        shape = (*shape, 1)
    batch, samples, parts = shape
    if parts not in (1, 2):
        site.refuse(f"its signal has {parts} parts, not one (real) or two (complex)")
    step = int(site.value(1).item())
    window = site.value(2)
    given = site.value(3)
    length = int(given.item()) if given is not None else samples if window is None else len(window)
    onesided = bool(site.attribute("onesided", 1))
    _check_frames(site, samples, length, step)
    if window is not None and window.shape != (length,):
        site.refuse(f"its window has the shape {window.shape}, its frames have {length} elements")
    if onesided and parts == 2:
        site.refuse("it is onesided, and its signal is complex")
    bins, frames = _bins(length, onesided), (samples - length) // step + 1
    _check_size(site, length * parts, bins * 2)
    weights = _on_pairs(_complex(length, length, bins, False), parts, 2)
    if window is not None:
        weights = weights * np.repeat(window, parts)[:, None]
    # (taps, parts, bins * 2) to (bins * 2, parts, taps)
    filters = weights.reshape(length, parts, bins * 2).transpose(2, 1, 0)
    signal = site.reshaped(_in_floats(site), [batch, samples, parts])
    signal = site.add("Transpose", signal, perm=[0, 2, 1])
    found = site.add("Conv", signal, site.constant(filters.astype(_computed(site))), strides=[step])
    found = site.add("Transpose", found, perm=[0, 2, 1])
    return [_as_before(site, site.reshaped(found, [batch, frames, bins, 2]))]


def mel_weights(site: Site) -> Sequence[str]:
    """Write `MelWeightMatrix` of constants as the constant that it is.

    ONNX, MelWeightMatrix-17: triangles of height 1 between bins at equal steps of mel.
    """
    from onnx import helper

    bands, length, rate, lower, upper = (site.value(index).item() for index in range(5))
    bins = length // 2 + 1
    edges = _mel_edges(bands, length, rate, lower, upper)
    if bands < 1 or edges.min() < 0 or edges.max() >= bins:
        site.refuse(f"its {bands} bands reach beyond the {bins} bins of the spectrum")
    weights = np.zeros((bins, bands))
    at = np.arange(bins)
    for band in range(bands):
        left, peak, right = edges[band : band + 3]
        rising, falling = (at >= left) & (at <= peak), (at >= peak) & (at < right)
        weights[rising, band] = (at[rising] - left) / max(peak - left, 1)
        weights[falling, band] = (right - at[falling]) / max(right - peak, 1)
        if left == peak and right == peak:
            weights[peak, band] = 1
    dtype = helper.tensor_dtype_to_np_dtype(site.attribute("output_datatype", 1))
    return [site.constant(weights.astype(dtype))]


def _computed(site: Site) -> np.dtype:
    """Return the type to compute in: sums of halves would lose the spectrum."""
    return site.dtype() if site.dtype().itemsize > 2 else np.dtype(np.float32)


def _in_floats(site: Site) -> str:
    name = site.node.input[0]
    return name if _computed(site) == site.dtype() else site.cast(name, _computed(site))


def _as_before(site: Site, result: str) -> str:
    return result if _computed(site) == site.dtype() else site.cast(result, site.dtype())


def _mel_edges(bands: int, length: int, rate: int, lower: float, upper: float) -> np.ndarray:
    """Return the bins where triangles begin, peak and end, (bands + 2,)."""
    low, high = (2595 * np.log10(1 + hertz / 700) for hertz in (lower, upper))
    mels = np.arange(bands + 2) * ((high - low) / (bands + 2)) + low
    hertz = 700 * (10 ** (mels / 2595) - 1)
    return ((length + 1) * hertz // rate).astype(int)


def _axis(site: Site, rank: int) -> int:
    if site.opset < 20:
        axis = site.attribute("axis", 1)
    else:
        given = site.value(2)
        axis = -2 if given is None else int(given.item())
    if not -rank <= axis < rank or axis % rank == rank - 1:
        site.refuse(f"its axis is {axis}; its data has {rank} axes, the last holds the parts")
    return axis % rank


def _length(site: Site, usual: int) -> int:
    given = site.value(1)
    length = usual if given is None else int(given.item())
    if length < 1:
        site.refuse(f"its length is {length}")
    return length


def _bins(length: int, onesided: bool) -> int:
    return length // 2 + 1 if onesided else length


def _check_frames(site: Site, samples: int, length: int, step: int) -> None:
    if step < 1:
        site.refuse(f"its frame_step is {step}")
    if not 0 < length <= samples:
        site.refuse(f"its frames have {length} elements, its signal {samples}")


def _check_size(site: Site, rows: int, columns: int) -> None:
    if rows * columns > _MOST_ELEMENTS:
        site.refuse(
            f"its transform would be a product with a matrix of {rows} x {columns}",
            "transforms of some thousand elements are computed",
        )


def _complex(length: int, taken: int, bins: int, inverse: bool) -> _Parts:
    """Return the coefficients of a transform, (taken, bins) each."""
    # Steps around the circle are counted exactly before they become angles.
    steps = np.outer(np.arange(taken), np.arange(bins)) % length
    angle = 2 * np.pi * steps / length
    scale = 1 / length if inverse else 1.0
    return _Parts(np.cos(angle) * scale, np.sin(angle) * (scale if inverse else -scale))


def _real_inverse(length: int, taken: int) -> _Parts:
    """Return what makes a real signal of one side of its spectrum, (taken, length) each."""
    whole = _complex(length, taken, length, True)
    bins = np.arange(taken)
    # Every frequency stands for its mirror image as well, but the first, and the middle of an even
    # number.
    twice = np.where((bins == 0) | (2 * bins == length), 1.0, 2.0)[:, None]
    return _Parts(whole.real * twice, whole.imaginary * twice)


def _on_pairs(matrix: _Parts, parts: int, results: int) -> np.ndarray:
    """Return the matrix from interleaved parts to interleaved parts, of real numbers.

    (x + iy)(c + is) = (xc - ys) + i(xs + yc).
    """
    real, imaginary = matrix
    of_real = np.stack([real, imaginary][:results], -1)
    of_imaginary = np.stack([-imaginary, real][:results], -1)
    both = np.stack([of_real, of_imaginary][:parts], 1)
    taken, _, bins, _ = both.shape
    return both.reshape(taken * parts, bins * results)
