"""Binary networks are computed with words of signs, wherever data and weights of a layer are such.

What is known of a tensor stands beside it: that it is signs (`signs`), or follows from counts of a
layer (`thresholds`). Floats are emitted as the graph has them; where only codes are read in the
end, nobody reads the floats, and they go.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.cost_models.data_types import missing_types
from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import LEFT_WIDE
from tvm_blislike.model.types import BITS
from tvm_blislike.operators import described, operator_in
from tvm_blislike.passes.binary import layers, operators, signs, thresholds
from tvm_blislike.passes.binary.signs import Plane, Signs
from tvm_blislike.passes.binary.thresholds import Chain
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    functions,
    is_constant,
    static_shape,
)

COMPARING = {"relax.sign", "relax.less", "relax.less_equal"}
COMPARING |= {"relax.greater", "relax.greater_equal"}
_Codes = tuple[relax.Var, tuple[Plane, ...]]


@tvm.transform.module_pass(opt_level=0, name="blislike.ToBits")
class ToBits:
    """Module pass that rewrites every Relax function of a binary network, for a core."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        if missing_types(BITS, self.core):
            return mod
        result = mod.clone()
        for gvar, func in functions(mod):
            rewriter = _ToBits(mod)
            rewritten = rewriter.visit_expr(func)
            if rewriter.left:
                rewritten = rewritten.with_attr(LEFT_WIDE, {"float32": rewriter.left})
            result.update_func(gvar, rewritten)
        return TIDY(result)


@mutator
class _ToBits(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.signs: dict[relax.Var, Signs] = {}
        self.chains: dict[relax.Var, Chain] = {}
        self.made: dict[int, _Codes] = {}
        self.packed: dict[relax.Var, relax.Var] = {}
        self.left: dict[str, str] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        # What is emitted in one block cannot be read in another.
        self.signs, self.chains, self.made, self.packed = {}, {}, {}, {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, call = binding.var, binding.value
        if isinstance(call, relax.Call) and self.builder_.current_block_is_dataflow():
            result = self._layer(var, call)
            if result is not None:
                inner = isinstance(var, relax.DataflowVar)
                self.set_var_remap(var, result if inner else self.builder_.emit_output(result))
                return
            self._note(var, call)
        super().visit_var_binding_(binding)

    def _note(self, var: relax.Var, call: relax.Call) -> None:
        """Note what a tensor is that stays as it is in the graph."""
        operands = [self._operand(arg) for arg in call.args]
        found = signs.continued(call, operands) or signs.begun(call)
        if found is not None:
            self.signs[var] = found
        chain = next((self.chains[a] for a in call.args if a in self.chains), None)
        chain = None if chain is None else thresholds.continued(call, chain)
        if chain is not None:
            self.chains[var] = chain

    def _operand(self, arg: relax.Expr) -> Signs | np.ndarray | None:
        if isinstance(arg, relax.Var):
            return self.signs.get(arg)
        return constant_array(arg) if is_constant(arg) else None

    def _layer(self, var: relax.Var, call: relax.Call) -> relax.Var | None:
        data = self.signs.get(call.args[0]) if operator_in(call) is not None else None
        if data is None or not data.planes:
            return None
        weights = constant_array(call.args[1]) if is_constant(call.args[1]) else None
        if reason := layers.why_float(call, len(data.planes), weights):
            self.left[described(call)] = reason
            return None
        codes, planes = self._codes(data)
        layer = layers.Layer(call, planes, data.size, weights)
        counts = self._emit(layer.counted(self._words(codes, len(planes), layer)))
        chain = self.chains[var] = layer.chain(counts)
        return layers.floats(self._emit, layer, chain)

    def _words(self, codes: relax.Var, planes: int, layer: layers.Layer) -> relax.Var:
        if codes not in self.packed:
            axis = 1 if layer.is_convolution else len(static_shape(codes)) - 1
            self.packed[codes] = self._emit(operators.words(codes, axis, planes))
        return self.packed[codes]

    def _codes(self, found: Signs) -> _Codes:
        if id(found) not in self.made:
            codes, planes = self._counted(found) or self._compared(found)
            for move in found.moves:
                codes = self._emit(signs.moved(move, codes))
            self.made[id(found)] = codes, planes
        return self.made[id(found)]

    def _compared(self, found: Signs) -> _Codes:
        x, other = self.visit_expr(found.x), constant(found.other, "float32")
        return self._emit(operators.codes(found.codes, x, other)), found.planes

    def _counted(self, found: Signs) -> _Codes | None:
        """Return codes of the counts from which the numbers follow, None where there are none."""
        chain, planes = self.chains.get(found.x), found.planes
        rank = len(static_shape(found.x))
        if chain is None or (len(planes) > 1 and thresholds.may_equal(chain, found.other, rank)):
            return None
        planes = planes[-1:]
        limit = thresholds.threshold(chain, planes[0].comparison, found.other, rank)
        if limit is None:
            return None
        counts = chain.counts
        if np.any(limit.factor < 0):
            counts = self._emit(relax.op.multiply(counts, constant(limit.factor, "int32")))
        return self._emit(operators.codes("up_to", counts, constant(limit.most, "int32"))), planes

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value)
