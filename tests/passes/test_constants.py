"""Constants from arrays whose axes lie in any order, and their values without a copy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import relax

from tvm_blislike.tvm_seams import constant, constant_array


@pytest.mark.parametrize("shape", [(), (5,), (3, 200), (200, 3), (70, 2, 130), (2, 65, 3, 64)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_every_order_of_the_axes(shape: tuple[int, ...], dtype: str) -> None:
    values = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
    for first in range(len(shape)):
        moved = np.moveaxis(values, first, -1)
        made = constant(moved, dtype)
        assert str(made.ty.dtype) == dtype
        assert np.array_equal(made.value.numpy(), moved)
    assert np.array_equal(
        constant(values[..., ::-1] if shape else values, dtype).value.numpy(),
        values[..., ::-1] if shape else values,
    )


def test_values_become_the_type_asked_for() -> None:
    assert constant(np.sqrt(np.float64(2)), "float32").value.numpy() == np.float32(2**0.5)


def test_types_that_numpy_lacks() -> None:
    values = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    made = constant(values.T, "bfloat16")
    assert np.array_equal(constant_array(made), values.T)


def test_a_constants_value_is_its_memory_and_cannot_be_written_to() -> None:
    made = relax.const(np.ones(4, "float32"))
    value = constant_array(made)
    assert value.ctypes.data == made.value.data_ptr()
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 2
    del made
    assert value.sum() == 4
