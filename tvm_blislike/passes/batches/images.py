"""The images of a batch in a function: how far they stay apart, and the function of fewer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from tvm_blislike.hardware import dtype_bits
from tvm_blislike.passes.batches.axes import (
    RESHAPES,
    ImagesMeet,
    Operand,
    axis_of_constant,
    axis_of_result,
    one_piece,
    shape_with,
)
from tvm_blislike.tvm_seams import (
    constant,
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    static_shape,
)

Values = dict[relax.Var, relax.Expr]


@dataclass(frozen=True)
class Apart:
    """How far the images of a batch stay apart in a function.

    Parameters
    ----------
    images : int
        How many there are.
    params : tuple of relax.Var
        Of the function.
    bindings : tuple of relax.VarBinding
        What the function computes, in order.
    axes : dict
        Where the images are in each tensor, None where it has none; as far as `reach` goes.
    reach : int
        Bindings from the first one on that keep them apart.
    why_not : str
        Why the next one does not; "" where all do.
    """

    images: int
    params: tuple[relax.Var, ...]
    bindings: tuple[relax.VarBinding, ...]
    axes: dict[relax.Var, int | None]
    reach: int
    why_not: str


def apart(func: relax.Function, images: int, inputs: Mapping[relax.Var, int]) -> Apart:
    """Find out how far images stay apart.

    Parameters
    ----------
    func : relax.Function
        Of one dataflow block; of any other nothing is known.
    images : int
        At least 2.
    inputs : mapping of relax.Var to int
        Parameters that hold images, and along which axis.
    """
    axes: dict[relax.Var, int | None] = {param: inputs.get(param) for param in func.params}
    params = tuple(func.params)
    blocks = func.body.blocks if isinstance(func.body, relax.SeqExpr) else []
    if len(blocks) != 1 or not isinstance(blocks[0], relax.DataflowBlock):
        return Apart(images, params, (), axes, 0, "the model has branches or loops")
    bindings = tuple(blocks[0].bindings)
    for place, binding in enumerate(bindings):
        try:
            axes[binding.var] = _axis(binding, axes, images)
        except ImagesMeet as error:
            return Apart(images, params, bindings, axes, place, str(error))
    return Apart(images, params, bindings, axes, len(bindings), "")


def _axis(binding: relax.Binding, axes: Mapping[relax.Var, int | None], images: int) -> int | None:
    value = binding.value
    if not isinstance(binding, relax.VarBinding):
        raise ImagesMeet("sizes are known at run time only")
    if isinstance(value, relax.Tuple):
        found = {axes.get(field) for field in value.fields}
        if len(found) > 1:
            raise ImagesMeet("several results have them along different axes")
        return found.pop() if found else None
    if isinstance(value, relax.TupleGetItem):
        axis = axes[value.tuple_value] if isinstance(value.tuple_value, relax.Var) else None
        if value.index and axis is not None and static_shape(value) is None:
            raise ImagesMeet("a result is no tensor")
        return axis
    if isinstance(value, relax.Var):
        return axes[value]
    if not isinstance(value, relax.Call):
        return None
    if not isinstance(value.op, tvm.ir.Op) or op_name(value) == "relax.call_tir":
        raise ImagesMeet("a kernel of its own is not known to keep them apart")
    return axis_of_result(value, [_operand(arg, axes) for arg in tensors_of(value)], images)


def tensors_of(call: relax.Call) -> list[relax.Expr]:
    """Return the tensors that a call reads, those in tuples too."""
    found: list[relax.Expr] = []
    for arg in call.args:
        fields = arg.fields if isinstance(arg, relax.Tuple) else [arg]
        found += [field for field in fields if isinstance(field.ty, relax.TensorType)]
    return found


def _operand(expr: relax.Expr, axes: Mapping[relax.Var, int | None]) -> Operand:
    shape = static_shape(expr)
    if shape is None:
        raise ImagesMeet("sizes are known at run time only")
    if not isinstance(expr, relax.Var) and not is_constant(expr):
        raise ImagesMeet("an operand is neither a tensor nor a constant")
    return Operand(expr, shape, axes[expr] if isinstance(expr, relax.Var) else None)


def parameters(batch: Apart, some: int) -> list[relax.Var]:
    """Return parameters like those of the function, of fewer images."""
    shapes = [shape_of(param, batch, some) for param in batch.params]
    return [
        relax.Var(param.name, relax.TensorType(shape, dtype_name(param)))
        for param, shape in zip(batch.params, shapes, strict=True)
    ]


def shape_of(var: relax.Expr, batch: Apart, some: int) -> list[int]:
    """Return the shape of a variable of the function for some of its images."""
    return shape_with(static_shape(var), batch.axes.get(var), batch.images, some)


def tensor_bytes(expr: relax.Expr) -> int:
    """Return the bytes of a tensor, 0 where its sizes are not known."""
    shape = static_shape(expr)
    return 0 if shape is None else math.prod(shape) * dtype_bits(dtype_name(expr)) // 8


def emit_fewer(
    builder: relax.BlockBuilder,
    batch: Apart,
    bindings: Sequence[relax.VarBinding],
    values: Values,
    some: int,
) -> None:
    """Emit bindings for fewer images; what they compute joins `values`.

    Parameters
    ----------
    builder : relax.BlockBuilder
        In a dataflow block.
    batch : Apart
        Reaches beyond the bindings.
    values : dict
        What the variables that they read are.
    some : int
        Images.
    """
    for binding in bindings:
        fewer = _fewer(binding, batch, values, some)
        if not isinstance(binding.var, relax.DataflowVar):
            fewer = builder.emit_output(fewer)
        values[binding.var] = fewer if isinstance(fewer, relax.Var) else builder.emit(fewer)


def substituted(value: relax.Expr, values: Values) -> relax.Expr:
    """Return an operator, a tuple or one of its fields with variables replaced."""
    if isinstance(value, relax.Var):
        return values.get(value, value)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([substituted(field, values) for field in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(substituted(value.tuple_value, values), value.index)
    if isinstance(value, relax.Call):
        args = [substituted(arg, values) for arg in value.args]
        return relax.Call(value.op, args, value.attrs, value.ty_args)
    return value


def _fewer(binding: relax.VarBinding, batch: Apart, values: Values, some: int) -> relax.Expr:
    value = binding.value
    # Behind `reach` all images are computed, as they were.
    axis = batch.axes.get(binding.var)
    if axis is None or not isinstance(value, relax.Call):
        return substituted(value, values)
    name = op_name(value)
    if name in RESHAPES or name == "relax.broadcast_to":
        # With one image left, a squeeze without axes would take its axis along.
        shape = shape_with(static_shape(value), axis, batch.images, some)
        operator = relax.op.broadcast_to if name == "relax.broadcast_to" else relax.op.reshape
        return operator(substituted(value.args[0], values), shape)
    args = [_argument(arg, value, axis, batch, values, some) for arg in value.args]
    return relax.Call(value.op, args, value.attrs, value.ty_args)


def _argument(
    arg: relax.Expr, call: relax.Call, axis: int, batch: Apart, values: Values, some: int
) -> relax.Expr:
    if isinstance(arg, relax.Tuple):
        fields = [_argument(field, call, axis, batch, values, some) for field in arg.fields]
        return relax.Tuple(fields)
    at = axis_of_constant(call, arg, axis) if is_constant(arg) else None
    if at is None:
        return substituted(arg, values)
    piece = one_piece(constant_array(arg), at, batch.images)
    return constant(np.concatenate([piece] * some, at), dtype_name(arg))
