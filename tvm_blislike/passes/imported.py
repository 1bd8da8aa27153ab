"""PrimFuncs that an importer emits where Relax has an operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, topi

from tvm_blislike.tvm_seams import constant, dtype_name, is_constant, static_shape

# `Clip` of the ONNX importer.
_OPERATORS = ((topi.maximum, relax.op.maximum), (topi.minimum, relax.op.minimum))


def operator_of(
    mod: tvm.IRModule, call: relax.Call, args: Sequence[relax.Expr]
) -> relax.Call | None:
    """Return the operator that a call of a PrimFunc computes, None where it is not known.

    Parameters
    ----------
    mod : IRModule
        Has the PrimFunc.
    call : relax.Call
        `call_tir`.
    args : sequence of relax.Expr
        Operands of the PrimFunc, constants as such.
    """
    if len(args) != 2 or not is_constant(args[1]):
        return None
    func = mod[call.args[0]]
    return next((op(*args) for function, op in _OPERATORS if _computes(func, function, args)), None)


def _computes(func: tvm.tirx.PrimFunc, te_function: object, args: Sequence[relax.Expr]) -> bool:
    """Whether `func` is what `te_function` gives for arguments like these."""
    builder = relax.BlockBuilder()
    with builder.function("probe", params=[]):
        builder.emit_func_output(builder.emit_te(te_function, *_placeholders(args)))
    (ours,) = (f for f in builder.get().functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    return tvm_ffi.structural_equal(func.without_attr("global_symbol"), ours)


def _placeholders(args: Sequence[relax.Expr]) -> list[relax.Expr]:
    return [constant(np.zeros(static_shape(arg), np.float32), dtype_name(arg)) for arg in args]
