"""How far a model whose layers are computed in fewer bits is predicted to be off.

Roundings are independent: their squares add up. Those of layers one behind the other all come
through; of those of a branch whose result is added to what it was computed from as much as the
branch is of the sum. What came in at its beginning is in both terms, and stays. Of an attention its
values' errors come through, of scores a softmax leaves next to nothing.

Errors of rounded weights are the same in every row, those of rounded data differ, and average out
where rows are averaged: an attention, what its readers see of rows that are nearly alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import tvm
from tvm import relax

from tvm_blislike.passes.attention.functions import VALUES, attention_of
from tvm_blislike.tvm_seams import bindings, is_constant, op_name

# Root mean square of the relative errors of rounded numbers whose logarithms are equally likely.
ROUNDING = {"bfloat16": 1.7e-3, "float16": 2.1e-4}
# Share of a branch in the square of a residual sum. Encoders of random weights whose sums are in
# fp32: errors of 5.4e-3 (6 layers of 384 channels) and 7.4e-3 (12 of 768), predicted 5.2e-3 and
# 7.4e-3; branches there are from 0.03 to 0.5 of a sum. Networks of convolutions, whose rectifiers
# and means take errors away, are off by half of what is predicted.
BRANCH = 0.2
# Share of the squares of the errors of a whole model that its rounded weights come to, where layers
# round data, too: 0.71 and 0.83 in those encoders.
WEIGHTS = 0.8
_SOFTMAX = "relax.nn.softmax"


def product_error(weights: float, data: float) -> float:
    """Return what a layer's rounded weights and data come to for `predicted`.

    Relative to its result, as both are; if they are equal it is what they are off by together.
    """
    return math.sqrt(2 * (WEIGHTS * weights**2 + (1 - WEIGHTS) * data**2))


def predicted(mod: tvm.IRModule, func: relax.Function, errors: Mapping[relax.Var, float]) -> float:
    """Return the relative root mean square error of what a function returns, the largest of all.

    Parameters
    ----------
    mod : IRModule
        Has the kernels that the function calls.
    func : relax.Function
        In fp32.
    errors : mapping
        Results of layers and attentions that are to be computed in fewer bits, with the error that
        each comes to by rounding its operands (`product_error`).
    """
    squares: dict[relax.Var, float] = {}
    for binding in bindings(func):
        value, own = binding.value, errors.get(binding.var, 0.0) ** 2
        squares[binding.var] = _behind(mod, value, squares) + own
    return math.sqrt(_largest(func.body.body, squares))


def _behind(mod: tvm.IRModule, value: relax.Expr, squares: Mapping[relax.Var, float]) -> float:
    """Return the square of the error that an operator hands on."""
    if op_name(value) == _SOFTMAX:
        return 0.0
    if attention_of(mod, value) is not None:
        return _largest(value.args[1].fields[VALUES], squares)
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
