"""Operators that move values about, or take the largest: the same on integers as on what they mean.

They keep scale and zero point. Behind a quantization they commute with it, too, so that a tensor
that is moved and then quantized is quantized first (`wanted`): its parts, where they are joined.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from tvm_blislike.passes.quantized.real import Known, Real
from tvm_blislike.passes.quantized.steps import QUANTIZE, Steps, Stored, steps_of
from tvm_blislike.tvm_seams import bindings, dtype_name, op_name, static_shape, use_counts

_OF_ONE = frozenset(
    f"relax.{name}"
    for name in (
        "reshape permute_dims squeeze expand_dims flatten strided_slice broadcast_to tile repeat "
        "flip nn.max_pool1d nn.max_pool2d nn.max_pool3d"
    ).split()
)


def is_move(call: relax.Expr) -> bool:
    """Whether a call moves values about."""
    name = op_name(call) if isinstance(call, relax.Call) else ""
    return name in _OF_ONE or name == "relax.concat" or _pads(call) or _picks(call)


def sources(call: relax.Call) -> list[relax.Expr]:
    """Return what a move moves."""
    if op_name(call) == "relax.concat":
        return list(call.args[0].fields) if isinstance(call.args[0], relax.Tuple) else []
    return [call.args[0]]


def moved(call: relax.Call, parts: list[relax.Expr], zero: int) -> relax.Expr:
    """Return a move of stored integers, where `zero` stands for 0."""
    if op_name(call) == "relax.concat":
        return op.concat(parts, call.attrs.axis)
    if _pads(call):
        widths = [int(w) for w in call.attrs.pad_width]
        return op.nn.pad(parts[0], widths, str(call.attrs.pad_mode), float(zero))
    return relax.Call(call.op, [parts[0], *call.args[1:]], call.attrs)


def moved_integers(call: relax.Call, operands: list[Stored]) -> tuple[relax.Expr, str]:
    """Return a move of the model's own integers, whatever they mean, and their type."""
    (dtype,) = {operand.dtype for operand in operands}
    return moved(call, [operand.var for operand in operands], operands[0].shift), dtype


def common_steps(operands: list[Real]) -> Steps | None:
    """Return the steps in which all operands are stored already."""
    term = operands[0].steps
    if term is None:
        return None
    steps = Steps(np.float32(term.scale.item()), int(term.zero.item()), dtype_name(term.x))
    return steps if all(map(steps.are_of, operands)) else None


def moved_constant(call: relax.Call, known: Known) -> Known | None:
    """Return a move of quantized constants, None where it must be one of floats."""
    if op_name(call) == "relax.permute_dims":
        axes = call.attrs.axes
        return known.permuted(None if axes is None else tuple(int(axis) for axis in axes))
    if op_name(call) in ("relax.reshape", "relax.squeeze", "relax.expand_dims", "relax.flatten"):
        return known.reshaped(static_shape(call))
    return None


def wanted(func: relax.Function, memory: str) -> dict[relax.Var, Steps]:
    """Return results of moves that are read by one quantization only, with its steps.

    Parameters
    ----------
    func : relax.Function
        Of the model.
    memory : str
        Type of activations in memory.
    """
    uses, values = use_counts(func), {b.var: b.value for b in bindings(func)}
    found: dict[relax.Var, Steps] = {}
    for var, value in reversed(values.items()):
        if op_name(value) == QUANTIZE:
            steps, read = steps_of(value, memory), [value.args[0]]
        elif var in found:
            steps, read = found[var], sources(value)
        else:
            continue
        for source in read if steps else ():
            if uses.get(source) == 1 and is_move(values.get(source)):
                found[source] = steps
    return found


def _pads(call: relax.Expr) -> bool:
    """Whether a call pads with what is there, or with zeros."""
    if op_name(call) != "relax.nn.pad":
        return False
    return str(call.attrs.pad_mode) != "constant" or float(call.attrs.pad_value) == 0


def _picks(call: relax.Expr) -> bool:
    """Whether a call resizes by picking pixels."""
    return op_name(call) == "relax.image.resize2d" and call.attrs.method == "nearest_neighbor"
