"""Operators of Relax that TVM does not have: a name, and the type of what a call makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm
from tvm import relax
from tvm.ir import _ffi_api
from tvm.ir.op import register_op_attr


def declared(name: str, does: str, infer: Callable[[relax.Call], relax.TensorType]) -> tvm.ir.Op:
    """Declare an operator without side effects, once for each name.

    Parameters
    ----------
    name : str
        One that TVM has not.
    does : str
        What it computes.
    infer : callable
        The type of the result of a call.
    """
    _ffi_api.RegisterOp(name, does)
    register_op_attr(name, "FInferType", lambda call, _builder: infer(call))
    register_op_attr(name, "FPurity", True)
    return tvm.ir.Op.get(name)


def called(
    operator: tvm.ir.Op, args: Sequence[relax.Expr], attrs: tvm.ir.Attrs | None = None
) -> relax.Call:
    """Return a call of such an operator, not yet emitted; `attrs` may be those of another one."""
    return relax.Call(operator, list(args), attrs)
