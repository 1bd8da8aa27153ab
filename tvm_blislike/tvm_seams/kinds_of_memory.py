"""Memory of several kinds: tensors of one kind do not take over the memory of another's."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import ir, relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams.relax_ir import functions, op_name, static_shape

_TENSOR, _STORAGE = "relax.builtin.alloc_tensor", "relax.memory.alloc_storage"
# The scope of plain memory, in front of the name of a kind.
_PLAIN = "global"
# Position of the scope among the arguments of either operator.
_SCOPE = {_TENSOR: 3, _STORAGE: 2}


def planned_by_kind(
    kind_of: Callable[[tuple[int, ...]], str], plan: tvm.transform.Pass
) -> list[tvm.transform.Pass]:
    """Return passes that plan memory, each kind by itself.

    `StaticPlanBlockMemory` shares storage only between tensors of the same scope. So each kind is a
    scope while it plans, and plain memory again afterwards.

    Parameters
    ----------
    kind_of : callable
        From the shape of a tensor to the name of its kind, "" for plain memory. Tensors
        of unknown sizes are not asked for: they are plain.
    plan : Pass
        TVM's.

    Returns
    -------
    list of Pass
        Three, the second is `plan`.
    """

    def scope_of_tensor(call: relax.Call) -> str:
        shape = static_shape(call)
        kind = kind_of(shape) if shape is not None else ""
        return f"{_PLAIN}.{kind}" if kind else _PLAIN

    def plain(_call: relax.Call) -> str:
        return _PLAIN

    # Tensors that are not planned, such as results, keep their operator.
    return [_scoped(scope_of_tensor, _TENSOR), plan, _scoped(plain, _TENSOR, _STORAGE)]


def _scoped(scope_of: Callable[[relax.Call], str], *names: str) -> tvm.transform.Pass:
    """Return a pass that gives calls of these operators another scope."""

    @tvm.transform.module_pass(opt_level=0, name="blislike.KindsOfMemory")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        result = mod.clone()
        for gvar, func in functions(mod):
            result.update_func(gvar, _Scopes(mod, names, scope_of).visit_expr(func))
        return result

    return run


@mutator
class _Scopes(PyExprMutator):
    """Gives calls of some operators another scope."""

    def __init__(
        self, mod: tvm.IRModule, names: tuple[str, ...], scope_of: Callable[[relax.Call], str]
    ) -> None:
        super().__init__(mod)
        self._names, self._scope_of = names, scope_of

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        name = op_name(call)
        if name not in self._names:
            return call
        args = list(call.args)
        args[_SCOPE[name]] = ir.StringImm(self._scope_of(call))
        return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
