"""Transform matrices of Winograd's minimal convolutions F(m, r), exact and proven.

m outputs of a kernel of r values take n = m + r - 1 multiplications instead of m r:

    y = AT [ (G g) * (BT d) ],    y[i] = sum over j of g[j] d[i + j]

The matrices follow from n - 1 points and infinity: multiply polynomials by their values at the
points (Toom-Cook), interpolate, transpose (Winograd 1980; Blahut, Fast Algorithms for Signal
Processing, chapter 5). They are rationals until a program or a weight is rounded once.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from tvm_blislike.schedules.conv2d_winograd.programs import Matrix, flat_program, program
from tvm_blislike.schedules.conv2d_winograd.straight_line import Program

__all__ = [
    "ACCURATE_POINTS",
    "POINTS",
    "Program",
    "Transforms",
    "amplification",
    "by_phases",
    "error_bound",
    "flat_program",
    "matrices",
    "program",
    "transform_weights",
    "verify",
]

# Of which what is in float64 stays in a core's second-level cache, and few enough for libraries of
# matrix products to leave other CPUs to others.
_KERNELS_AT_A_TIME = 2048
# Pairs p, -p share half of their additions. The first seven give the usual F(2, 3), F(4, 3) and
# F(6, 3). Where there is a choice, errors measured in fp32 (64 or 256 channels) decide:
# - n = 5 and 7, the odd point: 2, 1/2 and -1/2 are alike (F(5, 3): 1.4e-5 to 1.6e-5);
# - n = 8: of all 0, +-a, +-b, +-c in eighths from 3/8 to 5/2 these have the least `amplification`;
# - n = 9: 3/4 has half the error of 3, 4, 1/4 or 3/2 (F(7, 3): 1.3e-4 against 2.5e-4 or more);
# - n = 10: 3/4 and -3/4 give 1.7e-4, 3/2 and -3/2 3.0e-4, points beyond 2 or below 1/2 1.5e-3.
POINTS = (0, 1, -1, 2, -2, *(Fraction(p, 4) for p in (2, -2, 3, -3)))
# n = 6: a quarter of the error of POINTS (F(4, 3), 256 channels: 2.8e-6 against 1.1e-5) for two
# more multiplications in a pass of AT. The constants of AT and BT are exact in fp32.
ACCURATE_POINTS = {6: (0, *(Fraction(p, 4) for p in (3, -3, 6, -6)))}


@dataclass(frozen=True)
class Transforms:
    """The matrices of F(m, r), as rows of exact fractions; see the module for their roles.

    Parameters
    ----------
    m, r : int
        Outputs of a tile and length of the kernel.
    at : m x n
        Output transform.
    g : n x r
        Kernel transform.
    bt : n x n
        Input transform.
    scale : int
        What G is multiplied with, and the result too.
    stride : int
        Inputs from one output to the next; with more than one, rows of G and BT and columns of BT
        are as many as `inputs`.
    """

    m: int
    r: int
    at: Matrix
    g: Matrix
    bt: Matrix
    scale: int = 1
    stride: int = 1

    @property
    def n(self) -> int:
        """Points, in which sums of products are transformed to outputs."""
        return self.m + math.ceil(self.r / self.stride) - 1

    @property
    def inputs(self) -> int:
        """Inputs of a tile, and its multiplications."""
        return self.stride * (self.m - 1) + self.r

    def point(self, product: int) -> int:
        """Return the point of a product: all points of a phase of the image, then the next."""
        return product % self.n


def matrices(m: int, r: int, points: Sequence[Fraction | int] | None = None) -> Transforms:
    """Return the proven transforms of F(m, r).

    Parameters
    ----------
    m, r : int
        Outputs of a tile and length of the kernel. When one of them is 1 and no points are
        given, nothing is gained over the plain products and BT is the identity.
    points : sequence of Fraction or int, optional
        m + r - 2 different points; infinity is always added.

    Raises
    ------
    ValueError
        When m or r is below 1, or the points are too few, too many or not different.
    """
    if m < 1 or r < 1:
        raise ValueError(f"F({m}, {r}): m and r must be at least 1")
    if points is None and min(m, r) == 1:
        return _plain(m, r)
    return _toom_cook(m, r, _checked(m, r, points))


def by_phases(inner: Transforms, r: int, stride: int) -> Transforms:
    """Return the proven transforms of a strided convolution, the sum of those of its phases.

    With a stride of s, y[i] = sum over j of g[j] d[s i + j] is a sum over the phases p of the
    image, of the elements p, p + s, ... of both: convolutions of stride 1, of as many taps or one
    less. All take the same points, so that their products are added before the output transform.
    Where a phase has one tap less, its product at infinity, of the last tap, is 0 and left out:
    what remains are s (m - 1) + r products, as few as if each phase had points of its own.

    Parameters
    ----------
    inner : Transforms
        F(m, ceil(r / s)), for phases with most taps.
    r, stride : int
        Length of the kernel, and s, 1 or 2.
    """
    if stride == 1:
        return inner
    inputs = stride * (inner.m - 1) + r
    g, bt = [], []
    for phase in range(min(stride, r)):
        taps, pixels = range(phase, r, stride), range(phase, inputs, stride)
        for point in range(inner.m + len(taps) - 1):
            g.append(_spread(inner.g[point], taps, r))
            bt.append(_spread(inner.bt[point], pixels, inputs))
    return verify(replace(inner, r=r, g=tuple(g), bt=tuple(bt), stride=stride))


def _spread(row: Sequence[Fraction], places: Sequence[int], size: int) -> tuple[Fraction, ...]:
    """Return a row of so many elements, with the first of another one in such places."""
    spread = [Fraction(0)] * size
    for place, value in zip(places, row, strict=False):
        spread[place] = value
    return tuple(spread)


def _checked(m: int, r: int, points: Sequence[Fraction | int] | None) -> tuple[Fraction, ...]:
    needed = m + r - 2
    if points is None:
        if needed > len(POINTS):
            raise ValueError(
                f"F({m}, {r}) needs {needed} points and there are {len(POINTS)} by default: "
                "choose a smaller m or pass points"
            )
        points = POINTS[:needed]
    if len(points) != needed:
        raise ValueError(
            f"F({m}, {r}) needs {needed} points besides infinity, got {len(points)}: "
            f"pass m + r - 2 points"
        )
    exact = tuple(map(Fraction, points))
    repeated = [str(p) for i, p in enumerate(exact) if p in exact[:i]]
    if repeated:
        raise ValueError(f"points repeat {', '.join(repeated)}: give every point once")
    return exact


@functools.cache
def _plain(m: int, r: int) -> Transforms:
    """F(m, 1) and F(1, r): m separate products, or r products and their sum."""
    n = m + r - 1
    identity = _exact([[int(i == j) for j in range(n)] for i in range(n)])
    at = identity if m > 1 else _exact([[1] * n])
    g = _exact([[1]] * n) if m > 1 else identity
    return verify(Transforms(m, r, at, g, identity))


@functools.cache
def _toom_cook(m: int, r: int, points: tuple[Fraction, ...]) -> Transforms:
    """Build the matrices so that BT has leading ones and AT holds integers."""
    at_columns, g, bt = [], [], []
    for point in points:
        others = [p for p in points if p != point]
        basis = _with_roots(others)
        at_point = math.prod(point - p for p in others)
        # As usual, the row of point 0 takes its sign from G.
        sign = -1 if point == 0 and at_point < 0 else 1
        # A fraction a / b is the projective point (a, b): powers of it stay integers.
        b = point.denominator ** (m - 1)
        at_columns.append([point**i * b for i in range(m)])
        g.append([sign * point**j / (at_point * b) for j in range(r)])
        bt.append([sign * c for c in basis] + [0])
    at_columns.append([int(i == m - 1) for i in range(m)])
    g.append([int(j == r - 1) for j in range(r)])
    bt.append(_with_roots(points))
    return verify(Transforms(m, r, _exact(zip(*at_columns, strict=True)), _exact(g), _exact(bt)))


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Return the coefficients of the product of (x - root), constant term first."""
    polynomial = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *polynomial]
        polynomial = [s - root * c for s, c in zip(shifted, [*polynomial, 0], strict=True)]
    return polynomial


def _exact(rows: Iterable[Iterable[Fraction | int]]) -> Matrix:
    return tuple(tuple(map(Fraction, row)) for row in rows)


def verify(transforms: Transforms) -> Transforms:
    """Prove that the matrices compute F(m, r) and return them.

    y[i] is a sum of products g[j] d[k]; its coefficients, exact, must be 1, or `scale`, where
    k = stride i + j and 0 elsewhere. That is the identity itself, for all values of g and d.

    Raises
    ------
    ValueError
        When a matrix has the wrong shape or a coefficient is wrong.
    """
    t = transforms
    shapes = {"at": (t.m, t.n), "g": (t.inputs, t.r), "bt": (t.inputs, t.inputs)}
    for name, (height, width) in shapes.items():
        matrix = getattr(t, name)
        if len(matrix) != height or any(len(row) != width for row in matrix):
            raise ValueError(f"{name} of F({t.m}, {t.r}) must be {height} x {width}")
    for i, j, k in itertools.product(range(t.m), range(t.r), range(t.inputs)):
        got = sum(t.at[i][t.point(xi)] * t.g[xi][j] * t.bt[xi][k] for xi in range(t.inputs))
        wanted = (k == t.stride * i + j) * t.scale
        if got != wanted:
            raise ValueError(
                f"not F({t.m}, {t.r}): output {i} holds {got} times g[{j}] d[{k}], not {wanted}"
            )
    return transforms


def transform_weights(weights: np.ndarray, rows: Transforms, columns: Transforms) -> np.ndarray:
    """Return U = G g G^T of every kernel, computed in float64 and rounded once.

    Parameters
    ----------
    weights : ndarray
        Kernels, (co, ci, kh, kw).
    rows, columns : Transforms
        F(m, kh) along the height and F(m, kw) along the width.

    Returns
    -------
    ndarray
        float32, (rows.inputs, columns.inputs, ci, co).

    Raises
    ------
    ValueError
        When the kernels are not of rows.r x columns.r.
    """
    if weights.ndim != 4 or weights.shape[2:] != (rows.r, columns.r):
        raise ValueError(
            f"expected weights (co, ci, {rows.r}, {columns.r}), got shape {weights.shape}"
        )
    g_h, g_w = (np.array(t.g, "float64") for t in (rows, columns))
    co, ci = weights.shape[:2]
    points = np.empty((rows.inputs, columns.inputs, ci, co), "float32")
    step = max(1, _KERNELS_AT_A_TIME // co)
    for first in range(0, ci, step):
        some = slice(first, first + step)
        # In the order of the result from the beginning: the taps are moved, not the more numerous
        # points.
        taps = np.ascontiguousarray(weights[:, some].transpose(2, 3, 1, 0), "float64")
        half = (g_h @ taps.reshape(rows.r, -1)).reshape(rows.inputs, columns.r, -1)
        for row, of_row in zip(points, half, strict=True):
            row[:, some] = (g_w @ of_row).reshape(columns.inputs, -1, co)
    return points


def amplification(transforms: Transforms) -> float:
    """Return how much larger the errors of the products are in the result, relative to it.

    Product xi is as large as |g_xi| |bt_xi| (2-norms of the rows) and so is its rounding error;
    output i is as large as sqrt(r). For random data the errors add up as

        max over i of sqrt( sum over xi of (at[i, xi] |g_xi| |bt_xi|)^2 / r ),

    which is 1 without a transform, 1.3 for F(2, 3), 5.6 for F(4, 3) and 6.8 for F(6, 3).
    """
    at, g, bt = (np.array(getattr(transforms, name), "float64") for name in ("at", "g", "bt"))
    products = np.linalg.norm(g, axis=1) * np.linalg.norm(bt, axis=1)
    at = at[:, [transforms.point(product) for product in range(transforms.inputs)]]
    return float(np.linalg.norm(at * products, axis=1).max() / math.sqrt(transforms.r))


def error_bound(
    rows: Transforms, columns: Transforms, channels: int = 512, dtype: str = "float32"
) -> float:
    """Estimate the largest error of a convolution, relative to the largest output.

    u sqrt(channels) a_h a_w with u = 2^-24 (fp16: 2^-11) and the `amplification` a of both
    directions: products are sums over `channels` terms, one after the other, whose roundings add up
    like a random walk and outweigh those of the transforms. A product of norms of the three
    matrices, as in Barabasz, Anderson, Soodhalter and Gregg, "Error Analysis and Improving the
    Accuracy of Winograd Convolution for Deep Neural Networks", ACM TOMS 46(4), 2020, but of
    2-norms, point by point: theirs holds for the worst data, this one follows random data. Measured
    errors of F(2, 3), F(4, 3), F(6, 3), F(2, 5) and F(4, 5) in fp32 with 16 to 512 channels,
    uniform and rectified normal images, are 0.16 to 0.68 of it; with 1-norms the ratio spreads over
    a factor of ten. No guarantee for data that cancel.

    Parameters
    ----------
    rows, columns : Transforms
        F(m, kh) along the height and F(m, kw) along the width.
    channels : int
        Products added up in one accumulator: input channels, those of each phase of the image.
    dtype : str
        In which everything is computed.
    """
    roundoff = float(np.finfo(dtype).eps) / 2
    return roundoff * math.sqrt(channels) * amplification(rows) * amplification(columns)
