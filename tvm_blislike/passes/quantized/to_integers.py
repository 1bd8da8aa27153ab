"""Quantized models are computed with integers: layers and tensors in 8 bits, sums in 32.

Cores without products of 8 bits have them in 16, or weights (`quantized_types`).

Results of operators are carried as what they are in terms of integers (`real`), and become floats
only for a reader that does not know of them. What a layer makes of its sums joins its kernel.
A quantization or an operator whose parameters are known at run time only stays as it is, but for
products of integers whose zero point is (`products`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.cost_models.data_types import quantized_types
from tvm_blislike.hardware import Core
from tvm_blislike.model.marks import LEFT_WIDE
from tvm_blislike.model.types import Types
from tvm_blislike.model.workload import Workload
from tvm_blislike.operators import described, operator_in, workload_of
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.quantized import arithmetic, emission, layers, moves, products
from tvm_blislike.passes.quantized.curves import Curves
from tvm_blislike.passes.quantized.products import Widened
from tvm_blislike.passes.quantized.real import Known, Real
from tvm_blislike.passes.quantized.steps import (
    DEQUANTIZE,
    QUANTIZE,
    Steps,
    Stored,
    dequantized_constant,
    steps_of,
)
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    operators,
    use_counts,
)

QUANTIZING = {QUANTIZE, DEQUANTIZE}
WhyFloats = Callable[[Workload, Types], str]
_Found = Real | Known | Stored | Widened


@tvm.transform.module_pass(opt_level=0, name="blislike.ToIntegers")
class ToIntegers:
    """Module pass that rewrites every Relax function of a quantized model, for a core.

    Parameters
    ----------
    core : Core
        The target.
    why_floats : callable, optional
        Why a layer, given in fp32 and with the types of integers, stays in floats although it could
        be one of integers; "": it does not.
    """

    def __init__(self, core: Core, why_floats: WhyFloats | None = None) -> None:
        self.core = core
        self.why_floats = why_floats or (lambda _layer, _types: "")

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        if not (operators(mod) & QUANTIZING or products.multiplies_integers(mod)):
            return mod
        result = mod.clone()
        for gvar, func in functions(mod):
            rewriter = _ToIntegers(mod, func, quantized_types(self.core), self.why_floats)
            rewritten = rewriter.visit_expr(func)
            for dtype, earlier in left_wide(func).items():
                rewriter.left[dtype] = earlier | rewriter.left.get(dtype, {})
            if rewriter.left:
                rewritten = rewritten.with_attr(LEFT_WIDE, rewriter.left)
            result.update_func(gvar, rewritten)
        return TIDY(result)


def left_wide(func: relax.Function) -> dict[str, dict[str, str]]:
    """Return the layers of quantized operands that stay in 32 bits, by type, with the reasons."""
    noted = func.attrs.get(LEFT_WIDE, {}) if func.attrs else {}
    return {str(t): {str(k): str(v) for k, v in layers.items()} for t, layers in noted.items()}


@mutator
class _ToIntegers(PyExprMutator):
    def __init__(
        self, mod: tvm.IRModule, func: relax.Function, types: Types, why_floats: WhyFloats
    ) -> None:
        super().__init__(mod)
        self.types, self.memory, self.weights = types, types.a, types.b
        self.why_floats = why_floats
        self.uses = use_counts(func)
        self.wanted = moves.wanted(func, types.a)
        self.found: dict[relax.Var, _Found] = {}
        self.made: dict[relax.Expr, Stored] = {}
        self.wide: dict[relax.Var, relax.Var] = {}
        self.left: dict[str, dict[str, str]] = {}
        self.curves = Curves()

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        # What is emitted in one block cannot be read in another.
        self.found, self.made, self.wide, self.curves = {}, {}, {}, Curves()
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        found = None
        if isinstance(value, relax.Call) and self.builder_.current_block_is_dataflow():
            self.curves.follow(var, value, self.found)
            found = self._result(var, value)
        if found is None:
            super().visit_var_binding_(binding)
            return
        is_inner, is_plain = isinstance(var, relax.DataflowVar), isinstance(found, relax.Var)
        if not is_plain:
            self.found[var] = found
        if is_plain or not is_inner:
            plain = found if is_plain else self._plain(found)
            self.set_var_remap(var, plain if is_inner else self.builder_.emit_output(plain))

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return floats, or the model's integers, to any reader that does not know of terms."""
        found = self.found.get(var)
        if isinstance(found, Widened):
            if var not in self.wide:
                self.wide[var] = self._in_32_bits(found)
            return self.wide[var]
        return super().visit_dataflow_var_(var) if found is None else self._plain(found)

    def _result(self, var: relax.Var, call: relax.Call) -> _Found | relax.Var | None:
        name = op_name(call)
        if _is_of(call, "int32"):
            return self._wide(call)
        if name == DEQUANTIZE:
            return self._dequantized(var, call)
        if name == QUANTIZE:
            return self._quantized(call)
        if moves.is_move(call):
            return self._moved(var, call)
        if operator_in(call) is not None:
            return self._layer(call)
        known = [self.found.get(arg) for arg in call.args]
        if not _is_of(call, "float32") or not any(isinstance(each, Real) for each in known):
            return None
        operands = [self._operand(arg) for arg in call.args]
        real = arithmetic.computed(self._emit, call, operands)
        return None if real is None else self._shared(var, real)

    def _wide(self, call: relax.Call) -> Widened | relax.Var | None:
        """Return 8-bit integers in 32 bits, or a product of such."""
        factors = [self.found.get(arg) for arg in call.args if isinstance(arg, relax.Var)]
        data = factors[0] if factors and isinstance(factors[0], Widened) else None
        if operator_in(call) is None:
            return products.widened(call, data)
        given = call.args[1]
        weights = constant_array(given) if is_constant(given) else None
        if reason := products.why_wide(call, data, weights):
            self.left.setdefault(dtype_name(call), {})[described(call)] = reason
            return None
        source = self._stored(data.data)
        zero = self._zero(data.zero, source.shift)
        return products.narrow_product(self._emit, call, source.var, zero, weights, self.weights)

    def _zero(self, zero: relax.Expr | None, shift: int) -> relax.Expr | int:
        """Return the zero point of integers to which `shift` was added."""
        if zero is None or is_constant(zero):
            return shift + (0 if zero is None else int(constant_array(zero).item()))
        plain = self.visit_expr(zero)
        return self._emit(relax.op.add(plain, relax.const(shift, "int32"))) if shift else plain

    def _in_32_bits(self, found: Widened) -> relax.Var:
        wide = self._emit(relax.op.astype(self.visit_expr(found.data), "int32"))
        if found.zero is None:
            return wide
        return self._emit(relax.op.subtract(wide, self.visit_expr(found.zero)))

    def _dequantized(self, var: relax.Var, call: relax.Call) -> Real | Known | None:
        data = call.args[0]
        if is_constant(data):
            return dequantized_constant(call, data)
        steps = steps_of(call, self.memory)
        if steps is None:
            return None
        source = self._stored(data)
        # Integers that only this reader has need not be read back from memory.
        alone = self.uses.get(data) == self.uses.get(var) == 1
        real, rounded = Real.of(source.var, steps.scale, steps.zero), source.rounded
        if not alone or rounded is None or rounded.zero != steps.zero:
            return real
        return real.with_precise(emission.centered(self._emit, rounded))

    def _stored(self, data: relax.Expr) -> Stored:
        """Return 8-bit integers of the model in memory."""
        found = self.found.get(data) if isinstance(data, relax.Var) else None
        if isinstance(found, Stored):
            return found
        if data not in self.made:
            self.made[data] = emission.in_memory(self._emit, self.visit_expr(data), self.memory)
        return self.made[data]

    def _quantized(self, call: relax.Call) -> Stored | None:
        steps, real = steps_of(call, self.memory), self._operand(call.args[0])
        if steps is None or not isinstance(real, Real):
            return None
        return self._in_steps(call.args[0], real, steps, dtype_name(call))

    def _in_steps(self, value: relax.Expr, real: Real, steps: Steps, dtype: str) -> Stored:
        table = self.curves.stored(self._emit, value, real, steps, dtype)
        return table or emission.stored(self._emit, real, steps, dtype)

    def _moved(self, var: relax.Var, call: relax.Call) -> _Found | None:
        sources = moves.sources(call)
        operands = [self._operand(source) for source in sources]
        if len(operands) == 1 and isinstance(operands[0], Known):
            return moves.moved_constant(call, operands[0])
        if sources and all(isinstance(operand, Stored) for operand in operands):
            result, dtype = moves.moved_integers(call, operands)
            return Stored(self._emit(result), dtype)
        if not sources or not all(isinstance(operand, Real) for operand in operands):
            return None
        steps = self.wanted.get(var) or moves.common_steps(operands)
        if steps is None:
            return None
        pairs = zip(sources, operands, strict=True)
        parts = [self._in_steps(source, real, steps, steps.memory).var for source, real in pairs]
        result = self._emit(moves.moved(call, parts, steps.zero))
        return Real.of(result, steps.scale, steps.zero)

    def _layer(self, call: relax.Call) -> Real | None:
        operands = [self._operand(arg) for arg in call.args]
        if not any(isinstance(operand, Known) or _is_steps(operand) for operand in operands):
            return None
        reason = layers.why_float(call, operands) or self._why_floats(call)
        if reason:
            self.left.setdefault(dtype_name(call), {})[described(call)] = reason
            return None
        return layers.integer_layer(self._emit, call, *operands, self.weights)

    def _why_floats(self, call: relax.Call) -> str:
        layer = workload_of(call)
        return "" if layer is None else self.why_floats(layer, self.types)

    def _shared(self, var: relax.Var, real: Real) -> Real:
        """Return a result for all of its readers: a sum that several read is computed once."""
        if real.steps is not None or self.uses.get(var, 0) <= 1:
            return real
        return Real.of(emission.floats(self._emit, real))

    def _operand(self, arg: relax.Expr) -> _Found | np.ndarray | None:
        """Return what is known of an operand of floats or of quantized integers."""
        if is_constant(arg):
            return constant_array(arg) if dtype_name(arg) == "float32" else None
        if isinstance(arg, relax.Var) and arg in self.found:
            return self.found[arg]
        return Real.of(self.visit_expr(arg)) if _is_of(arg, "float32") else None

    def _plain(self, found: _Found) -> relax.Expr:
        """Return what a reader gets that does not know of terms."""
        if isinstance(found, Widened):
            return self._in_32_bits(found)
        if isinstance(found, Known):
            return constant(found.values, "float32")
        if isinstance(found, Stored):
            return emission.integers(self._emit, found)
        return emission.floats(self._emit, found)

    def _emit(self, value: relax.Expr) -> relax.Var:
        return self.builder_.emit(value)


def _is_of(expr: relax.Expr, dtype: str) -> bool:
    """Whether an expression is a tensor of a type: a shape, or several tensors, is none."""
    return isinstance(expr.ty, relax.TensorType) and dtype_name(expr) == dtype


def _is_steps(operand: object) -> bool:
    return isinstance(operand, Real) and operand.steps is not None
