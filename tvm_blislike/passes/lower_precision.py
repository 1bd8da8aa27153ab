"""Layers of fp32 with constant weights are computed in products of 16 bits, where the user allows.

Weights are rounded here. What such a layer reads is rounded once. Of images that is
behind what makes it and a part of that kernel; elementwise readers, such as residual additions,
take the rounded values as well, and only those go through memory. Those of an encoder's rows take
them in fp32, which costs no time there. Where the error of the whole is predicted to be too large,
products add back what rounding their weights takes from a mean row (`passes.mean_rows`), and both
products of an attention, whose kernel else rounds their operands as it copies them, stay in fp32 if
that is not enough. Results are sums in fp32, those of fp16 products are widened. Everything else,
and what a model shows, stays in fp32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import ml_dtypes  # noqa: F401  names bfloat16 for NumPy
import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.choose.precision_choice import (
    WHOLE_ERRORS,
    adds_back,
    keeps_terms,
    offered,
    types_of,
)
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.model.attention import Attention
from tvm_blislike.model.marks import LEFT_WIDE, STORED_ERRORS
from tvm_blislike.model.types import FLOAT32, Types
from tvm_blislike.model.workload import Workload
from tvm_blislike.operators import workload_of
from tvm_blislike.passes import spills
from tvm_blislike.passes.attention.narrow import (
    NarrowAttentions,
    attention_error,
    narrow_attentions,
)
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.image_operators import BINARY, UNARY
from tvm_blislike.passes.mean_rows import LOST, lost_by, lost_product, sum_of_rows, with_common_rows
from tvm_blislike.passes.quantized.to_integers import left_wide
from tvm_blislike.passes.same_layer import on_operands
from tvm_blislike.passes.storage import StoredWeights, stored
from tvm_blislike.passes.whole_error import ROUNDING, predicted, product_error
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    functions,
    is_constant,
    op_name,
    static_shape,
    use_counts,
)

_WIDE = "float32"
_PLAIN = ("NCHW", "OIHW", "NCHW")
# Share of the square of an error by rounded weights that comes in where they add back what they
# lost: of rows of an encoder, 0.83 less in the mean of those of BERT-base.
_NOT_MEAN = 0.2


@tvm.transform.module_pass(opt_level=0, name="blislike.LowerPrecision")
class LowerPrecision:
    """Module pass that rewrites every Relax function as a strategy's constraints allow."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        precision, core = self.strategy.constraints.precision, self.strategy.core
        for types in offered(core, precision):
            spills.ensure(core, types)
        result = mod
        for gvar, func in functions(mod):
            layers = _layers(mod, func, self.strategy)
            rounded = _rounded(func, layers, self.strategy)
            rewriter = _LowerPrecision(result, layers, rounded, self.strategy)
            rewritten = rewriter.visit_expr(func).with_attr(layers.attributes(func))
            rewriter.builder_.update_func(gvar, rewritten)
            result = rewriter.builder_.get()
        return TIDY(result)


@dataclass(frozen=True)
class _Narrow:
    """A layer in 16 bits.

    Parameters
    ----------
    types : Types
        Of its product.
    weights : numpy.ndarray
        Rounded.
    lost : StoredWeights or None
        What rounding took from them, where it is added back for the mean row.
    """

    types: Types
    weights: np.ndarray
    lost: StoredWeights | None = None


@dataclass
class _Layers:
    """The layers of a function that change, and why others do not.

    Parameters
    ----------
    narrow : dict
        Result of a layer to what becomes of it.
    errors : dict
        Estimated relative errors by workload, in order of execution.
    whole : dict
        Layers that stay in fp32, with the reason.
    readers : dict
        What changed layers read, with these layers.
    attentions : dict
        Results of attentions to those whose products are in 16 bits.
    """

    narrow: dict[relax.Var, _Narrow] = field(default_factory=dict)
    readers: dict[relax.Var, list[Workload]] = field(default_factory=dict)
    attentions: dict[relax.Var, Attention] = field(default_factory=dict)
    errors: dict[str, list[float]] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)

    def attributes(self, func: relax.Function) -> dict[str, object]:
        """Return what the report is to say, with what a function says already."""
        wide = left_wide(func)
        if self.whole:
            wide[_WIDE] = {**wide.get(_WIDE, {}), **self.whole}
        return {STORED_ERRORS: self.errors, LEFT_WIDE: wide}


def _layers(mod: tvm.IRModule, func: relax.Function, strategy: Strategy) -> _Layers:
    """Return what changes, so that the whole is predicted to be off by no more than is worth time.

    Where it is off by more, products add back what they lost; where that is not enough, attentions
    stay in fp32.
    """
    found, lost = _narrow_layers(func, strategy)
    attentions = narrow_attentions(mod, func, strategy)
    types = [each.types.a for each in found.narrow.values()]
    types += [each.factors for each in attentions.values()]
    most = min((WHOLE_ERRORS[dtype] for dtype in types), default=math.inf)

    def is_off() -> bool:
        errors = {var: _error(layer, lost[var]) for var, layer in found.narrow.items()}
        for var, each in attentions.items():
            errors[var] = product_error(0.0, attention_error(each))
        return predicted(mod, func, errors) > most

    if is_off():
        values = {binding.var: binding.value for binding in bindings(func)}
        for var in with_common_rows(mod, func) & found.narrow.keys():
            found.narrow[var] = _corrected(found.narrow[var], values[var], strategy)
        if is_off():
            return found
    found.attentions = attentions
    return found


def _narrow_layers(
    func: relax.Function, strategy: Strategy
) -> tuple[_Layers, dict[relax.Var, float]]:
    """Return the layers that change, and the relative errors of their rounded weights."""
    found, lost = _Layers(), {}
    for binding in bindings(func):
        layer = _layer(binding.value)
        if layer is None:
            continue
        types, reason = types_of(strategy, layer)
        if types == layer.types:
            found.whole[str(layer)] = reason
            continue
        weights = constant_array(binding.value.args[1])
        rounded = stored(weights, types.b, 0 if layer.images else 1)
        if rounded is None:
            found.whole[str(layer)] = f"a weight is not finite in {types.b}"
            continue
        narrow = replace(layer, types=types)
        found.narrow[binding.var] = _Narrow(types, rounded.values)
        found.readers.setdefault(binding.value.args[0], []).append(narrow)
        error = math.hypot(rounded.error, ROUNDING[types.a])
        found.errors.setdefault(str(narrow), []).append(error)
        lost[binding.var] = rounded.error
    return found, lost


def _error(layer: _Narrow, lost: float) -> float:
    """Return what a layer comes to in the whole; `lost` is the error of its weights."""
    share = 1.0 if layer.lost is None else _NOT_MEAN
    return product_error(math.sqrt(share) * lost, ROUNDING[layer.types.a])


def _corrected(layer: _Narrow, call: relax.Call, strategy: Strategy) -> _Narrow:
    """Return a layer that adds back what its weights lost of a mean row, where that pays."""
    types = Types.stored(LOST)
    spills.ensure(strategy.core, types)
    if not adds_back(strategy, replace(workload_of(call), types=layer.types), types):
        return layer
    lost = lost_by(constant_array(call.args[1]), layer.weights)
    return replace(layer, lost=lost) if lost.values.any() else layer


def _layer(call: relax.Expr) -> Workload | None:
    """Return the workload of an fp32 layer with constant weights, None for anything else."""
    layer = workload_of(call) if isinstance(call, relax.Call) else None
    if layer is None or layer.types != FLOAT32 or not is_constant(call.args[1]):
        return None
    if not isinstance(call.args[0], relax.Var):
        return None
    attrs = call.attrs
    is_plain = not layer.images or _PLAIN == (
        attrs.data_layout,
        attrs.kernel_layout,
        attrs.out_layout,
    )
    return layer if is_plain else None


@mutator
class _LowerPrecision(PyExprMutator):
    """Rounds what layers read behind what makes it, and rewrites these layers."""

    def __init__(
        self,
        mod: tvm.IRModule,
        layers: _Layers,
        rounded: dict[relax.Var, str],
        strategy: Strategy,
    ) -> None:
        super().__init__(mod)
        self.layers = layers
        self.attentions = NarrowAttentions(self.builder_, strategy)
        # What is rounded where it is made, and to which type.
        self.rounded = rounded
        # Values in fewer bits by variable and type, and sums of their rows, of the present block.
        self.made: dict[tuple[relax.Var, str], relax.Var] = {}
        self.sums: dict[relax.Var, tuple[relax.Var, int]] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        # What is emitted in one block cannot be read in another.
        self.made, self.sums = {}, {}
        return super().visit_dataflow_block_(block)

    def visit_binding_block_(self, block: relax.BindingBlock) -> relax.BindingBlock:
        self.made, self.sums = {}, {}
        return super().visit_binding_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        var = binding.var
        value = self._in_16_bits(var, binding.value)
        if value is not None:
            dataflow = isinstance(var, relax.DataflowVar)
            shown = self.builder_.current_block_is_dataflow() and not dataflow
            emit = self.builder_.emit_output if shown else self.builder_.emit
            self.set_var_remap(var, emit(value))
        else:
            super().visit_var_binding_(binding)
        if var in self.rounded:
            self._narrow(var, self.rounded[var])

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not _is_elementwise(call):
            return super().visit_call_(call)
        args = [self._widened(arg) for arg in call.args]
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    def _in_16_bits(self, var: relax.Var, call: relax.Call) -> relax.Expr | None:
        """Return what becomes of a layer or an attention, None for anything else."""
        if var in self.layers.narrow:
            return self._layer(call, self.layers.narrow[var])
        if var in self.layers.attentions:
            operands = [self.visit_expr(each) for each in call.args[1].fields]
            return self.attentions.call(self.layers.attentions[var], operands, call)
        return None

    def _layer(self, call: relax.Call, layer: _Narrow) -> relax.Expr:
        types = layer.types
        data = self._narrow(call.args[0], types.a)
        # In front of the product: it is added where that is in registers.
        added = self._lost(data, layer.lost) if layer.lost is not None else None
        result = on_operands(call, data, constant(layer.weights, types.b), types.out)
        if types.out != _WIDE:
            result = relax.op.astype(self.builder_.emit(result), _WIDE)
        return result if added is None else relax.op.add(self.builder_.emit(result), added)

    def _lost(self, data: relax.Var, lost: StoredWeights) -> relax.Var:
        """Return what a layer's weights lost of the mean of rows; layers share sums of rows."""
        if data not in self.sums:
            self.sums[data] = sum_of_rows(self.builder_, data)
        return lost_product(self.builder_, *self.sums[data], lost)

    def _narrow(self, var: relax.Var, dtype: str) -> relax.Var:
        """Return a variable rounded to a type, which all its readers share."""
        if (var, dtype) not in self.made:
            whole = self.visit_expr(var)
            self.made[var, dtype] = self.builder_.emit(relax.op.astype(whole, dtype))
        return self.made[var, dtype]

    def _widened(self, arg: relax.Expr) -> relax.Expr:
        """Return an operand of an elementwise operator, rounded where layers read it so."""
        dtype = self.rounded.get(arg) if isinstance(arg, relax.Var) else None
        if dtype is None or (arg, dtype) not in self.made:
            return self.visit_expr(arg)
        # One for each reader: it becomes a part of the reader's kernel.
        return self.builder_.emit(relax.op.astype(self.made[arg, dtype], _WIDE))


def _rounded(func: relax.Function, layers: _Layers, strategy: Strategy) -> dict[relax.Var, str]:
    """Return what is read by changed layers and else elementwise only, with their type.

    Without what elementwise operators read in fp32, as the strategy finds worth it.
    """
    found: dict[relax.Var, str] = {}
    others: set[relax.Var] = set()
    for binding in bindings(func):
        if binding.var in layers.narrow:
            found.setdefault(binding.value.args[0], layers.narrow[binding.var].types.a)
        elif not _is_elementwise(binding.value):
            relax.analysis.post_order_visit(
                binding.value, lambda e: others.add(e) if isinstance(e, relax.Var) else None
            )
    found |= {var: dtype for var, dtype in _second_terms(func, layers).items() if var not in found}
    inner = {var: dtype for var, dtype in found.items() if isinstance(var, relax.DataflowVar)}
    uses = use_counts(func)

    def keeps(var: relax.Var) -> bool:
        readers = layers.readers.get(var, [])
        if len(readers) == uses[var]:
            return False
        return bool(readers) and keeps_terms(strategy, static_shape(var), readers)

    return {var: dtype for var, dtype in inner.items() if var not in others and not keeps(var)}


def _second_terms(func: relax.Function, layers: _Layers) -> dict[relax.Var, str]:
    """Return terms that go through memory where two layers are added up, with their type.

    As in a residual block with a projection: TVM joins the addition to the first layer's kernel.
    """
    values = {binding.var: binding.value for binding in bindings(func)}
    order = {var: place for place, var in enumerate(values)}
    uses = use_counts(func)

    def layer_of(term: relax.Expr) -> relax.Var | None:
        """Return the layer whose kernel a term is a part of."""
        while term in values and uses[term] == 1 and term not in layers.narrow:
            if not _is_elementwise(values[term]):
                return None
            of_term = [arg for arg in values[term].args if isinstance(arg, relax.Var)]
            term = of_term[0] if len(of_term) == 1 else None
        return term if term in layers.narrow and uses[term] == 1 else None

    found = {}
    for value in values.values():
        if op_name(value) not in BINARY:
            continue
        terms = {arg: layer_of(arg) for arg in value.args if isinstance(arg, relax.Var)}
        if len(terms) == 2 and None not in terms.values():
            second = max(terms, key=lambda term: order[terms[term]])
            found[second] = layers.narrow[terms[second]].types.a
    return found


def _is_elementwise(value: relax.Expr) -> bool:
    return op_name(value) in BINARY or op_name(value) in UNARY
