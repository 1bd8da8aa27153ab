"""Winograd transforms: proven with symbols, known matrices, errors against their bound."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_blislike.schedules.conv2d_winograd.transforms import (
    ACCURATE_POINTS,
    amplification,
    by_phases,
    error_bound,
    matrices,
    program,
    transform_weights,
    verify,
)

VARIANTS = [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5), (1, 1), (3, 2), (4, 1), (1, 3), (8, 3)]
BOUNDED = [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5)]
POINTS = st.fractions(min_value=-4, max_value=4, max_denominator=8)


def rational(c):
    return sympy.Rational(c.numerator, c.denominator)


def proof(t):
    """Return AT [(G g) * (BT d)] minus the correlation, expanded."""
    g, d = sympy.symbols(f"g:{t.r}"), sympy.symbols(f"d:{t.n}")
    u, v = program(t.g).apply(g, rational), program(t.bt).apply(d, rational)
    products = [a * b for a, b in zip(u, v, strict=True)]
    result = program(t.at).apply(products, rational)
    return [
        sympy.expand(y - sum(g[j] * d[i + j] for j in range(t.r))) for i, y in enumerate(result)
    ]


@pytest.mark.parametrize("m, r", VARIANTS)
def test_symbolic_proof(m, r):
    assert proof(matrices(m, r)) == [0] * m


STRIDED = [(2, 3), (3, 3), (4, 3), (4, 2), (3, 4), (2, 5), (4, 5), (2, 7), (1, 1)]


@pytest.mark.parametrize("m, r", STRIDED)
def test_symbolic_proof_of_strided_ones(m, r):
    inner = matrices(m, math.ceil(r / 2))
    t = by_phases(inner, r, 2)
    assert t.inputs == 2 * (m - 1) + r and t.n == inner.n
    g, d = sympy.symbols(f"g:{r}"), sympy.symbols(f"d:{t.inputs}")
    u, v = program(t.g).apply(g, rational), program(t.bt).apply(d, rational)
    sums = [0] * t.n
    for product, (a, b) in enumerate(zip(u, v, strict=True)):
        sums[t.point(product)] += a * b
    for i, y in enumerate(program(t.at).apply(sums, rational)):
        assert sympy.expand(y - sum(g[j] * d[2 * i + j] for j in range(r))) == 0


def test_the_proof_of_strided_ones_can_fail():
    t = by_phases(matrices(4, 2), 3, 2)
    with pytest.raises(ValueError, match=r"output 0 holds .* times g\[\d\] d\[\d\], not"):
        verify(dataclasses.replace(t, g=t.g[::-1]))


@pytest.mark.parametrize("m, r", [(2, 3), (3, 3), (4, 3), (2, 5), (4, 5), (2, 7)])
def test_errors_of_strided_ones_stay_below_their_bound_and_near_it(m, r):
    """Phase by phase, as the micro-kernels add: all channels of one, then of the next."""
    t, channels = by_phases(matrices(m, math.ceil(r / 2)), r, 2), 64
    rng, worst = np.random.default_rng(3), 0.0
    g = rng.standard_normal((8, channels, r, r)).astype("float32")
    u = transform_weights(g, t, t)
    for _ in range(4):
        d = rng.uniform(-1, 1, (t.inputs, t.inputs, 8, channels)).astype("float32")
        v = nested(t.bt, t.bt, d, np.float32)
        y = nested(t.at, t.at, of_phases(t, v, u), np.float32)
        expected = sum(
            np.einsum(
                "yxtc,oc->yxto", d[i : i + 2 * m - 1 : 2, j : j + 2 * m - 1 : 2], g[:, :, i, j]
            )
            for i, j in np.ndindex(r, r)
        )
        worst = max(worst, np.abs(y - expected).max() / np.abs(expected).max())
    assert worst < error_bound(t, t, 4 * channels) < 12 * worst


def of_phases(t, v, u):
    """Return v @ u in float32, the products of a point one after the other."""
    total = np.zeros((t.n, t.n, v.shape[2], u.shape[-1]), "float32")
    for xi, nu in np.ndindex(t.inputs, t.inputs):
        at = t.point(xi), t.point(nu)
        for c in range(v.shape[-1]):
            product = np.outer(v[xi, nu, :, c].astype("float64"), u[xi, nu, c].astype("float64"))
            total[at] = (total[at] + product).astype("float32")
    return total


def test_symbolic_proof_of_the_accurate_points():
    for m, r in ((4, 3), (2, 5)):
        assert proof(matrices(m, r, ACCURATE_POINTS[m + r - 1])) == [0] * m


def test_the_proof_can_fail():
    t = matrices(4, 3)
    at = (*t.at[:-1], (*t.at[-1][:-1], Fraction(2)))
    broken = dataclasses.replace(t, at=at)
    assert proof(broken) != [0] * 4
    with pytest.raises(ValueError, match=r"output 3 holds 4 times g\[2\] d\[1\], not 0"):
        verify(broken)
    with pytest.raises(ValueError, match="bt of F\\(4, 3\\) must be 6 x 6"):
        verify(dataclasses.replace(t, bt=t.bt[1:]))


@given(st.integers(1, 5), st.integers(1, 5), st.data())
@settings(max_examples=60, deadline=None)
def test_any_points_give_the_exact_correlation(m, r, data):
    size = m + r - 2
    points = data.draw(st.lists(POINTS, min_size=size, max_size=size, unique=True))
    t = verify(matrices(m, r, points))
    numbers = st.fractions(min_value=-9, max_value=9, max_denominator=7)
    g = data.draw(st.lists(numbers, min_size=r, max_size=r))
    d = data.draw(st.lists(numbers, min_size=t.n, max_size=t.n))
    u, v = program(t.g).apply(g, Fraction), program(t.bt).apply(d, Fraction)
    y = program(t.at).apply([a * b for a, b in zip(u, v, strict=True)], Fraction)
    assert y == [sum(g[j] * d[i + j] for j in range(r)) for i in range(m)]


def rows_of(matrix):
    return [" ".join(str(c) for c in row) for row in matrix]


def test_f43_is_the_known_one():
    t = matrices(4, 3)
    assert rows_of(t.bt) == [
        "4 0 -5 0 1 0",
        "0 -4 -4 1 1 0",
        "0 4 -4 -1 1 0",
        "0 -2 -1 2 1 0",
        "0 2 -1 -2 1 0",
        "0 4 0 -5 0 1",
    ]
    assert rows_of(t.g)[0::2] == ["1/4 0 0", "-1/6 1/6 -1/6", "1/24 -1/12 1/6"]
    assert rows_of(t.at) == ["1 1 1 1 1 0", "0 1 -1 2 -2 0", "0 1 1 4 4 0", "0 1 -1 8 -8 1"]


def test_f63_is_the_known_one():
    t = matrices(6, 3)
    assert rows_of(t.bt)[0] == "1 0 -21/4 0 21/4 0 -1 0"
    assert rows_of(t.bt)[1] == "0 1 1 -17/4 -17/4 1 1 0"
    assert rows_of(t.bt)[3] == "0 1/2 1/4 -5/2 -5/4 2 1 0"
    assert rows_of(t.bt)[7] == "0 -1 0 21/4 0 -21/4 0 1"
    assert rows_of(t.at)[0] == "1 1 1 1 1 32 32 0"
    assert rows_of(t.at)[5] == "0 1 -1 32 -32 1 -1 1"
    assert rows_of(t.g)[:4:3] == ["1 0 0", "1/90 1/45 2/45"]


def test_transforms_without_a_gain_do_nothing():
    assert matrices(1, 1).at == matrices(1, 1).g == matrices(1, 1).bt == ((1,),)
    assert rows_of(matrices(3, 1).at) == rows_of(matrices(3, 1).bt) == ["1 0 0", "0 1 0", "0 0 1"]
    assert rows_of(matrices(3, 1).g) == ["1", "1", "1"]
    assert rows_of(matrices(1, 3).at) == ["1 1 1"]
    for m, r in ((1, 1), (5, 1), (1, 5)):
        assert matrices(m, r).n == m + r - 1
        assert amplification(matrices(m, r)) == pytest.approx(1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 3), "m and r must be at least 1"),
        ((4, 0), "m and r must be at least 1"),
        ((12, 5), "needs 15 points and there are 9 by default: choose a smaller m or pass points"),
        ((4, 3, (0, 1, -1)), "needs 5 points besides infinity, got 3"),
        ((2, 3, (0, 1, -1, 2)), "needs 3 points besides infinity, got 4"),
        ((2, 3, (0, Fraction(1, 2), Fraction(2, 4))), "points repeat 1/2: give every point once"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        matrices(*arguments)


def nested(matrix_h, matrix_w, patch, constant=float):
    """Apply both 1-D programs to an array whose first two axes are those of the patch."""
    rows = [program(matrix_w).apply(list(row), constant) for row in patch]
    columns = [
        program(matrix_h).apply(list(column), constant) for column in zip(*rows, strict=True)
    ]
    return np.array(columns).swapaxes(0, 1)


def correlation(d, g, m_h, m_w):
    """Return the convolution of patches d (h, w, tiles, ci) by g (co, ci, kh, kw) in float64."""
    taps = np.ndindex(*g.shape[2:])
    return sum(
        np.einsum("yxtc,oc->yxto", d[i : i + m_h, j : j + m_w], g[:, :, i, j], dtype="float64")
        for i, j in taps
    )


@pytest.mark.parametrize(
    "rows, columns",
    [
        ((2, 3), (2, 3)),
        ((4, 3), (6, 3)),
        ((1, 1), (4, 3)),
        ((4, 5), (1, 1)),
        ((4, 3), (2, 5)),
        ((3, 1), (2, 3)),
        ((1, 3), (4, 3)),
    ],
)
def test_convolution_square_and_rectangular(rows, columns):
    h, w = matrices(*rows), matrices(*columns)
    rng = np.random.default_rng(1)
    d, g = rng.standard_normal((h.n, w.n, 5, 7)), rng.standard_normal((3, 7, h.r, w.r))
    u = transform_weights(g.astype("float32"), h, w)
    assert u.shape == (h.n, w.n, 7, 3) and u.dtype == np.float32 and u.flags.c_contiguous
    y = nested(h.at, w.at, nested(h.bt, w.bt, d) @ u)
    expected = correlation(d, g, h.m, w.m)
    # Weights are rounded twice, to float32 and after their transform; all else is double.
    assert np.abs(y - expected).max() < error_bound(h, w, channels=7) * np.abs(expected).max()


@pytest.mark.parametrize("filters, channels", [(1, 1), (3, 17), (33, 8)])
def test_weights_are_rounded_once(filters, channels):
    h, w = matrices(4, 3), matrices(2, 5)
    g = np.random.default_rng(2).standard_normal((filters, channels, 3, 5)).astype("float32")
    u = transform_weights(g, h, w)
    exact = np.einsum("xi,yj,ocij->xyco", *(np.array(t.g, "float64") for t in (h, w)), g)
    # Half a unit in the last place, and what double precision is wrong by.
    assert np.all(np.abs(u - exact) <= np.spacing(np.abs(u)) / 2 + 1e-12 * np.abs(g).max())


def test_weights_of_another_size():
    with pytest.raises(ValueError, match=r"expected weights \(co, ci, 3, 1\), got shape"):
        transform_weights(np.zeros((4, 4, 3, 3), "float32"), matrices(4, 3), matrices(1, 1))


def in_one_accumulator(v, u):
    """Return v @ u in float32 as a micro-kernel adds: one FMA per channel, rounded once each."""
    v, u = v.astype("float64"), u.astype("float64")
    total = np.zeros((*v.shape[:3], u.shape[-1]), "float32")
    for c in range(v.shape[-1]):
        total = (total + v[..., c, None] * u[:, :, None, c]).astype("float32")
    return total


def float32_error(t, channels, seed, image):
    rng = np.random.default_rng(seed)
    d = image(rng, (t.n, t.n, 8, channels)).astype("float32")
    g = rng.standard_normal((8, channels, t.r, t.r)).astype("float32")
    v = nested(t.bt, t.bt, d, np.float32)
    y = nested(t.at, t.at, in_one_accumulator(v, transform_weights(g, t, t)), np.float32)
    assert v.dtype == y.dtype == np.float32
    expected = correlation(d.astype("float64"), g.astype("float64"), t.m, t.m)
    return np.abs(y - expected).max() / np.abs(expected).max()


IMAGES = {
    "uniform": lambda rng, shape: rng.uniform(-1, 1, shape),
    "after relu": lambda rng, shape: np.maximum(rng.standard_normal(shape), 0),
}


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("m, r", BOUNDED)
def test_errors_stay_below_their_bound_and_near_it(m, r, image):
    t = matrices(m, r)
    for channels, seeds in ((64, range(6)), (512, range(3))):
        worst = max(float32_error(t, channels, seed, IMAGES[image]) for seed in seeds)
        assert worst < error_bound(t, t, channels) < 5 * worst
        assert worst < error_bound(t, t) < 50 * worst


@pytest.mark.parametrize("m, r", [(4, 3), (2, 5)])
def test_accurate_points_are_more_accurate(m, r):
    usual, accurate = matrices(m, r), matrices(m, r, ACCURATE_POINTS[m + r - 1])
    errors = [
        np.mean([float32_error(t, 128, seed, IMAGES["uniform"]) for seed in range(4)])
        for t in (usual, accurate)
    ]
    assert errors[0] > 2 * errors[1]
    assert error_bound(accurate, accurate) < error_bound(usual, usual) / 2
    exact = [c for matrix in (accurate.at, accurate.bt) for row in matrix for c in row]
    assert all(Fraction(float(np.float32(float(c)))) == c for c in exact)


def test_bound_of_a_direct_convolution():
    """Without a transform it is u sqrt(channels): nothing but the sums' own roundings."""
    plain = matrices(1, 1)
    assert error_bound(plain, plain, 256) == pytest.approx(2**-24 * math.sqrt(256))
