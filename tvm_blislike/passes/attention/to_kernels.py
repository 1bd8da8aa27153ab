"""Attentions of float32 become calls of one kernel each."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.hardware import Core
from tvm_blislike.model.attention import Attention
from tvm_blislike.passes.attention.functions import function_of
from tvm_blislike.passes.attention.patterns import Found, Patterns
from tvm_blislike.tvm_seams import functions, static_shape, use_counts


@tvm.transform.module_pass(opt_level=0, name="blislike.Attentions")
class Attentions:
    """Module pass for a core and a number of threads."""

    def __init__(self, core: Core, threads: int) -> None:
        self.core, self.threads = core, threads

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        found = {g: attentions(func) for g, func in functions(mod)}
        if not any(found.values()):
            return mod
        rewriter = _ToKernels(mod, self.core, self.threads)
        for gvar, func in functions(mod):
            rewriter.found = found[gvar]
            rewriter.builder_.update_func(gvar, rewriter.visit_expr(func))
        return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


def attentions(func: relax.Function) -> dict[relax.Var, Found]:
    """Return the attentions of a function, each by the variable of its result."""
    uses, found = use_counts(func), {}
    for block in func.body.blocks if isinstance(func.body, relax.SeqExpr) else ():
        if isinstance(block, relax.DataflowBlock):
            found.update(Patterns(block, uses).all())
    return found


@mutator
class _ToKernels(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, core: Core, threads: int) -> None:
        super().__init__(mod)
        self.core, self.threads = core, threads
        self.found: dict[relax.Var, Found] = {}
        self.made: dict[object, tvm.ir.GlobalVar] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        found = self.found.get(binding.var)
        if found is None:
            super().visit_var_binding_(binding)
            return
        shape = static_shape(binding.var)
        operands = [self.visit_expr(tensor) for tensor in found.tensors]
        for mask in found.masks:
            floats = self.visit_expr(mask.floats())
            is_new = isinstance(floats, relax.Call)
            operands.append(self.builder_.emit(floats) if is_new else floats)
        function = self._function(found.attention, operands, shape)
        call = relax.call_tir(function, operands, relax.TensorType(shape, "float32"))
        is_inner = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if is_inner else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(call))

    def _function(
        self, attention: Attention, operands: list[relax.Expr], result: tuple[int, ...]
    ) -> tvm.ir.GlobalVar:
        """Return the kernel; equal ones are one."""
        shapes = tuple(static_shape(operand) for operand in operands)
        key = (attention, shapes, result)
        if key not in self.made:
            func = function_of(attention, shapes, result, self.core, self.threads)
            self.made[key] = self.builder_.add_func(func, "attention")
        return self.made[key]
