"""Filters along one axis with few results: neighbouring outputs become channels.

A filter of one channel, as resamplers of audio are, gives a vector of output channels one number to
hold. But r outputs in a row are r channels of a convolution whose kernel reaches over the inputs of
all of them, k + (r - 1) s taps of stride r s, with zeros where an output has no tap:

    y[r q + i] = sum over u of x[r s q + u] W[i, u]    W[i, u] = w[u - i s]

For k = 41 and s = 3 that is 86 vectors for 16 outputs instead of 656. The outputs of a q lie side
by side in NHWC, so they are in order again, and those beyond the last one are cut off. As with
Winograd convolutions, a number that is not finite reaches the outputs beside those that have a tap
on it: zero times it is no number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.hardware import Core
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

# Vectors of outputs that become channels at once, at most.
_MOST_VECTORS = 4
# How many times fewer vectors have to be multiplied for it.
_LEAST_GAIN = 2.0
# Groups of outputs from which on it is tried: a tile of a micro-kernel has several.
_LEAST_GROUPS = 8


@dataclass(frozen=True)
class _Filter:
    """A convolution of one input channel along one axis.

    Parameters
    ----------
    axis : int
        2 or 3, along which it goes.
    outputs : int
        Along it.
    taps, stride, padding : int
        Along it; padding at its beginning.
    channels : int
        Of the output.
    """

    axis: int
    outputs: int
    taps: int
    stride: int
    padding: int
    channels: int

    def groups(self, count: int) -> int:
        """Return how many groups of so many outputs there are."""
        return math.ceil(self.outputs / count)

    def reach(self, count: int) -> int:
        """Return the taps of so many outputs together."""
        return self.taps + (count - 1) * self.stride

    def vectors(self, count: int, lanes: int) -> int:
        """Return the vectors that are multiplied where so many outputs are channels."""
        of_group = math.ceil(count * self.channels / lanes) * self.reach(count)
        return self.groups(count) * of_group

    def best(self, lanes: int) -> int:
        """Return the outputs that become channels; 1 where nothing is gained."""
        counts = [lanes * n // self.channels for n in range(1, _MOST_VECTORS + 1)]
        fitting = [n for n in counts if n > 1 and self.groups(n) >= _LEAST_GROUPS]
        best = min(fitting, key=lambda n: self.vectors(n, lanes), default=1)
        gains = self.vectors(best, lanes) * _LEAST_GAIN <= self.vectors(1, lanes)
        return best if gains else 1


@mutator
class Filters(PyExprMutator):
    """Rewrite filters of constant weights for a core."""

    def __init__(self, mod: tvm.IRModule, _func: relax.Function, core: Core) -> None:
        super().__init__(mod)
        self.core = core

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Return a filter with several outputs as channels; any other call as it is."""
        call = super().visit_call_(call)
        found = _filter_of(call)
        count = 1 if found is None else found.best(self.core.lanes("float32"))
        return call if found is None or count == 1 else self._together(call, found, count)

    def _together(self, call: relax.Call, found: _Filter, count: int) -> relax.Expr:
        """Return a filter with so many outputs as channels."""
        data, weights = call.args
        images, channels, *sizes = static_shape(call)
        groups, axis = found.groups(count), found.axis - 2
        missing = (groups - 1) * count * found.stride + found.reach(count)
        behind = missing - found.padding - static_shape(data)[found.axis]
        # What the last groups do not reach is left out of them.
        begin, end = [0, 0], [0, 0]
        begin[axis], end[axis] = found.padding, max(0, behind)
        strides = [int(stride) for stride in call.attrs.strides]
        strides[axis] *= count
        conv = op.nn.conv2d(
            data,
            constant(_spread(constant_array(weights), found, count), dtype_name(weights)),
            strides=strides,
            padding=(*begin, *end),
            out_dtype=call.attrs.out_dtype,
        )
        # (images, outputs of a group, channels, height, width) to groups in front of their outputs.
        sizes[axis] = groups
        made = self.builder_.emit(
            op.reshape(self.builder_.emit(conv), (images, count, channels, *sizes))
        )
        order = [0, 2, 3, 4]
        order.insert(order.index(3 + axis) + 1, 1)
        made = self.builder_.emit(op.permute_dims(made, order))
        sizes[axis] = groups * count
        made = self.builder_.emit(op.reshape(made, (images, channels, *sizes)))
        return op.strided_slice(made, [found.axis], [0], [found.outputs])


def _filter_of(call: relax.Call) -> _Filter | None:
    """Return the filter that a call is; None for any other."""
    if op_name(call) != "relax.nn.conv2d" or not is_constant(call.args[1]):
        return None
    attrs, shape = call.attrs, static_shape(call)
    data, weights = static_shape(call.args[0]), static_shape(call.args[1])
    is_plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == (
        "NCHW",
        "OIHW",
        "NCHW",
    )
    floats = {dtype_name(each) for each in (*call.args, call)} == {"float32"}
    if not (is_plain and floats and data and shape and weights[1] == attrs.groups == 1):
        return None
    padding = [int(each) for each in attrs.padding]
    for axis, other in ((2, 3), (3, 2)):
        taps, across = weights[axis], weights[other]
        beside = padding[other - 2], padding[other]
        if taps > 1 and across == 1 and beside == (0, 0) and int(attrs.dilation[axis - 2]) == 1:
            stride, at = int(attrs.strides[axis - 2]), padding[axis - 2]
            return _Filter(axis, shape[axis], taps, stride, at, shape[1])
    return None


def _spread(weights: np.ndarray, found: _Filter, count: int) -> np.ndarray:
    """Return the weights of so many outputs as channels, outputs in front of channels."""
    taps = weights.reshape(found.channels, found.taps)
    made = np.zeros((count, found.channels, found.reach(count)), weights.dtype)
    for place in range(count):
        first = place * found.stride
        made[place, :, first : first + found.taps] = taps
    shape = [count * found.channels, 1, 1, 1]
    shape[found.axis] = found.reach(count)
    return made.reshape(shape)
