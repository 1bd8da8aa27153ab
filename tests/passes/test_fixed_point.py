"""Rows as bytes by integers: what comes out, how far it is off, and when it is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from rewrites import several_nodes
from stored_products import compiled, product

import tvm_blislike
from tvm_blislike.choose.constraints import Constraints
from tvm_blislike.choose.storage_choice import split, splits_rows
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.hardware import Core
from tvm_blislike.model.types import BYTES
from tvm_blislike.model.workload import Conv2dWorkload, GemmWorkload
from tvm_blislike.passes import fixed_point, spills, stored_weights

# Steps and columns of which weights in bytes are worth storing.
K, N = 600, 120
EPSILON = 2.0**-24


@pytest.fixture(scope="module")
def integers() -> np.ndarray:
    """Weights that bytes hold exactly: every column has its largest, so scales are 1."""
    weights = np.random.default_rng(3).integers(-127, 128, (K, N)).astype(np.float32)
    weights[0] = 127
    weights[:, 5] = np.where(np.arange(K) == 0, 127, 0)
    return weights


@pytest.fixture(scope="module")
def products(integers: np.ndarray) -> dict[int, tvm_blislike.CompiledModel]:
    """Products of so many rows by these weights, as integers on whatever runs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_weights, "why_whole", lambda *_: "")
        patch.setattr(stored_weights, "splits_rows", lambda *_: True)
        return {rows: compiled(rows, integers, "int8") for rows in (1, 3)}


def bound(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Half a step for each weight, as the module says, and roundings of three sums and scales."""
    largest = np.abs(x).max(1, keepdims=True).astype(np.float64)
    steps = np.maximum(2 * EPSILON * largest, 2.0**-127) * np.abs(weights).sum(0)
    return 1.05 * steps + 8 * EPSILON * np.abs(x.astype(np.float64) @ weights)


@examples(20)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([1, 3]),
    spread=st.integers(0, 60),
    exponent=st.integers(-149, 100),
)
def test_errors_are_within_half_a_step(
    products: dict[int, tvm_blislike.CompiledModel],
    integers: np.ndarray,
    seed: int,
    rows: int,
    spread: int,
    exponent: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, K)) * 2.0 ** rng.integers(-spread, 1, (rows, K))
    x = np.ldexp(x, exponent).astype(np.float32)
    wanted = x.astype(np.float64) @ integers
    assert (np.abs(product(products[rows], x) - wanted) <= bound(x, integers)).all()


def test_errors_are_no_more_than_those_of_sums_in_fp32(
    products: dict[int, tvm_blislike.CompiledModel], integers: np.ndarray
) -> None:
    """Of normal values and many weights they are less than one rounding of fp32 of each term."""
    x = np.random.default_rng(1).standard_normal((3, K)).astype(np.float32)
    errors = np.abs(product(products[3], x) - x.astype(np.float64) @ integers)
    terms = np.abs(x).astype(np.float64) @ np.abs(integers)
    assert (errors <= EPSILON * terms)[:, np.abs(integers).sum(0) > 127].all()
    # Without: the column of a single weight.
    assert (errors <= K * EPSILON * terms).all()


def test_next_to_a_huge_number_errors_are_below_those_of_rounded_weights(
    products: dict[int, tvm_blislike.CompiledModel], integers: np.ndarray
) -> None:
    x = np.random.default_rng(2).standard_normal((1, K)).astype(np.float32)
    x[0, 0] = 3e5
    errors = np.abs(product(products[1], x) - x.astype(np.float64) @ integers)
    half_a_unit = 0.5 * float(x[0, 0])
    assert errors.max() <= half_a_unit / 64
    # The column without other weights is exact.
    assert errors[0, 5] <= EPSILON * 127 * x[0, 0]


def test_integers_are_exact(
    products: dict[int, tvm_blislike.CompiledModel], integers: np.ndarray
) -> None:
    """Bytes of both signs and all digits, the largest numbers of 23 bits among them."""
    x = np.zeros((3, K), np.float32)
    x[:, [0, 7, K - 1]] = [[2**22, -1, 3], [-(2**22), 255, 256], [-(2**22) - 1, 65535, -65536]]
    found, wanted = product(products[3], x), x.astype(np.float64) @ integers
    assert np.array_equal(found, wanted.astype(np.float32))
    small = np.float32(2.0**-120) * np.sign(x)
    assert np.array_equal(
        product(products[3], small), (np.sign(x) @ integers).astype(np.float64) * 2.0**-120
    )


def test_largest_numbers_and_zeros(
    products: dict[int, tvm_blislike.CompiledModel], integers: np.ndarray
) -> None:
    x = np.zeros((3, K), np.float32)
    x[0, 0] = np.float32(2) - np.float32(2.0**-23)
    x[1, 0] = -x[0, 0]
    found = product(products[3], x)
    assert (np.abs(found - x.astype(np.float64) @ integers) <= bound(x, integers)).all()
    assert not found[2].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_with_what_is_not_finite_are_nan(
    products: dict[int, tvm_blislike.CompiledModel], value: float
) -> None:
    x = np.ones((3, K), np.float32)
    x[1, 17] = value
    found = product(products[3], x)
    assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


def test_sums_that_may_need_more_bits_are_not_taken() -> None:
    most = (2**31 - 1) // (255 * 127)
    assert fixed_point.are_sums_exact(np.full((most, 2), -127, np.int8))
    assert not fixed_point.are_sums_exact(np.full((most + 1, 2), -127, np.int8))


def strategy(core: str) -> Strategy:
    found = Strategy(Core.named(core), 1)
    spills.ensure(found.core, BYTES)
    return found


@pytest.mark.parametrize("core", ["zen4", "golden-cove", "gracemont"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_few_rows_are_multiplied_so_where_bytes_are(core: str, rows: int) -> None:
    layer = GemmWorkload(rows, 4096, 9216)
    assert splits_rows(strategy(core), layer, "int8")
    assert not splits_rows(strategy(core), layer, "bfloat16")
    assert strategy(core).choose(split(layer, "int8")).config.mr <= 3 * rows


def test_others_are_converted() -> None:
    for core in ("zen3", "neoverse-n1"):
        assert not splits_rows(strategy(core), GemmWorkload(1, 4096, 9216), "int8")
    image = Conv2dWorkload(1, 256, 6, 6, 4096, 6, 6)
    assert not splits_rows(strategy("zen4"), image, "int8")
    assert not splits_rows(strategy("zen4"), GemmWorkload(1, 96, 96), "int8")


def test_the_report_names_the_product_and_its_error() -> None:
    weights = np.random.default_rng(4).standard_normal((1024, 1024)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = several_nodes([node], {"x": np.zeros((1, 1024), np.float32)}, {"w": weights})
    limits = Constraints(weights="int8")
    report = tvm_blislike.explain(model, "zen4", threads=1, constraints=limits, records="none")
    (layer,) = (each for each in report.layers if each.types)
    assert layer.types[:3] == BYTES.product and layer.weights_error > 1e-3
