"""Passes at their edges: index widths that differ, and convolutions that are model outputs."""

from __future__ import annotations

import numpy as np
from relax_graphs import graph, random, run
from tvm import relax, tirx
from tvm.relax import op

from tvm_blislike.hardware import native_core
from tvm_blislike.passes.canonicalize import Canonicalize
from tvm_blislike.passes.legalize import NarrowIndices


def narrowed(module):
    module = NarrowIndices()(relax.transform.LegalizeOps()(module))
    return [f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc)]


def shape_types(func):
    return {str(e.ty.dtype) for p in func.params for e in p.shape if isinstance(e, tirx.IntImm)}


def test_float_functions_index_with_32_bits() -> None:
    (func,) = narrowed(graph(lambda b, x: op.nn.relu(x), (2, 3)))
    assert shape_types(func) == {"int32"}
    assert "op_pattern" not in func.attrs


def test_functions_on_int64_tensors_stay_wide_and_unfused() -> None:
    (func,) = narrowed(graph(lambda b, x: op.argmax(x, axis=1), (2, 3)))
    assert shape_types(func) == {"int64"}
    assert int(func.attrs["op_pattern"]) == 8


def test_tensors_beyond_32_bits_stay_wide() -> None:
    (func,) = narrowed(graph(lambda b, x: op.nn.relu(x), (2**16, 2**16)))
    assert shape_types(func) == {"int64"}


def test_wide_and_narrow_functions_together() -> None:
    def largest(builder, x):
        active = builder.emit(op.nn.relu(x))
        index = builder.emit(op.argmax(active, axis=1))
        return op.add(builder.emit(op.astype(index, "float32")), relax.const(np.float32(1)))

    x = random(5, 7)
    result = run(graph(largest, (5, 7)), x)
    np.testing.assert_array_equal(result, np.maximum(x, 0).argmax(1) + 1)


def test_functions_of_scalars_only() -> None:
    def limited(builder, x, limit):
        limit = builder.emit(op.where(op.isnan(limit), relax.const(np.float32(0.5)), limit))
        return op.minimum(x, limit)

    x = random(3, 4)
    module = graph(limited, (3, 4), ())
    for limit in (np.float32("nan"), np.float32(-1)):
        bound = 0.5 if np.isnan(limit) else limit
        np.testing.assert_array_equal(run(module, x, np.array(limit)), np.minimum(x, bound))


def _biased(weights, bias):
    def function(builder, x):
        conv = builder.emit(op.nn.conv2d(x, relax.const(weights)))
        return op.add(conv, relax.const(bias)) if bias is not None else conv

    return function


def test_output_of_a_folded_convolution_leaves_its_block() -> None:
    weights, bias = random(4, 3, 1, 1), random(1, 4, 1, 1)
    x = random(1, 3, 5, 5)
    expected = np.einsum("nchw,oc->nohw", x, weights[:, :, 0, 0]) + bias
    module = graph(_biased(weights, bias), (1, 3, 5, 5))
    assert not isinstance(Canonicalize(native_core())(module)["main"].body.body, relax.DataflowVar)
    np.testing.assert_allclose(run(module, x), expected, rtol=1e-5, atol=1e-5)


def test_convolution_that_is_folded_and_read_again_inside() -> None:
    weights, scale = random(4, 3, 1, 1), random(1, 4, 1, 1)

    def function(builder, x):
        conv = builder.emit(op.nn.conv2d(x, relax.const(weights)))
        scaled = builder.emit(op.multiply(conv, relax.const(scale)))
        return op.add(scaled, op.nn.relu(scaled))

    x = random(1, 3, 5, 5)
    scaled = np.einsum("nchw,oc->nohw", x, weights[:, :, 0, 0]) * scale
    result = run(graph(function, (1, 3, 5, 5)), x)
    np.testing.assert_allclose(result, scaled + np.maximum(scaled, 0), rtol=1e-5, atol=1e-5)
