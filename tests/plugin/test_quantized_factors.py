"""Products of two quantized tensors, as attention has them: integers, within a step of floats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_layers import Layers, assert_within_a_step, call_types
from rewrites import computed, runtime

import tvm_blislike
from tvm_blislike.hardware import Core
from tvm_blislike.runtime.runnable import why_not_runnable

TYPES = ["uint8", "int8"]


def scores(
    shape: tuple[int, ...],
    dtypes: tuple[str, str],
    zeros: tuple[int, int],
    scale: float = 0.05,
    result: str = "uint8",
) -> object:
    """Return x @ x.T of two quantizations of x, whose scales put no sum between two steps."""
    layers = Layers(3, *shape)
    one = layers.steps("x", 0.0213, zeros[0], dtypes[0])
    other = layers.steps("x", 0.0297, zeros[1], dtypes[1])
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    product = layers.put("MatMul", one, layers.put("Transpose", other, perm=axes))
    return layers, layers.model(layers.quantized(product, scale, 90, result)[0])


@settings(max_examples=12, deadline=None)
@given(
    shape=st.sampled_from([(5, 7), (3, 6, 33), (1, 2, 17, 8), (2, 3, 16, 64)]),
    dtypes=st.tuples(st.sampled_from(TYPES), st.sampled_from(TYPES)),
    zeros=st.tuples(st.sampled_from([0, 1, 77, 127]), st.sampled_from([0, 5, 127])),
    scale=st.sampled_from([0.002, 0.05, 2.0]),
    result=st.sampled_from(TYPES),
)
def test_scores(
    shape: tuple[int, ...],
    dtypes: tuple[str, str],
    zeros: tuple[int, int],
    scale: float,
    result: str,
) -> None:
    layers, model = scores(shape, dtypes, zeros, scale, result)
    assert_within_a_step(model, layers.x)
    assert ("matmul", "int32") in call_types(model)


def test_what_zero_points_add_joins_the_kernel() -> None:
    _, model = scores((2, 3, 16, 64), ("uint8", "uint8"), (3, 100))
    names = [layer.name for layer in tvm_blislike.compile(model, "zen4").explain().layers]
    (kernel,) = (name for name in names if name.startswith("fused_gemm_matmul"))
    assert "tir_round" in kernel


def test_zero_points_of_the_middle_and_of_0_cost_no_sums() -> None:
    _, model = scores((2, 3, 16, 64), ("uint8", "uint8"), (0, 128))
    assert "sum" not in dict(call_types(model))
    _, model = scores((2, 3, 16, 64), ("uint8", "uint8"), (3, 100))
    assert [name for name, _ in call_types(model)].count("sum") == 2


@pytest.mark.parametrize("name", ["x86-64-v3", "skylake-avx512", "golden-cove"])
def test_scores_of_other_products_of_integers(name: str) -> None:
    if reason := why_not_runnable(Core.named(name).target_config(1)):
        pytest.skip(reason)
    layers, model = scores((2, 3, 16, 30), ("uint8", "int8"), (3, 5))
    assert ("matmul", "int32") in call_types(model, name)
    ours, theirs = computed(model, layers.x, name), runtime(model, layers.x)
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


def test_saturated_factors_are_exact() -> None:
    """Every product is the largest: sums of pairs in 16 bits would saturate."""
    layers = Layers(3, 4, 64)
    layers.x[:] = 100
    one, other = layers.steps("x", 0.02, 0), layers.steps("x", 0.02, 0)
    product = layers.put("MatMul", one, layers.put("Transpose", other, perm=[1, 0]))
    model = layers.model(layers.quantized(product, 64 * 5.1**2 / 200, 0, "uint8")[0])
    np.testing.assert_array_equal(computed(model, layers.x), np.full((4, 4), 200, "uint8"))
