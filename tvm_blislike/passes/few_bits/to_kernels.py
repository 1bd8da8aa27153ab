"""Products with weights of 4 bits become calls of the core's kernel, or products of floats."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import FEW_BITS
from tvm_blislike.onnx.few_bits import weights
from tvm_blislike.passes.few_bits import kernel, rows
from tvm_blislike.tvm_seams import constant, constant_array, functions, op_name, static_shape
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NEVER_FUSED


@tvm.transform.module_pass(opt_level=0, name="blislike.FewBits")
class FewBits:
    """Module pass for a core."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        rewriter = _FewBits(mod, self.core)
        for gvar, func in functions(mod):
            rewriter.builder_.update_func(gvar, rewriter.visit_expr(func))
        return relax.transform.DeadCodeElimination()(rewriter.builder_.get())


@mutator
class _FewBits(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, core: Core) -> None:
        super().__init__(mod)
        self.mod, self.core = mod, core

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if op_name(call) != "relax.call_tir":
            return call
        func = self.mod[call.args[0]]
        if not func.attrs or FEW_BITS not in func.attrs:
            return call
        data, *parts = call.args[1].fields
        steps, scales, zeros = map(constant_array, parts)
        if not kernel.is_of(self.core):
            whole = constant(weights(steps, scales, zeros), "float32")
            return relax.op.matmul(data, whole)
        return self._by_kernel(data, steps, scales, zeros)

    def _by_kernel(
        self, data: relax.Expr, steps: np.ndarray, scales: np.ndarray, zeros: np.ndarray
    ) -> relax.Expr:
        builder, (m, k), n = self.builder_, static_shape(data), steps.shape[1]
        block, has_zeros = k // len(scales), bool((zeros != kernel.MIDDLE).any())
        quantized = builder.emit(
            builder.call_te(
                rows.quantized,
                builder.emit(relax.op.reshape(data, (m, len(scales), block))),
                primfunc_name_hint="rows_by_block",
                primfunc_attrs=dict(NEVER_FUSED),
            )
        )
        of_rows = [builder.emit(relax.TupleGetItem(quantized, part)) for part in range(3)]
        of_columns = [kernel.packed(steps, block), kernel.by_panels(scales)]
        if has_zeros:
            of_columns.append(kernel.by_panels(zeros))
        func = kernel.product(m, n, k, block, has_zeros)
        func = func.without_attr("global_symbol").with_attr({**IS_SCHEDULED, **NEVER_FUSED})
        gvar = builder.add_func(func, "few_bits_product")
        packed = [constant(array, str(array.dtype)) for array in of_columns]
        return relax.call_tir(gvar, [*of_rows, *packed], relax.TensorType((m, n), "float32"))
