"""Conditions of a definition that TVM does not look into while it makes loops of it.

`te.create_prim_func` simplifies what `if_then_else` chooses from under its condition and under the
opposite of it, for each term of either. A Winograd definition has one condition of four terms for
each pixel of a patch, and no value of it becomes simpler: a tile of 6x6 takes 0.14 s that way and
0.03 s with a call in place of each condition; the function is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import tvm_ffi
from tvm import ir, te, tirx

_EXTERN = ir.Op.get("tirx.call_pure_extern")
_INSIDE = "blislike_inside"
_hides: ContextVar[bool] = ContextVar("_hides", default=False)


def inside(*terms: Any) -> Any:
    """Return the condition that all terms hold, hidden where `primfunc_of` shows it again.

    Parameters
    ----------
    *terms : Expr
        Comparisons.
    """
    if not _hides.get():
        return tirx.all(*terms)
    return tirx.call_pure_extern("bool", _INSIDE, *terms)


def primfunc_of(define: Callable[[], Sequence[te.Tensor]]) -> tirx.PrimFunc:
    """Return the loops of a definition.

    Parameters
    ----------
    define : callable
        Makes it and returns its operands and results.
    """
    before = _hides.set(True)
    try:
        tensors = define()
    finally:
        _hides.reset(before)
    func = te.create_prim_func(list(tensors))
    return func.with_body(tvm_ffi.structural_map(func.body, [(ir.Call, _shown)]))


def _shown(call: ir.Call) -> Any:
    """Return the condition that a call stands for; any other call."""
    if not call.op.same_as(_EXTERN) or str(call.args[0].value) != _INSIDE:
        return call
    return tirx.all(*call.args[1:])
