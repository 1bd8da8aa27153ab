"""Casts to bfloat16 behind functions, and there and back: what ml_dtypes rounds to."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from default_graphs import check, graph, kernels, run, scheduled
from tvm import ir, relax
from tvm.relax import op

from tvm_blislike.schedules.lowering.brain_floats import through_bits
from tvm_blislike.schedules.lowering.rewrite import collect

BRAIN = ml_dtypes.bfloat16
_ERF = np.vectorize(math.erf, otypes=["float32"])
FUNCTIONS: dict[str, tuple[Callable, Callable]] = {
    "exp": (op.exp, np.exp),
    "erf of an exp": (lambda x: op.erf(op.exp(x)), lambda x: _ERF(np.exp(x))),
    "sum": (lambda x: op.add(x, op.abs(x)), lambda x: x + np.abs(x)),
    "nothing": (lambda x: x, lambda x: x),
}


def values() -> np.ndarray:
    """Return random numbers, ties between two of bfloat16 and what is no number, 3 x 37 of them."""
    ties = (np.arange(0x3F80, 0x3F80 + 40, dtype="uint32") << 16 | 0x8000).view("float32")
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-39], "float32")
    random = np.random.default_rng(0).standard_normal(111 - 47).astype("float32")
    return np.concatenate([ties, special, random]).reshape(3, 37)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_there_and_back_rounds(name: str) -> None:
    ours, theirs = FUNCTIONS[name]

    def rounded(x: relax.Expr) -> relax.Expr:
        return op.astype(op.astype(ours(x), "bfloat16"), "float32")

    x = values()
    with np.errstate(over="ignore", invalid="ignore"):
        expected = theirs(x).astype(BRAIN).astype("float32")
    # One function may round to the neighbour where NumPy's is next to a tie.
    check(rounded, expected, x, rtol=0 if name in ("sum", "nothing") else 2**-8, atol=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_of_bfloat16(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    x = np.random.default_rng(1).standard_normal((5, 77)).astype("float32")
    module = scheduled(graph(lambda x: op.astype(ours(x), "bfloat16"), x.shape))
    found = run(module, x).view(BRAIN).astype("float32")
    np.testing.assert_allclose(found, theirs(x).astype(BRAIN).astype("float32"), rtol=2**-8)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operands_of_bfloat16(name: str) -> None:
    ours, theirs = FUNCTIONS[name]
    x = np.random.default_rng(3).standard_normal((5, 77)).astype(BRAIN)
    wide = x.astype("float32")
    check(lambda x: ours(op.astype(x, "float32")), theirs(wide), x, rtol=1e-5)


def test_a_function_is_computed_once() -> None:
    (kernel,) = kernels(scheduled(graph(lambda x: op.astype(op.exp(x), "bfloat16"), (64,))))
    (operand, _) = kernel.params
    loads = [load.source.name for load in collect(kernel.body, ir.TensorLoad)]
    # The function has its operand once; rounding has the function's value from where it was put.
    assert loads.count(operand.name) == 1
    assert set(loads) - {operand.name} == {"wide"}


def test_paddings() -> None:
    """A constant of its own is left where loops are divided by what is padding."""
    x = np.random.default_rng(4).standard_normal((7, 16)).astype("float32")
    padding = [0, 0, 16, 32]
    module = scheduled(
        graph(lambda x: op.astype(op.nn.pad(x, padding, "constant", 1.1), "bfloat16"), x.shape)
    )
    expected = np.pad(x, [(0, 0), (16, 32)], constant_values=np.float32(1.1)).astype(BRAIN)
    np.testing.assert_array_equal(run(module, x).view(BRAIN), expected)


def test_roundings_before() -> None:
    def steps(x: relax.Expr) -> relax.Expr:
        return op.multiply(op.round(op.divide(x, relax.const(0.02))), relax.const(0.02))

    x = np.random.default_rng(5).standard_normal((3, 37)).astype("float32")
    once = np.rint(x / np.float32(0.02)) * np.float32(0.02)
    module = scheduled(graph(lambda x: op.astype(steps(x), "bfloat16"), x.shape))
    np.testing.assert_array_equal(run(module, x).view(BRAIN), once.astype(BRAIN))


def test_other_casts_stay() -> None:
    func = kernels(scheduled(graph(lambda x: op.astype(op.astype(x, "float16"), "float32"), (9,))))
    assert through_bits(func[0].body).same_as(func[0].body)
