"""How far a model whose layers are computed in fewer bits is predicted to be off.

Roundings are independent: their squares add up. Those of layers one behind the other all come
through; of those of a branch whose result is added to what it was computed from as much as the
branch is of the sum. What came in at its beginning is in both terms, and stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tvm import relax

from tvm_blislike.tvm_seams import bindings, is_constant, op_name

# Share of a branch in the square of a residual sum. Encoders of random weights whose sums are in
# fp32: errors of 5.4e-3 (6 layers of 384 channels) and 7.4e-3 (12 of 768), predicted 5.2e-3 and
# 7.4e-3; branches there are from 0.03 to 0.5 of a sum. Networks of convolutions, whose rectifiers
# and means take errors away, are off by half of what is predicted.
BRANCH = 0.2


def predicted(func: relax.Function, errors: Mapping[relax.Var, float]) -> float:
    """Return the relative root mean square error of what a function returns, the largest of all.

    Parameters
    ----------
    func : relax.Function
        In fp32.
    errors : mapping
        Results of layers that are to be computed in fewer bits, with the error that each comes to
        by rounding its operands, relative to its result.
    """
    squares: dict[relax.Var, float] = {}
    for binding in bindings(func):
        value, own = binding.value, errors.get(binding.var, 0.0) ** 2
        squares[binding.var] = _behind(value, squares) + own
    return math.sqrt(_largest(func.body.body, squares))


def _behind(value: relax.Expr, squares: Mapping[relax.Var, float]) -> float:
    """Return the square of the error that an operator hands on."""
    terms = value.args if op_name(value) == "relax.add" else ()
    if len(terms) == 2 and not any(map(is_constant, terms)):
        stream, branch = sorted(squares.get(term, 0.0) for term in terms)
        return stream + BRANCH * (branch - stream)
    return _largest(value, squares)


def _largest(expr: relax.Expr, squares: Mapping[relax.Var, float]) -> float:
    """Return the largest square of what an expression reads."""
    found = [0.0]

    def visit(each: relax.Expr) -> None:
        if isinstance(each, relax.Var):
            found.append(squares.get(each, 0.0))

    relax.analysis.post_order_visit(expr, visit)
    return max(found)
