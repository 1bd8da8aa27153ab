"""Matrix multiplication by seven products of half the size: one level of Strassen's algorithm.

After Strassen, "Gaussian Elimination is not Optimal" (1969), inside the loops of a blocked product
as in Huang, Smith, Henry and van de Geijn, "Strassen's Algorithm Reloaded" (SC 2016): nothing of
the size of a matrix is kept besides A, C and the sums of B. With quarters A11 (h = 0, c = 0), A12,
A21, A22 of the operands, product x is V[x] U[x], V = `OF_A` A and U = `OF_B` B, and C = `OF_C` M:

    for jc                      blocks of nc columns: one, or as many as threads divide
      for ic                    blocks of mc pairs of rows, which threads divide otherwise
        "tiles" order                             "products" order
        V[x] of all x                             for x
        for jr, ir    (panel of U, tile of V)       V[x]
          for x       M[x] = micro-kernel           for jr, ir   M[x, jr, ir] = micro-kernel
          C[jr, ir] = epilogue of sums of M       for ir, jr     C[ir, jr] = epilogue of sums of M

Which rows and columns are a half is free: rows alternate, so that a block of pairs is a block of A
and of C, and an odd row more is one pair that reads a row twice and stores it once; panels of nr
columns alternate, k is cut in the middle. U is made at compile time, 7/4 of the memory of B.

M goes through memory: to add a product to two blocks of C from registers instead would read and
write C twelve times where M is written seven times and read seven times, and in "tiles" order M
stays in L1. What sums cost, what is gained, and where: `benchmarks/results/strassen.txt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from tvm_blislike.cost_models.gemm_strassen import candidates
from tvm_blislike.cost_models.gemm_strassen import estimate as model
from tvm_blislike.cost_models.gemm_strassen.config import StrassenConfig
from tvm_blislike.cost_models.gemm_strassen.geometry import PRODUCTS_OF_QUARTERS, StrassenGeometry
from tvm_blislike.cost_models.gemm_strassen.open_rows import of_open_rows
from tvm_blislike.cost_models.gemm_strassen.space import space
from tvm_blislike.model.registry import Template
from tvm_blislike.model.workload import GemmWorkload
from tvm_blislike.schedules.common import stage
from tvm_blislike.schedules.gemm_strassen.schedule import schedule

# Of each product the coefficients of the quarters 11, 12, 21, 22. Strassen's own and not Winograd's
# form, which has 15 additions instead of 18, but of sums of sums: these are one addition each.
OF_A = (
    (1, 0, 0, 1),
    (0, 0, 1, 1),
    (1, 0, 0, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (-1, 0, 1, 0),
    (0, 1, 0, -1),
)
OF_B = (
    (1, 0, 0, 1),
    (1, 0, 0, 0),
    (0, 1, 0, -1),
    (-1, 0, 1, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (0, 0, 1, 1),
)
# Of each quarter of C the coefficients of the products.
OF_C = (
    (1, 0, 0, 1, -1, 0, 1),
    (0, 0, 1, 0, 1, 0, 0),
    (0, 1, 0, 1, 0, 0, 0),
    (1, -1, 1, 0, 0, 1, 0),
)


def pack_b(workload: GemmWorkload, config: StrassenConfig, b: np.ndarray) -> np.ndarray:
    """Add up quarters of B, in float64, and cut the sums into panels.

    Parameters
    ----------
    b : numpy.ndarray
        (k, n).

    Returns
    -------
    numpy.ndarray
        `StrassenGeometry.packed_shape`.
    """
    geo = StrassenGeometry(workload, config)
    quarters = b.reshape(2, geo.steps, geo.tiles_n, 2, config.nr).transpose(2, 0, 3, 1, 4)
    packed = np.empty(geo.packed_shape, b.dtype)
    by_product = packed.transpose(*geo.in_order(1, 0), 2, 3)
    for x, row in enumerate(OF_B):
        by_product[x] = sum(
            factor * quarters[:, q // 2, q % 2].astype("float64")
            for q, factor in enumerate(row)
            if factor
        )
    return packed


def pack_b_te(workload: GemmWorkload, config: StrassenConfig, b: te.Tensor) -> te.Tensor:
    """`pack_b` as a TE stage, for an operand that is not known at compile time."""
    geo = StrassenGeometry(workload, config)

    def value(outer: Any, inner: Any, p: Any, j: Any) -> Any:
        jt, x = geo.in_order(outer, inner)
        rows = (c * geo.steps + p for c in (0, 1))
        columns = [(2 * jt + g) * config.nr + j for g in (0, 1)]
        quarters = [b[row, column] for row in rows for column in columns]
        return _selected(x, [_combined(row, quarters) for row in OF_B])

    return te.compute(geo.packed_shape, value, name="packed_b", attrs=stage("packed_b"))


def error_bound(workload: GemmWorkload, _config: StrassenConfig) -> float:
    """Return the error to expect relative to the largest output, for random data.

    u sqrt(k / 2) a: the roundings of sums of k / 2 products add up like a random walk, and are as
    much larger in a quarter of C as its products are, against its own 2 k / 2 of them,

        a = max over quarters of sqrt( sum over x of (of_c[x] |of_a[x]| |of_b[x]|)^2 / 2 ) = sqrt(6)

    with 2-norms of rows, as for Winograd convolutions. Of the worst data see Higham, "Accuracy and
    Stability of Numerical Algorithms", chapter 23: each level of Strassen's algorithm takes up to
    3.6 times the error bound. `tests/schedules/test_gemm_strassen.py` measures 0.15 to 0.6 of it.
    """
    a, b, c = (np.array(rows, "float64") for rows in (OF_A, OF_B, OF_C))
    products = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    amplification = np.linalg.norm(c * products, axis=1).max() / math.sqrt(2)
    roundoff = float(np.finfo(workload.types.acc).eps) / 2
    return float(roundoff * math.sqrt(workload.k / 2) * amplification)


def compute(
    workload: GemmWorkload, config: StrassenConfig, data: te.Tensor, packed: te.Tensor
) -> te.Tensor:
    """Define the product.

    Parameters
    ----------
    data : te.Tensor
        A, (m, k), or (1, m, k).
    packed : te.Tensor
        The sums of B as `pack_b` makes them.

    Returns
    -------
    te.Tensor
        C, with as many axes as A.
    """
    first = data.shape[:-2]
    at_front = tuple(0 for _ in first)
    products = products_of(workload, config, lambda row, p: data[(*at_front, row, p)], packed)
    return te.compute(
        (*first, workload.m, workload.n),
        lambda *at: result_at(products, config, at[-2], at[-1]),
        name="unpack",
        attrs=stage("unpack"),
    )


def products_of(
    workload: GemmWorkload,
    config: StrassenConfig,
    element: Callable[[Any, Any], Any],
    packed: te.Tensor,
) -> te.Tensor:
    """Define the products of quarters, by tiles.

    Parameters
    ----------
    element : callable
        (row, step of k) to an element of A.
    packed : te.Tensor
        The sums of B as `pack_b` makes them.

    Returns
    -------
    te.Tensor
        (tiles of rows, tiles of columns, product, mr, nr).
    """
    geo = StrassenGeometry(workload, config)
    mr, nr = config.mr, config.nr
    # Whole blocks: what lies beyond the pairs is cut in the schedule.
    tiles = geo.blocks_m * geo.block_m

    def quarter(pair: Any, row: Any, half: Any, p: Any) -> Any:
        # Of a last single row both rows are the same one: the other's results are not stored.
        row = tirx.min(2 * pair + row, workload.m - 1) if workload.m % 2 else 2 * pair + row
        return element(row, half * geo.steps + p)

    def sums(it: Any, x: Any, i: Any, p: Any) -> Any:
        """Add two quarters of A, or one and nothing; which ones does not change in a row."""
        terms = [[q for q, factor in enumerate(row) if factor] for row in OF_A]
        one, other = ([t[place] for t in terms] for place in (0, -1))
        of_one = [row[q] for row, q in zip(OF_A, one, strict=True)]
        of_other = [row[q] * (len(t) > 1) for row, q, t in zip(OF_A, other, terms, strict=True)]
        dtype = workload.types.a
        choose = _selected if geo.by_tiles else _bit
        halves = ([choose(x, h) for h in zip(*map(_halves, q), strict=True)] for q in (one, other))
        values = (quarter(it * mr + i, *h, p) for h in halves)
        factors = (_selected(x, [tirx.const(f, dtype) for f in fs]) for fs in (of_one, of_other))
        return sum(value * factor for value, factor in zip(values, factors, strict=True))

    v = te.compute(
        (tiles, PRODUCTS_OF_QUARTERS, mr, geo.steps), sums, name="sums_of_a", attrs=stage("v")
    )
    p = te.reduce_axis((0, geo.steps), "p")
    shape = (tiles, geo.tiles_n, PRODUCTS_OF_QUARTERS, mr, nr)
    acc = te.compute(
        shape,
        lambda it, jt, x, i, j: te.sum(
            v[it, x, i, p] * packed[(*geo.in_order(jt, x), p, j)], axis=[p]
        ),
        name="acc",
        attrs=stage("acc"),
    )
    return te.compute(shape, lambda *at: acc[at], name="products", attrs=stage("products"))


def result_at(products: te.Tensor, config: StrassenConfig, row: Any, column: Any) -> Any:
    """Return an element of C, the sum of products of quarters."""
    pair, panel = row // 2, column // config.nr
    place = pair // config.mr, panel // 2
    at_tile = pair % config.mr, column % config.nr
    values = [products[(*place, x, *at_tile)] for x in range(PRODUCTS_OF_QUARTERS)]
    quarters = [_combined(coefficients, values) for coefficients in OF_C]
    halves = [_selected(panel % 2, quarters[h : h + 2]) for h in (0, 2)]
    return _selected(row % 2, halves)


def _halves(quarter: int) -> tuple[int, int]:
    """Return the half of rows and that of columns."""
    return quarter // 2, quarter % 2


def _bit(index: Any, bits: Sequence[int]) -> Any:
    """Return one of several bits: less to simplify than selections, of which indices are full."""
    word = sum(bit << place for place, bit in enumerate(bits))
    return tirx.bitwise_and(tirx.shift_right(tirx.const(word, "int32"), index), 1)


def _combined(coefficients: Sequence[int], values: Sequence[Any]) -> Any:
    """Return the sum of values with factors of 1, 0 and -1, one of 1 first."""
    terms = sorted(zip(coefficients, values, strict=True), key=lambda term: -term[0])
    result = terms[0][1]
    for factor, value in terms[1:]:
        if factor:
            result = result + value if factor > 0 else result - value
    return result


def _selected(index: Any, values: Sequence[Any]) -> Any:
    """Return one of several values."""
    result = values[-1]
    for i in reversed(range(len(values) - 1)):
        result = tirx.Select(index == i, values[i], result)
    return result


IMPLEMENTATION = Template(
    name="gemm_strassen",
    kind="gemm",
    config_type=StrassenConfig,
    applies=candidates.applies,
    configs=candidates.configs,
    estimate=model.estimate,
    least_seconds=candidates.least_seconds,
    workspace_bytes=model.workspace_bytes,
    pack=pack_b,
    pack_te=pack_b_te,
    compute=compute,
    schedule=schedule,
    error_bound=error_bound,
    every=space,
    derivation=candidates.derivation,
    of_open_rows=of_open_rows,
)
