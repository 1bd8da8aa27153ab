"""Sums in another data type than their operands: right numbers, by our kernels or with a reason."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from relax_graphs import calls, execute
from tvm import relax
from tvm.relax import op

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.microkernels import kernels_for
from tvm_blislike.model.report import Report
from tvm_blislike.model.types import Types
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.pipeline import blislike_pipeline, compile_module

RNG = np.random.default_rng(11)
NATIVE = native_core()
HALF = Core.named("cortex-a76")

# Operator: its function, shapes of both operands, and attributes.
SUMS = {
    "matmul": (op.matmul, (5, 70), (70, 9), {}),
    "batched matmul": (op.matmul, (2, 5, 70), (2, 70, 9), {}),
    "conv2d": (op.nn.conv2d, (1, 20, 6, 7), (8, 20, 3, 3), {"padding": 1}),
    "depthwise conv2d": (op.nn.conv2d, (1, 20, 6, 7), (20, 1, 3, 3), {"groups": 20}),
    "conv1d": (op.nn.conv1d, (1, 20, 17), (8, 20, 3), {}),
    "conv3d": (op.nn.conv3d, (1, 4, 5, 6, 7), (8, 4, 3, 3, 3), {}),
    "conv2d_transpose": (op.nn.conv2d_transpose, (1, 20, 6, 7), (20, 8, 3, 3), {"strides": 2}),
}
# Data types of the operands and of the result: what our kernels compute, and what may be TVM's.
OURS = [("float16", "float16", "float32"), ("int8", "int8", "float32")]
OURS += [("float16", "float32", "float32")]
TVMS = [("float32", "float32", "float64"), ("int8", "int8", "int32"), ("uint8", "int8", "int32")]
# Of 16 bits kernels take what fits into 8: a model's own are TVM's.
TVMS += [("int16", "int16", "int32")]


def is_ours(name: str, dtypes: tuple[str, str, str]) -> bool:
    """Whether our kernels compute it: of bytes no transposed convolutions."""
    a, b, out = dtypes
    bytes_run = "int16" not in dtypes and bool(kernels_for(NATIVE, Types(a, b, out, out)))
    return dtypes in OURS or (bytes_run and name != "conv2d_transpose")


def operand(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype.startswith("float"):
        return RNG.standard_normal(shape).astype(dtype)
    # Sums of products of 180 integers of 13 bits are far from 32 bits.
    highest = min(np.iinfo(dtype).max, 3000)
    return RNG.integers(max(np.iinfo(dtype).min, -3000), highest, shape, dtype, endpoint=True)


def graph(
    name: str, data: np.ndarray, weights: np.ndarray, out: str, constant: bool, bias: bool = True
) -> tvm.IRModule:
    function, _, _, attrs = SUMS[name]
    builder = relax.BlockBuilder()
    params = [
        relax.Var(key, relax.TensorType(array.shape, str(array.dtype)))
        for key, array in (("x", data), ("w", weights))
    ]
    inputs = params[:1] if constant else params
    with builder.function("main", inputs):
        with builder.dataflow():
            right = relax.const(weights, str(weights.dtype)) if constant else params[1]
            result = builder.emit(function(params[0], right, out_dtype=out, **attrs))
            if bias:
                # What passes fold into weights must not take the data type with it.
                result = builder.emit(op.multiply(result, relax.const(np.array(2, out), out)))
            result = builder.emit_output(result)
        builder.emit_func_output(result)
    return builder.get()


def compiled(mod: tvm.IRModule) -> tuple[tvm.runtime.Executable, Report]:
    return compile_module(mod, Strategy(NATIVE, 1))


def notes(report: Report, name: str) -> list[str]:
    # By the name of the operator, or as a workload that nobody computes.
    kinds = ("matmul", "gemm") if "matmul" in name else ("conv",)
    return [n for n in report.notes if "default rule for" in n and any(k in n for k in kinds)]


@pytest.mark.parametrize("dtypes", OURS + TVMS, ids="-".join)
@pytest.mark.parametrize(
    "name, constant", [*((name, True) for name in SUMS), ("matmul", False), ("conv2d", False)]
)
def test_sums_have_the_data_type_that_was_asked_for(
    name: str, dtypes: tuple[str, str, str], constant: bool
) -> None:
    *operands, out = dtypes
    data, weights = map(operand, SUMS[name][1:3], operands)
    mod = graph(name, data, weights, out, constant)
    executable, report = compiled(mod)
    (actual,) = execute(executable, [data] if constant else [data, weights])
    wide = "float64" if out.startswith("float") else out
    exact = graph(name, data.astype(wide), weights.astype(wide), wide, constant)
    plain = tvm.compile(exact, tvm.target.Target("llvm"))
    arrays = [data.astype(wide)] if constant else [data.astype(wide), weights.astype(wide)]
    (expected,) = execute(plain, arrays)
    assert (actual.dtype, actual.shape) == (np.dtype(out), expected.shape)
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert error <= {"float64": 1e-14, "float32": 1e-6, "int32": 0}[out]
    ours = {layer.kind for layer in report.layers} & {"conv2d", "gemm"}
    assert bool(ours) == is_ours(name, dtypes)
    # What is left to TVM is named, with the reason.
    assert bool(notes(report, name)) != is_ours(name, dtypes)
    assert all(out in note for note in notes(report, name))


def test_half_products_with_float_results_keep_them_on_a_core_with_half_kernels() -> None:
    """On cortex-a76 both data types have kernels; the result is what decides."""
    data, weights = operand((5, 70), "float16"), operand((70, 9), "float16")
    mod = graph("matmul", data, weights, "float32", constant=True, bias=False)
    (product,) = calls(Canonicalize(HALF)(mod), "matmul")
    assert str(product.ty.dtype) == "float32"
    assert {str(arg.ty.dtype) for arg in product.args} == {"float32"}
    _, report = compile_module(mod, Strategy(HALF, 1))
    (layer,) = (layer for layer in report.layers if layer.kind == "gemm")
    assert layer.microkernel.startswith("neon_f32_")


def test_the_pipeline_of_plain_tvm_calls() -> None:
    data, weights = operand((5, 70), "float32"), operand((70, 9), "float32")
    mod = graph("matmul", data, weights, "float64", constant=False, bias=False)
    target = tvm.target.Target(NATIVE.target_config(1))
    executable = tvm.compile(mod, target, relax_pipeline=blislike_pipeline())
    (actual,) = execute(executable, [data, weights])
    assert actual.dtype == np.float64
    expected = data.astype("float64") @ weights.astype("float64")
    np.testing.assert_allclose(actual, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("shapes", [((70,), (70, 9)), ((3, 2, 5, 7), (2, 7, 4))], ids=str)
def test_other_products_without_a_workload_are_named(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    data, weights = (operand(shape, "float32") for shape in shapes)
    mod = graph("matmul", data, weights, "float32", constant=False, bias=False)
    executable, report = compiled(mod)
    (actual,) = execute(executable, [data, weights])
    np.testing.assert_allclose(actual, data @ weights, rtol=1e-4, atol=1e-5)
    (note,) = notes(report, "matmul")
    assert "x".join(map(str, shapes[1])) in note
