"""Magnitudes and masks: exact for every pair of bytes, and packed as micro-kernels read them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from tvm import te

from tvm_blislike.microkernels.masks import KS, masked_panels, masked_panels_te
from tvm_blislike.microkernels.products import panels_of_b
from tvm_blislike.model.types import MASKED, data_range, weights_range

LANES = 8
HALF = LANES * KS
DATA = np.arange(256, dtype=np.uint8)
WEIGHTS = np.arange(-128, 128, dtype=np.int16)


def of_instruction(unsigned: np.ndarray, signed: np.ndarray) -> np.ndarray:
    """Return what `vpmaddubsw` makes of pairs along the last axis: sums that saturate."""
    products = unsigned.astype(np.int64) * signed.astype(np.int64)
    return np.clip(products.reshape(*products.shape[:-1], -1, 2).sum(-1), -(2**15), 2**15 - 1)


def row(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return magnitudes, masks, and offsets of columns of a panel of 8 columns of one group."""
    packed = masked_panels(weights.reshape(1, HALF).astype(np.int16), 1)
    magnitudes, masks = packed[0].view(np.uint8).reshape(2, HALF)
    return magnitudes, masks, packed[1].view(np.int32)[:LANES]


def products_of_bytes() -> tuple[np.ndarray, np.ndarray]:
    """Return the products of every byte and every weight, and those of `masked_panels` (w, a)."""
    magnitudes, masks, offsets = (np.empty((8, HALF), np.int64) for _ in range(3))
    for n, weights in enumerate(WEIGHTS.reshape(8, HALF)):
        magnitudes[n], masks[n], _ = row(weights)
        # The offset of each weight by itself: of a panel in which its column has no other.
        for lane, weight in enumerate(weights):
            alone = np.zeros(HALF)
            alone[lane] = weight
            offsets[n, lane] = row(alone)[2][lane // KS]
    turned = (DATA ^ masks.reshape(-1, 1).astype(np.uint8)).view(np.int8).astype(np.int64)
    products = magnitudes.reshape(-1, 1) * turned
    return products, products + offsets.reshape(-1, 1)


def test_every_product_of_bytes_is_exact_and_no_pair_saturates() -> None:
    """All 65,536 products, and so all pairs: the extremes of one weight meet those of any other."""
    products, with_offsets = products_of_bytes()
    exact = WEIGHTS.astype(np.int64)[:, None] * DATA
    np.testing.assert_array_equal(with_offsets, exact)
    assert (2 * products.min(), 2 * products.max()) == (-(2**15), 2 * 127 * 128)
    # What the instruction makes of the data as they are is wrong: the test can tell.
    assert 2 * exact.max() > 2**15 - 1


def test_extreme_pairs_are_multiplied_exactly() -> None:
    """The instruction as it is, on each pair of extreme weights with each pair of extreme bytes."""
    data = np.array([0, 1, 127, 128, 254, 255], np.uint8)
    weights = np.array([-128, -127, -1, 0, 1, 127])
    for w in np.stack(np.meshgrid(weights, weights), -1).reshape(-1, 2):
        magnitudes, masks, offsets = row(np.resize(w, HALF))
        for a in np.stack(np.meshgrid(data, data), -1).reshape(-1, 2):
            turned = (np.resize(a, HALF) ^ masks).view(np.int8)
            pairs = of_instruction(magnitudes, turned)
            sums = pairs.reshape(LANES, 2).sum(-1) + offsets
            np.testing.assert_array_equal(sums, 2 * (w * a.astype(np.int64)).sum())


def multiplied(a: np.ndarray, panels: np.ndarray, groups: int, nr: int) -> np.ndarray:
    """Return A (m, k) by panels of B as calls of micro-kernels compute it, step by step."""
    rows = groups + 1
    total = np.zeros((a.shape[0], panels.shape[0] * nr), np.int64)
    for tile, panel in enumerate(panels):
        group = 0
        for number, raw in enumerate(panel):
            columns = slice(tile * nr, (tile + 1) * nr)
            if number % rows == groups or number == len(panel) - 1:
                total[:, columns] += raw.view(np.int32)[:nr]
                continue
            parts = raw.view(np.uint8).reshape(-1, 2, HALF)
            magnitudes, masks = (parts[:, i].reshape(-1) for i in range(2))
            of_a = np.tile(a[:, group * KS : (group + 1) * KS], nr)
            pairs = of_instruction(magnitudes, (of_a ^ masks).view(np.int8))
            total[:, columns] += pairs.reshape(len(a), nr, 2).sum(-1)
            group += 1
    return total


@st.composite
def operands(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int]:
    m, n, depth = (draw(st.integers(1, most)) for most in (3, 40, 9))
    groups, nr = draw(st.integers(1, 10)), draw(st.sampled_from([8, 16, 24]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    of_a, of_b = data_range(MASKED), weights_range(MASKED)
    if draw(st.booleans()):
        return rng.choice(of_a, (m, depth * KS)), rng.choice(of_b, (depth * KS, n)), groups, nr
    a = rng.integers(*of_a, (m, depth * KS), endpoint=True)
    return a, rng.integers(*of_b, (depth * KS, n), endpoint=True), groups, nr


@examples(60)
@given(operands())
def test_products_of_panels_are_exact(case: tuple[np.ndarray, np.ndarray, int, int]) -> None:
    a, b, groups, nr = case
    panels = panels_of_b(b[None].astype(np.int16), nr, KS)[0]
    packed = masked_panels(panels, groups)
    found = multiplied(a.astype(np.uint8), packed, groups, nr)[:, : b.shape[1]]
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("depth, groups", [(1, 1), (7, 3), (6, 3), (5, 8)])
def test_panels_are_made_alike_at_run_time(depth: int, groups: int) -> None:
    rng = np.random.default_rng(depth)
    panels = rng.integers(*weights_range(MASKED), (2, 3, depth, 16 * KS), endpoint=True)
    panels = panels.astype(np.int16)
    plain = te.placeholder(panels.shape, "int16", name="panels")
    made = masked_panels_te(plain, groups, name="masked")
    expected = masked_panels(panels, groups)
    out = tvm.runtime.tensor(np.full([int(n) for n in made.shape], 99, "int16"))
    tvm.compile(te.create_prim_func([plain, made]), "llvm")["main"](tvm.runtime.tensor(panels), out)
    np.testing.assert_array_equal(out.numpy(), expected)


def test_weights_of_more_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 8 bits"):
        masked_panels(np.full((1, HALF), 128, np.int16), 1)
