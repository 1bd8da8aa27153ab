"""Memory of branches: TVM's plan would share it between two of which one is taken."""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.tvm_seams.relax_ir import bindings, functions, op_name, static_shape


@tvm.transform.module_pass(opt_level=0, name="blislike.BranchMemory")
def branch_memory(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Give each tensor inside a branch storage of its own, before TVM plans memory.

    `StaticPlanBlockMemory` takes the two branches of an `If` for one sequence: the second one, and
    what comes behind, would write to storage that only the first one allocates.
    """
    result = mod.clone()
    for gvar, func in functions(mod):
        if any(isinstance(binding.value, relax.If) for binding in bindings(func)):
            result.update_func(gvar, _InBranches(mod).visit_expr(func))
    return result


@mutator
class _InBranches(PyExprMutator):
    """Allocates storage beside each tensor that is allocated in a branch."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._depth = 0

    def visit_if_(self, branches: relax.If) -> relax.Expr:
        self._depth += 1
        try:
            return super().visit_if_(branches)
        finally:
            self._depth -= 1

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        shape = static_shape(call)
        if not self._depth or op_name(call) != "relax.builtin.alloc_tensor" or shape is None:
            return call
        _, dtype, device, scope = call.args
        size = math.prod(shape) * -(-tvm.DataType(dtype.value).bits // 8)
        storage = self.builder_.emit(
            relax.op.memory.alloc_storage(relax.ShapeExpr([size]), device, scope, "uint8")
        )
        return relax.op.memory.alloc_tensor(storage, 0, relax.ShapeExpr(shape), dtype)
