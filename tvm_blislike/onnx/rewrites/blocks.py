"""Weights that are quantized in blocks, each with a scale of its own: dequantized ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tvm_blislike.onnx.rewrites.site import Site

_BYTE = 8
# Of `accuracy_level`: data of 8 bits.
_IN_EIGHT_BITS = 4
# What the kernel takes (`passes.few_bits`): steps of k and columns of its vectors. More rows than
# these are worth weights of floats, which are computed once.
_STEPS, _COLUMNS, _FEW_ROWS = 8, 16, 4


def dequantize(site: Site) -> Sequence[str] | None:
    """Write `DequantizeLinear` of a constant in blocks as its values; leave any other."""
    size = site.attribute("block_size", 0)
    if not size:
        return None
    data, scale, zero = (site.known(index) for index in range(3))
    if data is None or scale is None or (zero is None and site.has_operand(2)):
        site.refuse("it is blocked, and not all of its operands are constants")
    axis = site.attribute("axis", 1) % data.ndim
    parts = [scale] if zero is None else [scale, zero.astype(np.int32)]
    if any(part.ndim != data.ndim for part in parts):
        site.refuse("its scales do not have the axes of its data")
    whole = [_of_elements(part, size, axis, data.shape) for part in parts]
    steps = data.astype(np.int32) - (whole[1] if zero is not None else 0)
    return [site.constant(steps.astype(scale.dtype) * whole[0])]


def matmul(site: Site) -> Sequence[str]:
    """Write `MatMulNBits`: rows of B are columns, packed in blocks along k, least bits first.

    ONNX Runtime, MatMulNBits. Its level of accuracy is a lower bound: other products than those of
    few rows are in fp32.
    """
    bits, size = site.attribute("bits", 4), site.attribute("block_size")
    k, n = site.attribute("K"), site.attribute("N")
    if bits not in (2, 4, _BYTE):
        site.refuse(f"its weights have {bits} bits; quantize it to 2, 4 or 8")
    if site.has_operand(4):
        site.refuse("its operand g_idx puts the rows in another order; quantize it without")
    blocks = -(-k // size)
    steps = _unpacked(site.value(1).reshape(n, -1), bits)[:, :k].T
    scales = site.value(2).reshape(n, blocks).T.astype(np.float32)
    zeros = _zeros(site, bits, n, blocks).T
    data = site.node.input[0]
    if _stays_in_bits(site, steps, zeros, size):
        parts = [site.constant(array) for array in (steps, scales, zeros)]
        product = site.add("MatMulNBits", data, *parts, block_size=size)
    else:
        whole = [_of_elements(part, size, 0, steps.shape) for part in (zeros, scales)]
        values = ((steps.astype(np.float32) - whole[0]) * whole[1]).astype(site.dtype())
        product = site.add("MatMul", data, site.constant(values))
    return [site.add("Add", product, site.node.input[5]) if site.has_operand(5) else product]


def _stays_in_bits(site: Site, steps: np.ndarray, zeros: np.ndarray, size: int) -> bool:
    """Whether a kernel takes the weights as they are: few rows, and 8 bits are enough for these."""
    (k, n), shape = steps.shape, site.result_shape()
    allowed = site.attribute("accuracy_level", 0) == _IN_EIGHT_BITS and site.is_of(np.float32)
    whole = not k % size and not size % _STEPS and not n % _COLUMNS
    fits = site.attribute("bits", 4) == 4 and zeros.dtype == np.uint8
    few = shape is not None and math.prod(shape[:-1]) <= _FEW_ROWS
    return allowed and whole and fits and few


def _of_elements(part: np.ndarray, size: int, axis: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return what belongs to each element of a tensor, given what belongs to a block."""
    return part.repeat(size, axis).take(range(shape[axis]), axis)


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Return the integers of rows of bytes, (rows, integers)."""
    shifts = np.arange(0, _BYTE, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & (2**bits - 1)).reshape(len(packed), -1)


def _zeros(site: Site, bits: int, n: int, blocks: int) -> np.ndarray:
    """Return the zero points of blocks, (n, blocks): in the middle where they are left out."""
    zero = site.value(3)
    if zero is None:
        return np.full((n, blocks), 2 ** (bits - 1), np.uint8)
    if zero.dtype == np.uint8:
        return _unpacked(zero.reshape(n, -1), bits)[:, :blocks]
    return zero.reshape(n, blocks).astype(np.float32)
