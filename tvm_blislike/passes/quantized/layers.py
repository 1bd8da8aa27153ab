"""Convolutions and matrix products of integers, summed in 32 bits.

Zero points of the data: sum((x - zx) * w) = sum(x * w) - zx * sum(w), where the second sum is known
if the padding, too, has the value zx. Those of the weights are subtracted from them beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm import relax
from tvm.relax import op

from tvm_blislike.passes.quantized import factors
from tvm_blislike.passes.quantized.emission import Emit
from tvm_blislike.passes.quantized.real import Known, Real, Term
from tvm_blislike.tvm_seams import constant, dtype_name, op_name, static_shape

_WEIGHTS = np.iinfo(np.int8)
_MOST_DATA = np.iinfo(np.uint8).max
_MOST_SUM = np.iinfo(np.int32).max
# Quantizers multiply the scales of data and weights in float32, or in float64 and round.
_SAME_SCALE = 1e-6
# Of signals, images and volumes, channels first.
_AXES = ("CW", "CHW", "CDHW")


def why_float(call: relax.Call, operands: list[object]) -> str:
    """Return why a layer with a quantized operand cannot be one of integers, "" if it can."""
    layer, (data, weights) = _LAYERS.get(op_name(call)), operands
    if layer is None:
        return "there is no integer form of it"
    if dtype_name(call) != "float32":
        return f"its result is {dtype_name(call)}"
    if not isinstance(data, Real) or data.steps is None:
        return "its data are not quantized with one scale"
    if isinstance(weights, Real) and weights.steps is not None:
        return factors.why_not(call)
    if not isinstance(weights, Known):
        return "its weights are no quantized constants"
    return layer.refusal(call, weights) or _why_not_weights(layer, data.steps, weights)


def integer_layer(
    emit: Emit, call: relax.Call, data: Real, weights: Known | Real, weights_dtype: str
) -> Real:
    """Return the result of a layer for which `why_float` has no reason."""
    if isinstance(weights, Real):
        return factors.product(emit, call, data.steps, weights.steps, weights_dtype)
    layer, step = _LAYERS[op_name(call)], data.steps
    along = [1] * len(static_shape(call))
    along[layer.result_axis] = -1
    scale = step.scale.item() * weights.scale_along(layer.axis).astype(np.float64)
    zero = step.zero.item() * layer.sums(weights.centered)
    acc = emit(layer.multiplied(emit, call, step, weights.centered.astype(weights_dtype)))
    return Real((Term(acc, scale.reshape(along), zero.reshape(along)),))


def with_bias(real: Real, bias: Known) -> Real | None:
    """Return the sum of a layer and a bias of its own scale, None where that is not so."""
    term = real.term
    if term is None or dtype_name(term.x) != "int32":
        return None
    zero = term.zero - bias.centered
    if zero.ndim > len(static_shape(term.x)) or zero.size != max(zero.shape, default=1):
        return None
    alike = np.allclose(term.scale, bias.scale, rtol=_SAME_SCALE, atol=0)
    # Half of the range for the sum itself, half for what is added to it.
    if not alike or np.abs(zero).max() > _MOST_SUM // 2:
        return None
    return Real((Term(term.x, term.scale, zero),))


@dataclass(frozen=True)
class _Layer:
    """How a layer is one of integers.

    Parameters
    ----------
    axis, result_axis : int
        Axis of the outputs in the weights, and in the result.
    refusal : callable
        Why a call is none, or "".
    multiplied : callable
        The call on integers.
    """

    axis: int
    result_axis: int
    refusal: Callable[[relax.Call, Known], str]
    multiplied: Callable[[Emit, relax.Call, Term, np.ndarray], relax.Call]

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Return the sum of the weights of each output."""
        return weights.sum(tuple(a for a in range(weights.ndim) if a != self.axis % weights.ndim))


def _why_not_weights(layer: _Layer, data: Term, weights: Known) -> str:
    if weights.scale_along(layer.axis) is None:
        return "its weights have scales along another axis than its outputs"
    centered = weights.centered
    if not centered.size or centered.min() < _WEIGHTS.min or centered.max() > _WEIGHTS.max:
        return "its weights without their zero point need more than 8 bits"
    product = _MOST_DATA * layer.sums(np.abs(centered))
    of_zero = np.abs(data.zero.item() * layer.sums(centered))
    fits = max(product.max(), of_zero.max()) <= _MOST_SUM // 2
    return "" if fits else "its sums could need more than 32 bits"


def why_not_convolution(call: relax.Call) -> str:
    """Return why the sums of a convolution are not taken apart, "" if they are."""
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    usual = layouts in [("N" + axes, "OI" + axes[1:], "N" + axes) for axes in _AXES]
    return "" if usual else "its layouts are not those of ONNX"


def _why_not_product(_call: relax.Call, weights: Known) -> str:
    return "" if weights.x.ndim == 2 else "its weights are no matrix"


def _convolution(emit: Emit, call: relax.Call, step: Term, weights: np.ndarray) -> relax.Call:
    attrs, data = call.attrs, step.x
    padding = [int(p) for p in attrs.padding]
    if any(padding) and step.zero.any():
        half = len(padding) // 2
        pairs = zip(padding[:half], padding[half:], strict=True)
        widths = [0, 0, 0, 0, *(width for pair in pairs for width in pair)]
        data = emit(op.nn.pad(data, widths, pad_value=float(step.zero.item())))
        padding = [0] * len(padding)
    return getattr(op.nn, op_name(call).removeprefix("relax.nn."))(
        data,
        constant(weights, str(weights.dtype)),
        strides=attrs.strides,
        padding=padding,
        dilation=attrs.dilation,
        groups=attrs.groups,
        out_dtype="int32",
    )


def _product(_emit: Emit, _call: relax.Call, step: Term, weights: np.ndarray) -> relax.Call:
    return op.matmul(step.x, constant(weights, str(weights.dtype)), out_dtype="int32")


_LAYERS = {
    **{
        f"relax.nn.conv{rank}d": _Layer(
            0, 1, lambda call, _: why_not_convolution(call), _convolution
        )
        for rank in (1, 2, 3)
    },
    "relax.matmul": _Layer(-1, -1, _why_not_product, _product),
}
