"""Floats that are a function of one 8-bit tensor: quantized again, they are a table of 256.

Whatever lies between a DequantizeLinear and a QuantizeLinear, and further quantizations on the way
(x * sigmoid(x), each quantized), is followed value by value (`functions`). The table is what the
float simulation has at all 256 values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tvm import relax

from tvm_blislike.passes.lookups import looked_up
from tvm_blislike.passes.quantized.functions import values_of
from tvm_blislike.passes.quantized.real import Real
from tvm_blislike.passes.quantized.steps import Steps, Stored, values_in
from tvm_blislike.tvm_seams import (
    constant_array,
    dtype_name,
    is_constant,
    static_shape,
)

Emit = Callable[[relax.Expr], relax.Var]


@dataclass(frozen=True)
class Curve:
    """A function of integers of 8 bits.

    Parameters
    ----------
    root : relax.Var
        The integers in memory.
    values : numpy.ndarray
        (256,): of the least integer first.
    """

    root: relax.Var
    values: np.ndarray


class Curves:
    """The curves of a dataflow block."""

    def __init__(self) -> None:
        self._floats: dict[relax.Var, Curve] = {}
        self._integers: dict[relax.Var, Curve] = {}

    def follow(self, var: relax.Var, call: relax.Call, found: Mapping[relax.Var, object]) -> None:
        """Note a result of the model, if it is a curve.

        Parameters
        ----------
        var, call : relax.Var, relax.Call
            The result, and what computes it.
        found : mapping
            What is known of its operands.
        """
        tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
        operands = [self._operand(arg, found) for arg in tensors]
        curves = [operand for operand in operands if isinstance(operand, Curve)]
        if not curves or any(operand is None for operand in operands):
            return
        root = curves[0].root
        alike = all(curve.root.same_as(root) for curve in curves)
        if not alike or static_shape(call) != static_shape(root):
            return
        values = values_of(call, [getattr(operand, "values", operand) for operand in operands])
        if values is not None:
            self._floats[var] = Curve(root, np.broadcast_to(values, curves[0].values.shape))

    def stored(
        self, emit: Emit, value: relax.Expr, real: object, steps: Steps, dtype: str
    ) -> Stored | None:
        """Return a quantized curve, None where there is none, or arithmetic on it is as good.

        Parameters
        ----------
        emit : callable
            Emits a call.
        value : relax.Expr
            The floats of the model.
        real : object
            What they are in terms of integers.
        steps, dtype : Steps, str
            Of the result in memory; type of the model's integers.
        """
        curve = self._floats.get(value) if isinstance(value, relax.Var) else None
        if curve is None or np.isnan(curve.values).any():
            return None
        if isinstance(real, Real) and len(real.terms) == 1 and real.terms[0].x.same_as(curve.root):
            return None
        results = steps.of(curve.values)
        var = emit(looked_up(curve.root, results))
        self._integers[var] = Curve(curve.root, results)
        return Stored(var, dtype)

    def _operand(
        self, arg: relax.Expr, found: Mapping[relax.Var, object]
    ) -> Curve | np.ndarray | None:
        if is_constant(arg):
            array = constant_array(arg)
            return array.reshape(()) if array.size == 1 else None
        if arg in self._floats:
            return self._floats[arg]
        real = found.get(arg)
        step = real.steps if isinstance(real, Real) else None
        if step is None:
            return None
        steps = Steps(np.float32(step.scale.item()), int(step.zero.item()), dtype_name(step.x))
        known = self._integers.get(step.x) or Curve(step.x, _all_of(steps.memory))
        return Curve(known.root, steps.floats(known.values))


def _all_of(memory: str) -> np.ndarray:
    """Return the integers of 8 bits that a type of activations in memory may hold."""
    limits = np.iinfo(values_in(memory))
    return np.arange(limits.min, limits.max + 1)
