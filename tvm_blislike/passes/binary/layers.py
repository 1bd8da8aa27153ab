"""Convolutions and matrix products of signs: words of data, words of weights, and counts.

Of n products of signs of which p are -1 the sum is n - 2 * p. Bits of words that padding adds are
0, whatever sign that is: what they count is known, for each place of the result. Signs that may be
0 are halves of a sum of two signs, each told by a comparison (`signs.Signs.planes`). Then weights
appear twice, and padding, of which the two signs differ, adds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax
from tvm.relax import op

from tvm_blislike.model.types import BITS, FLOAT32
from tvm_blislike.operators import operator_of, workload_of
from tvm_blislike.operators.operator import WORD
from tvm_blislike.passes.binary.packing import packed
from tvm_blislike.passes.binary.signs import Plane
from tvm_blislike.passes.binary.thresholds import Chain
from tvm_blislike.passes.same_layer import on_operands
from tvm_blislike.tvm_seams import constant, dtype_name, op_name, static_shape

_LAYOUTS = ("NCHW", "OIHW", "NCHW")


def why_float(call: relax.Call, planes: int, weights: np.ndarray | None) -> str:
    """Return why a layer of signs cannot be one of words, "" if it can.

    Parameters
    ----------
    planes : int
        Of its data.
    weights : numpy.ndarray or None
        None where they are no constant.
    """
    if op_name(call) not in ("relax.nn.conv2d", "relax.matmul"):
        return "only matrix products and 2-D convolutions count bits"
    if dtype_name(call) != "float32" or workload_of(call) is None:
        return "it is no layer of float32 with a workload"
    if weights is None:
        return "its weights are no constants"
    if op_name(call) == "relax.matmul":
        if weights.ndim != 2:
            return "its weights are no matrix"
    else:
        attrs = call.attrs
        if (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) != _LAYOUTS:
            return "its layouts are not those of ONNX"
        if int(attrs.groups) > 1 and weights.shape[1] % WORD:
            return f"{weights.shape[1]} channels of a group do not fill words of {WORD}"
        if int(attrs.groups) > 1 and planes > 1:
            return "its data may be 0, and its channels are in groups"
    sizes = np.abs(weights)
    if not np.all(np.isfinite(sizes)) or not np.all(sizes):
        return "weights of 0 are no signs"
    least, most = (reduce(sizes, axis=_inner(call)) for reduce in (np.min, np.max))
    return "" if np.array_equal(least, most) else "its weights are no signs of one size by output"


def _inner(call: relax.Call) -> tuple[int, ...]:
    """Return the axes of the weights of one output."""
    return (0,) if op_name(call) == "relax.matmul" else (1, 2, 3)


@dataclass(frozen=True)
class Layer:
    """A layer for which `why_float` has no reason.

    Parameters
    ----------
    call : relax.Call
        Of the graph.
    planes : tuple of Plane
        Of its data.
    size : float
        Of its data.
    weights : numpy.ndarray
        float32.
    """

    call: relax.Call
    planes: tuple[Plane, ...]
    size: float
    weights: np.ndarray

    @property
    def is_convolution(self) -> bool:
        """Whether it is no matrix product."""
        return op_name(self.call) == "relax.nn.conv2d"

    @property
    def depth_axis(self) -> int:
        """Axis of the weights along which products are added."""
        return 1 if self.is_convolution else 0

    @property
    def scale(self) -> np.ndarray:
        """float32 by output: what a sum of signs is multiplied by."""
        size = np.abs(self.weights).max(axis=_inner(self.call))
        return size * np.float32(self.size)

    @property
    def is_scaled(self) -> bool:
        """Whether a sum of signs is not yet the result."""
        return bool(np.any(self.scale != 1))

    def counted(self, words: relax.Expr) -> relax.Call:
        """Return the call that counts, given words of its data."""
        parts = [packed(s, self.depth_axis) for s in self._differ]
        known = constant(np.concatenate(parts, self.depth_axis), BITS.b)
        return on_operands(self.call, words, known, BITS.acc)

    def chain(self, counts: relax.Var) -> Chain:
        """Return what the sums are, given the counts."""
        channels = self.weights.shape[0 if self.is_convolution else 1]
        depth = self.weights.size // channels
        rank = len(static_shape(self.call))
        axis = 1 if self.is_convolution else rank - 1
        along = [1] * rank
        along[axis] = -1
        start = np.full(channels, depth).reshape(along)
        if len(self.planes) == 1 and self.is_convolution:
            start = start + self._beyond()
        chain = Chain(counts, start, 3 - len(self.planes), depth, channels, axis)
        return chain.then(lambda sums: sums * self.scale) if self.is_scaled else chain

    @property
    def _differ(self) -> list[np.ndarray]:
        """Bits of weights for each plane: that of the data differs where a product is -1."""
        return [self.weights * plane.sign > 0 for plane in self.planes]

    def _beyond(self) -> np.ndarray:
        """Return what is to be added for weights that lie outside the image, by place.

        They count n of c channels that differ, and were taken for c - 2 * n.
        """
        workload = workload_of(self.call)
        if not any(workload.padding):
            return np.zeros(1, np.int64)
        (differ,) = self._differ
        added = 2 * differ.sum(1, keepdims=True) - differ.shape[1]
        single = replace(workload, n=1, ci=1, groups=1, types=FLOAT32)
        ones = np.ones((1, 1, workload.h, workload.w), np.int64)
        inside = operator_of(workload).reference(single, ones, added.astype(np.int64))
        return added.sum((1, 2, 3)).reshape(1, -1, 1, 1) - inside


def floats(emit: Callable[[relax.Expr], relax.Var], layer: Layer, chain: Chain) -> relax.Var:
    """Return the sums as float32."""
    counts = chain.counts
    if chain.step > 1:
        counts = emit(op.multiply(counts, relax.const(chain.step, "int32")))
    sums = emit(op.subtract(constant(chain.start.astype(np.int32), "int32"), counts))
    value = emit(op.astype(sums, "float32"))
    if not layer.is_scaled:
        return value
    along = [1] * len(static_shape(layer.call))
    along[chain.axis] = -1
    return emit(op.multiply(value, constant(layer.scale.reshape(along), "float32")))
