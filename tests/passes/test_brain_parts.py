"""Rows in two parts of bfloat16 by weights of 8 bits: what comes out, and when it is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from stored_products import compiled, product

from tvm_blislike.choose.storage_choice import splits_rows
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core, native_core
from tvm_blislike.microkernels import byte_codes, kernels_for
from tvm_blislike.model.types import STORED, Types
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.passes import stored_weights

NATIVE = native_core()
K, N = 600, 120
DTYPES = ("fp8", "fp8_e5m2")


def weights_of(name: str) -> np.ndarray:
    """Weights that are stored exactly, denormal ones too; every column has the largest."""
    bits, dtype = np.random.default_rng(3).integers(0, 256, (K, N)).astype(np.uint8), STORED[name]
    weights, most = bits.view(dtype).astype(np.float32), byte_codes.most(dtype)
    weights[~(np.abs(weights) <= most)] = 0
    weights[0] = most
    return weights


@pytest.fixture(scope="module", params=DTYPES)
def products(request: pytest.FixtureRequest) -> tuple[np.ndarray, dict]:
    """Weights, and products of so many rows by them, where kernels have rows split."""
    if not kernels_for(NATIVE, Types.brain_by(STORED[request.param])):
        pytest.skip(f"no products of bfloat16 by {request.param} here: rows are never split")
    weights = weights_of(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_weights, "why_whole", lambda *_: "")
        patch.setattr(stored_weights, "splits_rows", lambda *_: True)
        return weights, {rows: compiled(rows, weights, request.param) for rows in (1, 3)}


@examples(15)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([1, 3]),
    spread=st.integers(0, 40),
    exponent=st.integers(-60, 60),
)
def test_errors_are_those_of_two_parts(
    products: tuple[np.ndarray, dict], seed: int, rows: int, spread: int, exponent: int
) -> None:
    weights, models = products
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, K)) * 2.0 ** rng.integers(-spread, 1, (rows, K))
    x = np.ldexp(x, exponent).astype(np.float32)
    wanted = x.astype(np.float64) @ weights
    terms = np.abs(x).astype(np.float64) @ np.abs(weights)
    # Parts, and sums of fp32 in any order.
    bound = (2.0**-16 + K * 2.0**-24) * terms
    assert (np.abs(product(models[rows], x) - wanted) <= bound).all()


def test_numbers_of_sixteen_bits_are_exact(products: tuple[np.ndarray, dict]) -> None:
    """The largest numbers, which rounding would make infinite, and every weight by itself."""
    weights, models = products
    x = np.zeros((3, K), np.float32)
    x[0, 5], x[1, 17], x[2, 99] = 1, -(1 + 2.0**-15), 2.0**100 * (2 - 2.0**-15)
    assert np.array_equal(product(models[3], x), x.astype(np.float64) @ weights)
    x[:] = 0
    x[0, 1] = np.finfo(np.float32).max
    small = np.abs(weights[1]) < 1
    assert np.allclose(product(models[3], x)[0, small], x[0, 1] * weights[1, small].astype(float))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_with_what_is_not_finite_are_nan(
    products: tuple[np.ndarray, dict], value: float
) -> None:
    x = np.ones((3, K), np.float32)
    x[1, 17] = value
    found = product(products[1][3], x)
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("name", DTYPES)
def test_it_is_chosen_where_cores_have_the_instructions(name: str) -> None:
    layer, types = GemmWorkload(1, 4096, 9216), Types.brain_by(STORED[name])
    strategy = Strategy(Core.named("zen4"), 1)
    assert splits_rows(strategy, layer, STORED[name])
    choice = strategy.choose(GemmWorkload(2, 4096, 9216, types=types))
    assert (choice.config.mr, choice.config.prefetch) == (2, 1)
    for core in ("zen3", "skylake-avx512", "neoverse-n1"):
        assert not splits_rows(Strategy(Core.named(core), 1), layer, STORED[name])
