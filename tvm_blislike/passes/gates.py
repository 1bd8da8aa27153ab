"""Images of which each channel is multiplied by a gate: where that is done (`cost_models.gates`).

    z = W (x * gate) = (W * gate) x

for a 1x1 convolution of constant weights that alone reads the product. As any other product of
rounded numbers it may differ in the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.gates import Place, place
from tvm_blislike.operators import workload_of
from tvm_blislike.passes.batches.images import tensor_bytes
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.gated_weights import spread_of
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    functions,
    is_constant,
    op_name,
    static_shape,
    use_counts,
)

_FLOATS = ("float32", "float16")


@dataclass(frozen=True)
class _Gated:
    """The product of one image by its gates.

    Parameters
    ----------
    image, gate : relax.Var
        Of shapes (1, c, h, w) and (1, c, 1, 1).
    layer : relax.VarBinding or None
        The 1x1 convolution that alone reads the product, if its weights can take the gates.
    """

    image: relax.Var
    gate: relax.Var
    layer: relax.VarBinding | None = None

    @property
    def weights(self) -> relax.Constant:
        """Of the layer."""
        return self.layer.value.args[1]


@tvm.transform.module_pass(opt_level=0, name="blislike.Gates")
class Gates:
    """Module pass that has the gates of every Relax function multiplied where that takes least.

    Parameters
    ----------
    strategy : Strategy
        Of the target. Where what it compiles serves other sizes as well, nothing is changed: an
        image of another batch has other gates, and a smaller one fewer pixels than outputs.
    """

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        if self.strategy.is_for_many:
            return mod
        moved = {gvar: self._moved(func) for gvar, func in functions(mod)}
        if not any(moved.values()):
            return mod
        result = mod.clone()
        for gvar, func in functions(mod):
            result.update_func(gvar, _Moved(mod, moved[gvar]).visit_expr(func))
        return TIDY(result)

    def _moved(self, func: relax.Function) -> dict[relax.Var, tuple[_Gated, Place]]:
        """Return the products that leave the epilogue of the layer before, and where they go."""
        places = {var: (each, self._place(each)) for var, each in _gated(func).items()}
        return {var: found for var, found in places.items() if found[1] is not Place.EPILOGUE}

    def _place(self, gated: _Gated) -> Place:
        core, threads = self.strategy.core, self.strategy.threads
        rows, size = static_shape(gated.image)[2], tensor_bytes(gated.image)
        weights = None if gated.layer is None else tensor_bytes(gated.weights)
        found = place(core, threads, rows, size, weights)
        # Asked last: it packs.
        if found is Place.WEIGHTS and not self._moves_weights(gated):
            return place(core, threads, rows, size, None)
        return found

    def _moves_weights(self, gated: _Gated) -> bool:
        """Whether the kernel of the layer behind has packed weights, not sums of them."""
        workload = workload_of(gated.layer.value)
        if workload is None:
            return False
        choice = self.strategy.choose(workload)
        pack = partial(choice.implementation.pack, workload, choice.config)
        return spread_of(pack, constant_array(gated.weights)) is not None


@mutator
class _Moved(PyExprMutator):
    """Multiply by gates where it was found to take least."""

    def __init__(self, mod: tvm.IRModule, places: dict[relax.Var, tuple[_Gated, Place]]) -> None:
        super().__init__(mod)
        self.by_rows = {v: each for v, (each, at) in places.items() if at is Place.ROWS}
        layers = [each for each, at in places.values() if at is Place.WEIGHTS]
        self.in_weights = {each.layer.var: each for each in layers}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Emit a product or a layer in its other form; any other binding as it is."""
        var = binding.var
        if var in self.by_rows:
            made = self._by_rows(self.by_rows[var])
        elif var in self.in_weights:
            made = self._in_weights(self.in_weights[var])
        else:
            super().visit_var_binding_(binding)
            return
        self.set_var_remap(var, self.builder_.emit(made))

    def _by_rows(self, gated: _Gated) -> relax.Expr:
        """Return the product in a kernel of its own: no layer's epilogue has reshapes."""
        flat = self._flat(gated.gate, (static_shape(gated.gate)[1],))
        return relax.op.multiply(
            self.visit_expr(gated.image), relax.op.reshape(flat, static_shape(gated.gate))
        )

    def _in_weights(self, gated: _Gated) -> relax.Expr:
        """Return the layer with weights that `gated_weights.packed_product` knows."""
        layer, shape = gated.layer.value, static_shape(gated.weights)
        matrix = constant(constant_array(gated.weights).reshape(shape[:2]), dtype_name(layer))
        scaled = relax.op.multiply(matrix, self._flat(gated.gate, (1, shape[1])))
        weights = relax.op.reshape(self.builder_.emit(scaled), shape)
        operands = [self.visit_expr(gated.image), self.builder_.emit(weights)]
        return relax.Call(layer.op, operands, layer.attrs)

    def _flat(self, gate: relax.Var, shape: tuple[int, ...]) -> relax.Var:
        return self.builder_.emit(relax.op.reshape(self.visit_expr(gate), shape))


def _gated(func: relax.Function) -> dict[relax.Var, _Gated]:
    """Return the products of an image by gates, with the layer that may take these."""
    found, counts = {}, use_counts(func)
    for binding in bindings(func):
        value = binding.value
        if not isinstance(binding.var, relax.DataflowVar):
            continue
        if op_name(value) == "relax.multiply":
            if (product := _product(value)) is not None:
                found[binding.var] = product
        elif op_name(value) == "relax.nn.conv2d" and value.args[0] in found:
            product = value.args[0]
            if counts[product] == 1 and _takes_gates(value):
                found[product] = replace(found[product], layer=binding)
    return found


def _product(call: relax.Call) -> _Gated | None:
    for image, gate in (call.args, reversed(call.args)):
        shape = static_shape(image)
        if (
            all(isinstance(each, relax.Var) for each in call.args)
            and dtype_name(call) in _FLOATS
            and shape is not None
            and len(shape) == 4
            and shape[0] == 1
            and math.prod(shape[2:]) > 1
            and static_shape(gate) == (1, shape[1], 1, 1)
        ):
            return _Gated(image, gate)
    return None


def _takes_gates(call: relax.Call) -> bool:
    """Return whether a convolution of a gated image has weights that can be multiplied instead."""
    attrs, weights = call.attrs, call.args[1]
    return (
        is_constant(weights)
        and {dtype_name(weights), dtype_name(call.args[0])} == {dtype_name(call)}
        and (attrs.data_layout, attrs.kernel_layout) == ("NCHW", "OIHW")
        and int(attrs.groups) == 1
        and static_shape(weights)[2:] == (1, 1)
    )
