"""Groups of zeros for convolutions of groups that do not fill their last vector.

Algorithms whose vectors hold the outputs of several groups have whole vectors of channels only.
Networks with groups of 8 channels have 13 or 55 of them as well; one group more, of zeros, and the
convolution is one of 14 or 56. Its data comes from a convolution whose weights get zeros likewise,
through what is computed for each channel by itself, and so does its result until another reader
wants it: then the channels that there are is a slice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.choose.strategy import Seconds
from tvm_blislike.cost_models.transforms import transform_seconds
from tvm_blislike.hardware import Core
from tvm_blislike.model.layouts import NCHW, with_rank
from tvm_blislike.model.workload import Conv2dWorkload
from tvm_blislike.operators import workload_of
from tvm_blislike.passes.image_operators import UNARY, convolved_like
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
    use_counts,
)

CONV = "relax.nn.conv2d"
_BY_CHANNEL = {"relax.add", "relax.multiply", "relax.maximum", "relax.minimum", "relax.subtract"}
# What is computed for nothing, at most, of what there is.
_MOST_ADDED = 0.25


@dataclass(frozen=True)
class _Wide:
    """A value with channels of zeros behind its own."""

    var: relax.Expr
    channels: int


@mutator
class WholeGroups(PyExprMutator):
    """Rewrite convolutions of groups where that is predicted to be faster.

    Parameters
    ----------
    mod, func : IRModule, relax.Function
        What is rewritten.
    core : Core
        The target.
    threads : int
        Threads of one inference.
    seconds : callable, optional
        Predicts a layer's time; without it nothing changes.
    """

    def __init__(
        self,
        mod: tvm.IRModule,
        func: relax.Function,
        core: Core,
        threads: int,
        seconds: Seconds | None,
    ) -> None:
        super().__init__(mod)
        self.core, self.threads, self.seconds = core, threads, seconds
        self.uses = use_counts(func)
        self.values = {binding.var: binding.value for binding in bindings(func)}
        self.wide: dict[relax.Var, _Wide] = {}
        self.narrow: dict[relax.Var, relax.Expr] = {}

    def visit_dataflow_block_(self, block: relax.DataflowBlock) -> relax.BindingBlock:
        """Begin anew."""
        # What is emitted in one block cannot be read in another.
        self.wide, self.narrow = {}, {}
        return super().visit_dataflow_block_(block)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Emit a convolution of whole groups, and what follows it for each channel by itself."""
        call, var = binding.value, binding.var
        inside = self.builder_.current_block_is_dataflow() and isinstance(var, relax.DataflowVar)
        found = self._widened(call) if inside else None
        if found is None:
            super().visit_var_binding_(binding)
        else:
            self.wide[var] = _Wide(self.builder_.emit(found), static_shape(call)[1])

    def visit_dataflow_var_(self, var: relax.Var) -> relax.Expr:
        """Return the channels that there are to any reader that does not know of others."""
        if var not in self.wide:
            return super().visit_dataflow_var_(var)
        if var not in self.narrow:
            found = self.wide[var]
            sliced = op.strided_slice(found.var, [1], [0], [found.channels])
            self.narrow[var] = self.builder_.emit(sliced)
        return self.narrow[var]

    def _whole(self, call: relax.Expr) -> Conv2dWorkload | None:
        """Return the layer with the groups that fill vectors, where it takes less time."""
        is_plain = op_name(call) == CONV and is_constant(call.args[1]) and _is_nchw(call)
        layer = workload_of(call) if is_plain else None
        if layer is None or self.seconds is None or layer.groups == 1 or layer.is_depthwise:
            return None
        lanes = self.core.lanes(layer.types.acc)
        each = [channels // layer.groups for channels in (layer.ci, layer.co)]
        step = math.lcm(*(lanes // math.gcd(lanes, channels) for channels in each))
        groups = -(-layer.groups // step) * step
        if groups == layer.groups or groups > (1 + _MOST_ADDED) * layer.groups:
            return None
        wide = replace(layer, groups=groups, ci=groups * each[0], co=groups * each[1])
        found, before = self.seconds(wide), self.seconds(layer)
        copied = transform_seconds(math.prod(layer.images[1]), self.core, self.threads)
        return wide if found is not None and before and found + copied < before else None

    def _widened(self, call: relax.Expr) -> relax.Expr | None:
        layer = self._whole(call)
        if layer is not None:
            return self._of_whole_groups(call, layer)
        source = call.args[0] if isinstance(call, relax.Call) and call.args else None
        if source not in self.wide or static_shape(source) != static_shape(call):
            return None
        found = self.wide[source]
        return self._by_channel(call, found.var, static_shape(found.var)[1])

    def _by_channel(self, call: relax.Call, data: relax.Expr, channels: int) -> relax.Expr | None:
        """Return an operator on more channels; None where it is not one for each by itself."""
        if op_name(call) in UNARY:
            return relax.Call(call.op, [data, *call.args[1:]], call.attrs)
        if op_name(call) not in _BY_CHANNEL or not is_constant(call.args[1]):
            return None
        array = constant_array(call.args[1])
        if array.ndim > 4:
            return None
        numbers = with_rank(array, 4)
        if numbers.shape[1] > 1:
            numbers = _with_zeros(numbers, 1, channels)
        other = constant(numbers, dtype_name(call.args[1]))
        return relax.Call(call.op, [data, other], call.attrs)

    def _of_whole_groups(self, call: relax.Call, layer: Conv2dWorkload) -> relax.Expr:
        data = self._data(call.args[0], layer.ci)
        return _convolved(call, data, layer.co, layer.groups)

    def _data(self, source: relax.Expr, channels: int) -> relax.Expr:
        """Return data with zeros in more channels, or what does not matter behind weights of 0."""
        known = self.wide.get(source)
        if known is not None and static_shape(known.var)[1] == channels:
            return known.var
        computed = self._computed(source, channels)
        if computed is not None:
            return computed
        added = channels - static_shape(source)[1]
        data = self.visit_expr(source)
        return self.builder_.emit(op.nn.pad(data, [0, 0, 0, added, 0, 0, 0, 0]))

    def _computed(self, source: relax.Expr, channels: int) -> relax.Expr | None:
        """Return data with more channels out of a convolution that nobody else reads."""
        # A variable that leaves the block has a reader that is not counted.
        is_read_here = isinstance(source, relax.DataflowVar) and self.uses[source] == 1
        value = self.values.get(source) if is_read_here else None
        if _is_dense(value):
            data = self.visit_expr(value.args[0])
            return self.builder_.emit(_convolved(value, data, channels, 1))
        if op_name(value) not in UNARY | _BY_CHANNEL:
            return None
        inside = self._computed(value.args[0], channels)
        wide = None if inside is None else self._by_channel(value, inside, channels)
        return None if wide is None else self.builder_.emit(wide)


def _is_dense(call: relax.Expr) -> bool:
    is_constant_conv = op_name(call) == CONV and is_constant(call.args[1])
    return is_constant_conv and int(call.attrs.groups) == 1 and _is_nchw(call)


def _is_nchw(call: relax.Call) -> bool:
    return (call.attrs.data_layout, call.attrs.out_layout) == (NCHW, NCHW)


def _convolved(call: relax.Call, data: relax.Expr, co: int, groups: int) -> relax.Call:
    """Return a convolution with zeros as the weights of more channels."""
    weights = _with_zeros(constant_array(call.args[1]), 0, co)
    return convolved_like(call, data, constant(weights, dtype_name(call.args[1])), groups=groups)


def _with_zeros(array: np.ndarray, axis: int, size: int) -> np.ndarray:
    widths = [(0, size - array.shape[axis]) if a == axis else (0, 0) for a in range(array.ndim)]
    return np.pad(array, widths)
