"""Constant weights of layers that memory bounds become ones of fewer bytes, converted on load.

Asked for (`Constraints.weights`) they are rounded, and the report says how much. Weights that are
numbers of 16 bits as they are, as those of models in half precision, are stored so without being
asked: nothing is lost. So are the integers of 8 bits that lie in 16 on cores which multiply those.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.choose.storage_choice import SPLITS, split, splits_rows, why_whole
from tvm_blislike.choose.strategy import Strategy
from tvm_blislike.cost_models.data_types import missing_types
from tvm_blislike.model.marks import STORED_ERRORS, WHOLE_WEIGHTS
from tvm_blislike.model.types import (
    FLOAT32,
    MASKED,
    STORED,
    WORDS,
    WORDS_BY_BYTES,
    Types,
)
from tvm_blislike.model.workload import Workload
from tvm_blislike.operators import workload_of
from tvm_blislike.passes import brain_parts, fixed_point, spills
from tvm_blislike.passes.constants import TIDY
from tvm_blislike.passes.same_layer import on_operands
from tvm_blislike.passes.storage import StoredWeights, is_exact, stored
from tvm_blislike.tvm_seams import constant, constant_array, functions, is_constant

# Types that are taken unasked for weights that they hold exactly.
_UNASKED = (STORED["fp16"], STORED["bf16"])
# Fewer bytes of weights are in a cache beside others, or read in no time.
_FEWEST_BYTES = 1 << 16


@tvm.transform.module_pass(opt_level=0, name="blislike.StoreWeights")
class StoreWeights:
    """Module pass that rewrites every Relax function as a strategy finds worth it."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Return the rewritten module."""
        result, changed = mod.clone(), False
        for gvar, func in functions(mod):
            rewriter = _StoreWeights(result, self.strategy)
            # Those of layers whose weights are narrow already (`passes.lower_precision`).
            known = (func.attrs or {}).get(STORED_ERRORS, {})
            rewriter.errors = {str(layer): list(errors) for layer, errors in known.items()}
            rewritten = rewriter.visit_expr(func)
            if len(rewriter.errors) > len(known) or rewriter.narrowed:
                changed = True
                attributes = {STORED_ERRORS: rewriter.errors, WHOLE_WEIGHTS: rewriter.whole}
                rewriter.builder_.update_func(gvar, rewritten.with_attr(attributes))
                result = rewriter.builder_.get()
            elif rewriter.whole:
                result.update_func(gvar, func.with_attr(WHOLE_WEIGHTS, rewriter.whole))
        return TIDY(result) if changed else result


@mutator
class _StoreWeights(PyExprMutator):
    """Rewrites layers; knows the errors of those that it changed, and why others stay."""

    def __init__(self, mod: tvm.IRModule, strategy: Strategy) -> None:
        super().__init__(mod)
        self.strategy = strategy
        self.errors: dict[str, list[float]] = {}
        self.whole: dict[str, str] = {}
        self.narrowed = False

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        layer = _layer(call)
        if layer is None:
            return call
        weights = constant_array(call.args[1])
        if layer.types != FLOAT32:
            return self._in_bytes(call, layer, weights)
        dtype = self._dtype(layer, weights)
        if not dtype:
            return call
        axis = 0 if layer.images else 1
        found = stored(weights, dtype, axis)
        if found is None:
            self.whole[str(layer)] = f"a weight is not finite in {dtype}"
            return call
        splits = self._splits_rows(layer, found)
        product = split(layer, dtype) if splits else replace(layer, types=Types.stored(dtype))
        self.errors.setdefault(str(product), []).append(found.error)
        if splits:
            multiplied = fixed_point if dtype == STORED["int8"] else brain_parts
            result = multiplied.product(self.builder_, call.args[0], found.values)
        else:
            values = constant(found.values, str(found.values.dtype))
            result = on_operands(call, call.args[0], values, "float32")
        return self._scaled(result, found, axis)

    def _splits_rows(self, layer: Workload, found: StoredWeights) -> bool:
        dtype = str(found.values.dtype)
        if dtype not in SPLITS:
            return False
        spills.ensure(self.strategy.core, SPLITS[dtype][1])
        if not splits_rows(self.strategy, layer, dtype):
            return False
        return dtype != STORED["int8"] or fixed_point.are_sums_exact(found.values)

    def _dtype(self, layer: Workload, weights: np.ndarray) -> str:
        """Return the type in which the weights of a layer are to be stored, "" for fp32."""
        asked = self.strategy.constraints.weights
        dtypes = (STORED[asked],) if asked else _UNASKED
        for dtype in dtypes:
            if not asked and not is_exact(weights, dtype):
                continue
            spills.ensure(self.strategy.core, Types.stored(dtype))
            reason = why_whole(self.strategy, layer, Types.stored(dtype))
            if not reason:
                return dtype
            if asked:
                self.whole[str(layer)] = reason
        return ""

    def _in_bytes(self, call: relax.Call, layer: Workload, weights: np.ndarray) -> relax.Call:
        """Return a layer of words, or of magnitudes and masks, with weights of 8 bits, or as it is.

        Data of the latter become words, which pays for the few of a matrix product only.
        """
        if layer.types.is_masked and layer.images:
            return call
        if missing_types(WORDS_BY_BYTES, self.strategy.core):
            return call
        spills.ensure(self.strategy.core, WORDS_BY_BYTES)
        if why_whole(self.strategy, layer, WORDS_BY_BYTES):
            return call
        self.narrowed = True
        data = call.args[0]
        if layer.types.is_masked:
            data = self.builder_.emit(relax.op.astype(data, "int16"))
        return on_operands(call, data, constant(weights.astype("int8"), "int8"), "int32")

    def _scaled(self, result: relax.Expr, found: StoredWeights, axis: int) -> relax.Expr:
        """Return a product by stored weights times the scales of these, if they have any."""
        if found.scales is None:
            return result
        # A factor of each channel, along the channels of an image or the columns of a matrix.
        shape = (-1,) if axis else (1, -1, 1, 1)
        scales = constant(found.scales.reshape(shape), "float32")
        return relax.op.multiply(self.builder_.emit(result), scales)


def _layer(call: relax.Call) -> Workload | None:
    """Return the workload of a layer with many constant weights to narrow, None for other calls."""
    layer = workload_of(call)
    if (
        layer is None
        or layer.types not in (FLOAT32, WORDS, MASKED)
        or not is_constant(call.args[1])
    ):
        return None
    if layer.bytes_moved[1] < _FEWEST_BYTES:
        return None
    if not layer.images:
        return layer
    attrs = call.attrs
    usual = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NCHW", "OIHW", "NCHW")
    return layer if usual and not layer.is_depthwise else None
