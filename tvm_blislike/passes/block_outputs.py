"""Values that leave their dataflow block: rewrites may read what was of no use outside before."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, PyExprVisitor, mutator, visitor

from tvm_blislike.tvm_seams import functions


@tvm.transform.module_pass(opt_level=0, name="blislike.BlockOutputs")
def block_outputs(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    """Make what another block reads an output of its own.

    A branch ends a dataflow block. A rewrite that looks through a value of an earlier one, as
    through the stack in front of a maximum, reads what that value was made of; TVM's passes take
    such variables for unused outside, and lose them.
    """
    result = mod.clone()
    for gvar, func in functions(mod):
        leaving = _leaving(func)
        if leaving:
            result.update_func(gvar, _Outputs(mod, leaving).visit_expr(func))
    return result


def _leaving(func: relax.Function) -> set[relax.Var]:
    """Return the dataflow variables that are read outside of their block."""
    if not isinstance(func.body, relax.SeqExpr) or len(func.body.blocks) < 2:
        return set()
    readers = _Readers()
    readers.visit_expr(func)
    return readers.leaving


@visitor
class _Readers(PyExprVisitor):
    """Finds the variables of one block that another one reads."""

    def __init__(self) -> None:
        super().__init__()
        self._block: relax.BindingBlock | None = None
        self._made_in: dict[relax.Var, relax.BindingBlock | None] = {}
        self.leaving: set[relax.Var] = set()

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> None:
        around, self._block = self._block, block
        for binding in block.bindings:
            self.visit_binding(binding)
            self._made_in[binding.var] = block
        self._block = around

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> None:
        if var in self._made_in and not self._made_in[var].same_as(self._block):
            self.leaving.add(var)


@mutator
class _Outputs(PyExprMutator):
    """Makes variables outputs of their blocks."""

    def __init__(self, mod: tvm.IRModule, leaving: set[relax.Var]) -> None:
        super().__init__(mod)
        self._leaving = leaving

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self._leaving:
            super().visit_var_binding_(binding)
            return
        value = self.visit_expr(binding.value)
        self.set_var_remap(binding.var, self.builder_.emit_output(value, binding.var.name))
