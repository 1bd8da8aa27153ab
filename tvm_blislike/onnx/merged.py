"""Several imports of one model, for other sizes each, as one module."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.model.variant import MAIN, function_name
from tvm_blislike.tvm_seams import constant_array, dtype_name, is_constant
from tvm_blislike.tvm_seams.relax_ir import global_var, is_public


def merged(modules: Sequence[tvm.IRModule]) -> tvm.IRModule:
    """Return a module with the functions of all, which share their constants.

    Parameters
    ----------
    modules : sequence of IRModule
        Their `main` becomes `function_name` of its place, that of the last one stays.
    """
    shared: dict[bytes, relax.Constant] = {}
    result: dict[tvm.ir.GlobalVar, tvm.ir.BaseFunc] = {}
    for number, mod in enumerate(modules):
        main = MAIN if number == len(modules) - 1 else function_name(number)
        names = {
            gvar: global_var(main if gvar.name_hint == MAIN else f"{gvar.name_hint}_{main}", gvar)
            for gvar, _ in mod.functions_items()
        }
        for gvar, func in mod.functions_items():
            if isinstance(func, relax.Function):
                func = _Renamed(mod, names, shared).visit_expr(func)
            if is_public(func):
                func = func.with_attr("global_symbol", names[gvar].name_hint)
            result[names[gvar]] = func
    return tvm.IRModule(result, attrs=modules[-1].attrs)


@mutator
class _Renamed(PyExprMutator):
    """Calls functions by other names, and takes a constant that is there already."""

    def __init__(
        self,
        mod: tvm.IRModule,
        names: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar],
        shared: dict[bytes, relax.Constant],
    ) -> None:
        super().__init__(mod)
        self.names, self.shared = names, shared

    def visit_global_var_(self, op: tvm.ir.GlobalVar) -> relax.Expr:
        return self.names[op]

    def visit_constant_(self, op: relax.Constant) -> relax.Expr:
        if not is_constant(op):
            return op
        array = constant_array(op)
        digest = hashlib.sha256(f"{dtype_name(op)} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array))
        return self.shared.setdefault(digest.digest(), op)
