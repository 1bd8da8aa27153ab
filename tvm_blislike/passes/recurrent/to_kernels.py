"""Recurrent layers become a matrix product of all inputs and a kernel with a loop over time."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import DEFAULT_RULE, RECURRENT, REGISTER_BYTES
from tvm_blislike.model.recurrent import OPTIONAL, Cell
from tvm_blislike.operators.recurrent import cell_of
from tvm_blislike.passes.recurrent.arrange import Arranger
from tvm_blislike.passes.recurrent.blocks import Sizes, block_for
from tvm_blislike.passes.recurrent.kernel import kernel
from tvm_blislike.passes.recurrent.layer import Layer, needs_recurrent_bias, phases_of
from tvm_blislike.tvm_seams import functions, op_name, static_shape
from tvm_blislike.tvm_seams.attributes import IS_SCHEDULED, NEVER_FUSED


@tvm.transform.module_pass(opt_level=0, name="blislike.Recurrent")
class Recurrent:
    """Module pass for a core and a number of threads."""

    def __init__(self, core: Core, threads: int) -> None:
        self.core, self.threads = core, threads

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        rewriter = _Recurrent(mod, self.core, self.threads)
        for gvar, func in functions(mod):
            rewriter.builder_.update_func(gvar, rewriter.visit_expr(func))
        return rewriter.builder_.get()


@mutator
class _Recurrent(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, core: Core, threads: int) -> None:
        super().__init__(mod)
        self.core, self.threads = core, threads

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        return self._kernel_of(call) if op_name(call) == RECURRENT else call

    def _kernel_of(self, call: relax.Call) -> relax.Expr:
        cell = cell_of(call)
        data, weights, recurrents, *rest = call.args[:-1]
        given = dict(zip(cell.operands, rest, strict=True))
        layer = self._layer(cell, static_shape(data))
        arranger = Arranger(self.builder_, layer)
        operands = [
            self._of_inputs(layer, data, arranger.columns(weights), arranger.bias(given)),
            *arranger.panels(recurrents),
        ]
        if needs_recurrent_bias(cell):
            operands.append(arranger.recurrent_bias(given["bias"]))
        if "peepholes" in given:
            given["peepholes"] = arranger.peepholes(given["peepholes"])
        operands += [given[name] for name in OPTIONAL if name in given and name != "bias"]
        return self._called(layer, operands, call.ty.fields)

    def _layer(self, cell: Cell, shape: tuple[int, ...]) -> Layer:
        steps, batch = cell.sizes(shape)
        phases = tuple(len(gates) for gates in phases_of(cell))
        sizes = Sizes(batch, cell.hidden, cell.directions, phases)
        block = block_for(sizes, self.core, self.threads)
        return Layer(cell, steps, batch, block, self.core.isa.lane_operand)

    def _of_inputs(
        self, layer: Layer, data: relax.Expr, columns: relax.Expr, bias: relax.Expr | None
    ) -> relax.Expr:
        """Emit the product of all inputs, one matrix, and what is added to it."""
        emit = self.builder_.emit
        rows = emit(op.reshape(data, (layer.steps * layer.batch, static_shape(data)[-1])))
        product = emit(op.matmul(rows, columns))
        if bias is not None:
            product = emit(op.add(product, bias))
        return emit(op.reshape(product, layer.gates_shape))

    def _called(
        self, layer: Layer, operands: Sequence[relax.Expr], results: Sequence[relax.TensorType]
    ) -> relax.Call:
        registers = self.core.vector_registers * self.core.vector_bits // 8
        notes = {**IS_SCHEDULED, **NEVER_FUSED, REGISTER_BYTES: registers}
        notes[DEFAULT_RULE] = described(layer)
        func = kernel(layer).without_attr("global_symbol").with_attr(notes)
        gvar = self.builder_.add_func(func, layer.cell.kind.lower())
        return relax.call_tir(gvar, list(operands), list(results))


def described(layer: Layer) -> str:
    """Return a kernel in words, for `explain`."""
    cell, block = layer.cell, layer.block
    gates = "+".join(str(len(gates)) for gates in layer.phases)
    shared = f"units in {block.parts} parts" if block.parts else "by directions"
    if block.row_parts > 1:
        shared += f" and rows in {block.row_parts} parts"
    return (
        f"{cell}, {layer.steps} steps of {layer.batch}: block {block.mr}x{gates}x{block.nr}, "
        f"{block.chains} accumulators a sum, {shared}"
    )
