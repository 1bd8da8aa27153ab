"""`LRN`: one kernel, and what looks similar is left alone."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from relax_graphs import assert_same_as_plain_tvm, graph, operators
from tvm import relax
from tvm.relax import op

import tvm_blislike
from tvm_blislike.hardware import native_core
from tvm_blislike.passes.canonicalize import Canonicalize

NATIVE = native_core()


def model(shape: tuple[int, ...], **attributes: float) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    nodes = [helper.make_node("LRN", ["x"], ["y"], **attributes)]
    made = helper.make_graph(nodes, "lrn", values[:1], values[1:])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("shape", "size", "alpha", "beta", "bias"),
    [
        ((1, 64, 14, 14), 5, 1e-4, 0.75, 1.0),
        ((2, 7, 5, 3), 3, 0.3, 0.5, 2.0),
        ((1, 24, 9, 9), 5, 1.0, 0.6, 1.0),
        # Windows wider than the channels, and a single one.
        ((1, 5, 1, 1), 9, 1.0, 0.75, 1.0),
        ((1, 4, 3, 2), 1, 0.5, 1.0, 0.5),
    ],
)
def test_one_kernel_computes_what_onnxruntime_does(
    shape: tuple[int, ...], size: int, alpha: float, beta: float, bias: float
) -> None:
    made = model(shape, size=size, alpha=alpha, beta=beta, bias=bias)
    x = np.random.default_rng(1).standard_normal(shape).astype("float32") * 3
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x})
    compiled = tvm_blislike.compile(made, threads=2)
    np.testing.assert_allclose(compiled.run({"x": x})["y"], expected, rtol=2e-5, atol=1e-6)
    assert [layer.name for layer in compiled.explain().layers] == ["local_response"]


def spelled_out(b: relax.BlockBuilder, x: relax.Var, y: relax.Var, size: int = 3) -> relax.Expr:
    """The importer's operators, with any tensor in the place of the squared one."""
    squares = b.emit(op.expand_dims(b.emit(op.multiply(x, y)), axis=1))
    padding = [size // 2, 0, 0, size // 2, 0, 0]
    pool = op.nn.avg_pool3d(squares, (size, 1, 1), (1, 1, 1), padding, count_include_pad=True)
    means = b.emit(op.squeeze(b.emit(pool), [1]))
    below = b.emit(op.add(b.emit(op.multiply(means, relax.const(0.1))), relax.const(1.0)))
    return op.divide(x, b.emit(op.power(below, relax.const(0.75))))


def test_a_square_is_found_and_a_product_is_not() -> None:
    shape = (1, 8, 4, 4)
    square = graph(lambda b, x: spelled_out(b, x, x), shape)
    product = graph(spelled_out, shape, shape)
    assert operators(Canonicalize(NATIVE)(square)).keys() == {"call_tir"}
    assert operators(Canonicalize(NATIVE)(product))["nn.avg_pool3d"] == 1
    assert_same_as_plain_tvm(square)


def test_wide_windows_stay_a_pool() -> None:
    mod = graph(lambda b, x: spelled_out(b, x, x, size=31), (1, 40, 3, 3))
    assert operators(Canonicalize(NATIVE)(mod))["nn.avg_pool3d"] == 1


def test_a_mean_over_pixels_is_no_normalization_across_channels() -> None:
    def function(b: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        pool = b.emit(op.nn.avg_pool2d(b.emit(op.multiply(x, x)), (3, 3), padding=(1, 1)))
        below = b.emit(op.add(b.emit(op.multiply(pool, relax.const(0.1))), relax.const(1.0)))
        return op.divide(x, b.emit(op.power(below, relax.const(0.75))))

    assert operators(Canonicalize(NATIVE)(graph(function, (1, 8, 4, 4))))["nn.avg_pool2d"] == 1
