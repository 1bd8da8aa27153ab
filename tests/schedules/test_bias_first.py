"""Sums that begin with a bias: the same results, and sums that must begin with zero still do."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_blislike.schedules.lowering.bias_first import bias_first

LANES, STEPS = 8, 5


def summed(
    dtype: str = "int32",
    bias_of_row: tuple[int, int] = (0, 0),
    reads_sums: bool = False,
    writes_bias: bool = False,
    bias_last: bool = True,
) -> tirx.PrimFunc:
    """Return a function (data, bias, result) of two rows: result = 3 * (sums of data + bias).

    Parameters
    ----------
    bias_of_row : tuple of int
        Which row of the bias each row of the result gets.
    reads_sums : bool
        Add the bare sums as well.
    writes_bias : bool
        Change the bias behind the sums.
    bias_last : bool
        Write the sums in front of the bias.
    """
    lanes = T.ramp(0, 1, LANES)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        data = T.match_buffer(T.arg("data", T.handle()), (STEPS, LANES), dtype)
        bias = T.match_buffer(T.arg("bias", T.handle()), (2, LANES), dtype)
        result = T.match_buffer(T.arg("result", T.handle()), (2, LANES), dtype)
        sums = T.alloc_buffer((2, LANES), dtype)
        for row in range(2):
            T.buffer_store(sums, T.broadcast(tirx.const(0, dtype), LANES), [row, lanes])
        with T.serial(0, STEPS) as k:
            for row in range(2):
                T.buffer_store(sums, sums[row, lanes] + data[k, lanes], [row, lanes])
        if writes_bias:
            T.buffer_store(bias, data[0, lanes], [0, lanes])
        for row, of in enumerate(bias_of_row):
            terms = sums[row, lanes], bias[of, lanes]
            total = terms[0] + terms[1] if bias_last else terms[1] + terms[0]
            value = total * T.broadcast(tirx.const(3, dtype), LANES)
            value = value + sums[row, lanes] if reads_sums else value
            T.buffer_store(result, value, [row, lanes])
    return builder.get().with_attr({"global_symbol": "main", "tirx.noalias": True})


def zeros(func: tirx.PrimFunc) -> int:
    """Return how many stores of zero a function has."""
    return str(func).count("T.Broadcast(0, 8)") + str(func).count("T.Broadcast(T.float32(0.0), 8)")


def outputs(func: tirx.PrimFunc, dtype: str) -> np.ndarray:
    rng = np.random.default_rng(1)
    most = 2**31 - 1 if dtype == "int32" else 9
    arrays = [rng.integers(-most, most, (n, LANES)).astype(dtype) for n in (STEPS, 2, 2)]
    tensors = [*map(tvm.runtime.tensor, arrays)]
    tvm.compile(func, "llvm")["main"](*tensors)
    return tensors[-1].numpy()


@pytest.mark.parametrize("bias_of_row", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("bias_last", [True, False])
def test_sums_begin_with_the_bias(bias_of_row: tuple[int, int], bias_last: bool) -> None:
    func = summed(bias_of_row=bias_of_row, bias_last=bias_last)
    changed = bias_first(func)
    assert zeros(func) == 2 and zeros(changed) == 0
    np.testing.assert_array_equal(outputs(changed, "int32"), outputs(func, "int32"))


@pytest.mark.parametrize("how", [{"dtype": "float32"}, {"reads_sums": True}, {"writes_bias": True}])
def test_other_sums_begin_with_zero(how: dict[str, object]) -> None:
    func = summed(**how)
    changed = bias_first(func)
    assert zeros(changed) == 2
    dtype = how.get("dtype", "int32")
    np.testing.assert_array_equal(outputs(changed, dtype), outputs(func, dtype))


def test_two_biases_of_the_same_sums() -> None:
    """Results of both begin with neither."""
    lanes = T.ramp(0, 1, LANES)
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        bias = T.match_buffer(T.arg("bias", T.handle()), (2, LANES), "int32")
        result = T.match_buffer(T.arg("result", T.handle()), (2, LANES), "int32")
        sums = T.alloc_buffer((LANES,), "int32")
        T.buffer_store(sums, T.broadcast(tirx.const(0, "int32"), LANES), [lanes])
        T.buffer_store(sums, sums[lanes] + T.broadcast(tirx.const(7, "int32"), LANES), [lanes])
        for row in range(2):
            T.buffer_store(result, sums[lanes] + bias[row, lanes], [row, lanes])
    func = builder.get()
    assert zeros(bias_first(func)) == 1
