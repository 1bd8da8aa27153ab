"""Normalizations of channels and of groups of them, in operators that any layout has.

Importers write instance normalization as mean, variance and quotient of a tensor, group
normalization as one operator or, as torch does, as instance normalization of a tensor whose groups
are rows. Rows of groups are no image: an image in blocks of channels would be moved into NCHW and
back for each of them.

Moments of channels need no other axis than those of the image. Those of a group follow from its
channels', which are of equally many elements (T. F. Chan, G. H. Golub, R. J. LeVeque, "Algorithms
for Computing the Sample Variance", 1983, equation 2.1):

    mean = mean of means        variance = mean of (variance + (mean of channel - mean)^2)

Only vectors of a number for each channel are regrouped, whose elements lie alike in every layout.
Numbers are divided by a deviation once for a channel: products by its reciprocal differ from
quotients by the last bit.

In a quantized model steps of 8 bits lie before, between and behind all of these: one scale for all
elements means the same in rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_blislike.passes.quantized.steps import (
    DEQUANTIZE,
    QUANTIZE,
    dequantized_constant,
    parameters,
)
from tvm_blislike.tvm_seams import (
    bindings,
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

GROUP_NORM = "relax.nn.group_norm"
VARIANCE = "relax.variance"
_AFFINE = {"relax.multiply": op.multiply, "relax.add": op.add}
_NEUTRAL = {"relax.multiply": 1, "relax.add": 0}
_Values = dict[relax.Var, relax.Expr]


@dataclass(frozen=True)
class _Affine:
    """A product with, or a sum of, one number for all or for each group.

    Parameters
    ----------
    name : str
        Of the operator.
    numbers : ndarray
        Of one element, or of one for each group or channel.
    """

    name: str
    numbers: np.ndarray


@dataclass(frozen=True)
class _Normalized:
    """Elements of a tensor by mean and deviation of their channel or group.

    Parameters
    ----------
    data : relax.Expr
        (n, c, ...), of sizes that are known.
    groups : int
        Divides c; c itself for channels.
    epsilon : float
        Added to variances.
    before : tuple of relax.Call
        Quantizations of the data by one scale, in order.
    behind : tuple of _Affine or relax.Call
        What becomes of the result, in order.
    """

    data: relax.Expr
    groups: int
    epsilon: float
    before: tuple[relax.Call, ...] = ()
    behind: tuple[_Affine | relax.Call, ...] = ()


@mutator
class Normalizations(PyExprMutator):
    """Rewrite normalizations of channels and groups, wherever importers leave them."""

    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        super().__init__(mod)
        self.values: _Values = {b.var: b.value for b in bindings(func)}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Emit a normalization's steps in the place of the last one of the importer's."""
        found = _normalized(binding.value, self.values)
        if found is None:
            super().visit_var_binding_(binding)
            return
        result = self._emitted(found)
        inner = isinstance(binding.var, relax.DataflowVar)
        # A variable that is read outside its dataflow block must stay one.
        leaves_block = self.builder_.current_block_is_dataflow() and not inner
        emit = self.builder_.emit_output if leaves_block else self.builder_.emit
        self.set_var_remap(binding.var, emit(result))

    def _emitted(self, found: _Normalized) -> relax.Expr:
        emit, data = self.builder_.emit, self.visit_expr(found.data)
        for step in found.before:
            data = emit(_of(step, data))
        shape = static_shape(found.data)
        axes = list(range(2, len(shape)))
        mean, variance = (emit(of(data, axes, keepdims=True)) for of in (op.mean, op.variance))
        is_of_groups = found.groups < shape[1]
        if is_of_groups:
            mean, variance = self._of_groups(mean, variance, found.groups)
        epsilon = constant(np.float32(found.epsilon), dtype_name(found.data))
        factor = emit(op.rsqrt(emit(op.add(variance, epsilon))))
        if is_of_groups:
            mean, factor = (self._of_channels(each, shape) for each in (mean, factor))
        result: relax.Expr = op.multiply(emit(op.subtract(data, mean)), factor)
        for step in found.behind:
            if isinstance(step, relax.Call):
                result = _of(step, emit(result))
            elif not np.all(step.numbers == _NEUTRAL[step.name]):
                each = constant(_per_channel(step.numbers, shape), dtype_name(found.data))
                result = _AFFINE[step.name](emit(result), each)
        return result

    def _of_groups(
        self, mean: relax.Expr, variance: relax.Expr, groups: int
    ) -> tuple[relax.Expr, relax.Expr]:
        """Return the moments of groups, (n, groups, 1), from those of channels."""
        emit, shape = self.builder_.emit, static_shape(mean)
        rows = (shape[0], groups, shape[1] // groups)
        means, variances = (emit(op.reshape(each, rows)) for each in (mean, variance))
        whole = emit(op.mean(means, 2, keepdims=True))
        off = emit(op.subtract(means, whole))
        spread = emit(op.add(variances, emit(op.multiply(off, off))))
        return whole, emit(op.mean(spread, 2, keepdims=True))

    def _of_channels(self, of_groups: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        """Return a number of each group for each of its channels."""
        emit, (n, groups, _) = self.builder_.emit, static_shape(of_groups)
        rows = emit(op.broadcast_to(of_groups, (n, groups, shape[1] // groups)))
        return emit(op.reshape(rows, (n, shape[1], *(1 for _ in shape[2:]))))


def _normalized(value: relax.Expr, values: _Values) -> _Normalized | None:
    """Return what a value normalizes; None where it is something else."""
    if static_shape(value) is None:
        return None
    read: dict[str, Callable[[relax.Call, _Values], _Normalized | None]] = {
        GROUP_NORM: _of_operator,
        "relax.reshape": _of_rows,
        "relax.divide": _of_channels,
    }
    reader = read.get(op_name(value))
    found = None if reader is None else reader(value, values)
    return found if found is not None and len(static_shape(found.data) or ()) > 2 else None


def _of_operator(call: relax.Call, _values: _Values) -> _Normalized | None:
    """In 16 bits TVM's function adds up in 32, where mean and variance do not."""
    data, gamma, beta = call.args
    if dtype_name(data) != "float32":
        return None
    attrs, shape = call.attrs, static_shape(data)
    axes = sorted(int(axis) % len(shape) for axis in attrs.axes)
    if int(attrs.channel_axis) % len(shape) != 1 or axes != list(range(2, len(shape))):
        return None
    given = [("relax.multiply", gamma)] if attrs.scale else []
    given += [("relax.add", beta)] if attrs.center else []
    if not all(is_constant(numbers) for _, numbers in given):
        return None
    behind = tuple(_Affine(name, constant_array(numbers)) for name, numbers in given)
    return _Normalized(data, int(attrs.num_groups), float(attrs.epsilon), behind=behind)


def _of_rows(call: relax.Call, values: _Values) -> _Normalized | None:
    """Groups as channels of one axis: reshaped, normalized, scaled and shifted, reshaped back."""
    behind, inside = _steps(call.args[0], values)
    rows = _of_channels(inside, values) if op_name(inside) == "relax.divide" else None
    if rows is None:
        return None
    before, inside = _steps(rows.data, values)
    shape = static_shape(rows.data)
    if op_name(inside) != "relax.reshape" or len(shape) != 3:
        return None
    if not all(isinstance(step, relax.Call) for step in before):
        return None
    data = inside.args[0]
    if static_shape(data) != static_shape(call):
        return None
    affine = [step for step in behind if isinstance(step, _Affine)]
    usable = all(step.numbers.size in (1, shape[1]) for step in affine)
    batch, channels, *_ = static_shape(data)
    if not usable or batch != shape[0] or channels % shape[1]:
        return None
    return _Normalized(data, shape[1], rows.epsilon, tuple(before), tuple(behind))


def _steps(
    value: relax.Expr, values: _Values
) -> tuple[list[_Affine | relax.Call], relax.Expr | None]:
    """Return what makes a value of each element of rows, in order, and what makes those rows."""
    steps: list[_Affine | relax.Call] = []
    inside = values.get(value)
    while (step := _step(inside, values)) is not None:
        steps.insert(0, step)
        inside = values.get(inside.args[0])
    return steps, inside


def _step(call: relax.Expr | None, values: _Values) -> _Affine | relax.Call | None:
    """Return what a call does to each element of rows by numbers that are known."""
    if _is_of_one_scale(call):
        return call
    numbers = _numbers(call.args[1], values) if op_name(call) in _AFFINE else None
    return None if numbers is None else _Affine(op_name(call), numbers)


def _numbers(value: relax.Expr, values: _Values) -> np.ndarray | None:
    """Return a constant, which quantizers write as steps of several bits, in any shape."""
    if is_constant(value):
        return constant_array(value)
    call = values.get(value)
    if op_name(call) == "relax.reshape":
        return _numbers(call.args[0], values)
    steps = dequantized_constant(call, call.args[0]) if op_name(call) == DEQUANTIZE else None
    return None if steps is None else steps.values


def _is_of_one_scale(call: relax.Expr | None) -> bool:
    """Whether a call quantizes or dequantizes by one known scale for all elements."""
    known = parameters(call) if op_name(call) in (QUANTIZE, DEQUANTIZE) else None
    return known is not None and all(numbers.size == 1 for numbers in known)


def _of(step: relax.Call, data: relax.Expr) -> relax.Call:
    """Return what a quantization does with other data."""
    return relax.Call(step.op, [data, *step.args[1:]], step.attrs)


def _of_channels(call: relax.Call, values: _Values) -> _Normalized | None:
    """(data - mean) / sqrt(variance + epsilon), both along all axes behind the channels'."""
    centered, deviation = (values.get(arg) for arg in call.args)
    if op_name(centered) != "relax.subtract" or op_name(deviation) != "relax.sqrt":
        return None
    data, spread = centered.args[0], values.get(deviation.args[0])
    if op_name(spread) != "relax.add" or not is_constant(spread.args[1]):
        return None
    moments = values.get(centered.args[1]), values.get(spread.args[0])
    epsilon = constant_array(spread.args[1])
    wanted = ("relax.mean", VARIANCE)
    if epsilon.size != 1 or tuple(map(op_name, moments)) != wanted:
        return None
    if not all(_is_of_channels(moment, data) for moment in moments):
        return None
    return _Normalized(data, static_shape(data)[1], float(epsilon.item()))


def _is_of_channels(moment: relax.Call, data: relax.Expr) -> bool:
    """Whether a reduction of this tensor keeps its first two axes, as ones of several numbers."""
    shape = static_shape(data)
    if moment.args[0] is not data and not data.same_as(moment.args[0]):
        return False
    if shape is None or not moment.attrs.keepdims or moment.attrs.axis is None:
        return False
    axes = sorted(int(axis) % len(shape) for axis in moment.attrs.axis)
    return axes == list(range(2, len(shape)))


def _per_channel(numbers: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return one number, or one for each group or channel, as numbers for each channel."""
    if numbers.size == 1:
        return numbers.reshape(())
    each = np.repeat(numbers.reshape(-1), shape[1] // numbers.size)
    return each.reshape(1, -1, *(1 for _ in shape[2:]))
