"""Where the elements of an expression lie: behind transposes, splits and the like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from tvm_blislike.model.views import View
from tvm_blislike.tvm_seams import (
    constant_array,
    dtype_name,
    is_constant,
    op_name,
    permuted_axes,
    static_shape,
)

Step = Callable[[relax.Call, View], View | None]


@dataclass(frozen=True)
class Source:
    """A tensor, and how an expression reads it.

    Parameters
    ----------
    tensor : relax.Expr
        A variable or constant.
    view : View
        The expression's elements.
    factor : float
        That the elements are multiplied by.
    """

    tensor: relax.Expr
    view: View
    factor: float = 1.0


class Sources:
    """What the variables of a block are views of."""

    def __init__(self, block: relax.BindingBlock) -> None:
        found = (b for b in block.bindings if isinstance(b, relax.VarBinding))
        self.values = {binding.var: binding.value for binding in found}

    def value(self, expr: relax.Expr) -> relax.Expr:
        """Return what a variable is bound to, any other expression as it is."""
        while isinstance(expr, relax.Var) and expr in self.values:
            expr = self.values[expr]
        return expr

    def of(self, expr: relax.Expr, scaled: bool = False) -> Source:
        """Return where an expression of known shape lies; `scaled`: behind factors, too."""
        call = self.value(expr)
        found = self._through(call)
        if found is not None:
            argument, step = found
            source = self.of(argument, scaled)
            view = step(source.view)
            if view is not None:
                return replace(source, view=view)
        product = scaled_of(call) if scaled else None
        if product is not None:
            source = self.of(product[0], scaled)
            return replace(source, factor=source.factor * product[1])
        return Source(expr, View.of(static_shape(expr)))

    def _through(self, call: relax.Expr) -> tuple[relax.Expr, Callable[[View], View | None]] | None:
        """Return the operand of an operator that moves nothing, and what becomes of its view."""
        if isinstance(call, relax.TupleGetItem):
            return self._part(call)
        step = _STEPS.get(op_name(call))
        if step is None or static_shape(call) is None or static_shape(call.args[0]) is None:
            return None
        return call.args[0], lambda view: step(call, view)

    def _part(
        self, item: relax.TupleGetItem
    ) -> tuple[relax.Expr, Callable[[View], View | None]] | None:
        split = self.value(item.tuple_value)
        if op_name(split) != "relax.split" or static_shape(split.args[0]) is None:
            return None
        axis = int(split.attrs.axis) % len(static_shape(split.args[0]))
        sizes = [tuple(int(n) for n in field.shape) for field in split.ty.fields]
        begin = sum(size[axis] for size in sizes[: item.index])
        return split.args[0], lambda view: view.sliced(axis, begin, sizes[item.index][axis])


def scaled_of(call: relax.Expr) -> tuple[relax.Expr, float] | None:
    """Return the operand and the factor of a product with a number, or a quotient by one."""
    name = op_name(call)
    if name not in ("relax.multiply", "relax.divide") or dtype_name(call) != "float32":
        return None
    left, right = call.args
    pairs = ((left, right), (right, left)) if name == "relax.multiply" else ((left, right),)
    for data, other in pairs:
        number = number_of(other)
        if number is not None and static_shape(data) == static_shape(call):
            if name == "relax.multiply":
                return data, number
            return (data, 1 / number) if number else None
    return None


def number_of(expr: relax.Expr) -> float | None:
    """Return the value of a constant of equal elements, None of anything else."""
    if not is_constant(expr):
        return None
    array = constant_array(expr)
    if array.size == 0 or array.dtype.kind not in "fiub" or array.size > 1:
        return None
    return float(array.reshape(-1)[0])


def _permuted(call: relax.Call, view: View) -> View:
    return view.permuted(permuted_axes(call))


def _reshaped(call: relax.Call, view: View) -> View | None:
    return view.reshaped(static_shape(call))


def _broadcast(call: relax.Call, view: View) -> View:
    return view.broadcast(static_shape(call))


def _repeated(call: relax.Call, view: View) -> View | None:
    axis = call.attrs.axis
    return None if axis is None else view.repeated(int(axis), int(call.attrs.repeats))


def _sliced(call: relax.Call, view: View) -> View | None:
    """Return the view of a slice whose bounds are known."""
    axes, begins, _ends, *steps = (_numbers(arg) for arg in call.args[1:])
    if axes is None or begins is None or None in steps:
        return None
    result: View | None = view
    for place, (axis, begin) in enumerate(zip(axes, begins, strict=True)):
        axis %= len(view.axes)
        step = steps[0][place] if steps else 1
        size, length = static_shape(call)[axis], view.shape[axis]
        if step < 1 or result is None:
            return None
        first = max(0, min(length, begin + length if begin < 0 else begin))
        result = result.sliced(axis, first, size, step)
    return result


def _taken(call: relax.Call, view: View) -> View | None:
    """Return the view of one index of an axis."""
    _, index = call.args
    number, axis = number_of(index), call.attrs.axis
    if number is None or axis is None:
        return None
    axis = int(axis) % len(view.axes)
    length = view.shape[axis]
    if not -length <= number < length:
        return None
    found = view.sliced(axis, int(number) % length, 1)
    return None if found is None else found.reshaped(static_shape(call))


def _numbers(arg: relax.Expr) -> list[int] | None:
    """Return a tuple of known integers, in any of the forms in which operators have them."""
    fields: Any = getattr(arg, "values", None) or getattr(arg, "fields", None)
    try:
        return None if fields is None else [int(getattr(f, "value", f)) for f in fields]
    except (TypeError, ValueError):
        return None


def is_copy(call: relax.Expr) -> bool:
    """Whether a call converts to the type that its operand has, as exporters write it."""
    return op_name(call) == "relax.astype" and dtype_name(call) == dtype_name(call.args[0])


def _converted(call: relax.Call, view: View) -> View | None:
    return view if is_copy(call) else None


_STEPS: dict[str, Step] = {
    "relax.astype": _converted,
    "relax.permute_dims": _permuted,
    "relax.reshape": _reshaped,
    "relax.expand_dims": _reshaped,
    "relax.squeeze": _reshaped,
    "relax.broadcast_to": _broadcast,
    "relax.repeat": _repeated,
    "relax.strided_slice": _sliced,
    "relax.take": _taken,
}
