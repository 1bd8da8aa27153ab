"""Memory as NumPy arrays: of tensors and of anything with DLPack, without copies."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  names bfloat16 and floats of 8 bits for NumPy
import numpy as np

# What the code of kernels counts on: TVM's `kAllocAlignment`.
ALIGNMENT = 64


def array_of(value: Any) -> np.ndarray:
    """Return an array that shares the memory of a value with DLPack, such as a torch tensor.

    Raises
    ------
    Exception
        What its `__dlpack__` raises; TypeError for a type that NumPy lacks; ValueError for memory
        of another device.
    """
    import tvm_ffi

    # Unlike TVM's function of that name, it takes memory of any alignment.
    tensor = value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value)
    if tensor.device != tvm_ffi.device("cpu"):
        raise ValueError(f"it is in the memory of {tensor.device}")
    dtype = np.dtype(str(tensor.dtype))
    strides = [step * dtype.itemsize for step in tensor.strides]
    shape = tuple(map(int, tensor.shape))
    span = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    size = span + dtype.itemsize if all(shape) else 0
    memory = (ctypes.c_char * size).from_address(tensor.data_ptr() if size else 1)
    # The array holds the memory, which holds its owner.
    memory.owner = tensor
    return np.ndarray(shape, dtype, memory, strides=strides)


def aligned(shape: Sequence[int], dtype: str | np.dtype) -> np.ndarray:
    """Return an array that kernels can read and write in place, not yet filled."""
    found = np.dtype(dtype)
    memory = np.empty(math.prod(shape) * found.itemsize + ALIGNMENT, np.uint8)
    # A quarter of the time that `address_of` takes, which asks for no right to write.
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return np.ndarray(shape, found, memory, -address % ALIGNMENT)


def address_of(array: np.ndarray) -> int:
    """Return where an array begins."""
    return array.__array_interface__["data"][0]
