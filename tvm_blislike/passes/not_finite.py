"""Operators that TVM would lower to something else for what is no finite number.

    max, min          start at -inf and inf instead of the largest finite numbers
    argmax, argmin    of infinities alone are the first of them instead of -1; NaN is passed over
    sign              of NaN is NaN

`schedules.not_a_number` looks after the maxima and minima of two.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from tvm_blislike.tvm_seams import dtype_name, static_shape

NAMES = tuple(f"relax.{name}" for name in ("max", "min", "argmax", "argmin", "sign"))
_FLOATS = ("float16", "float32", "float64")
# No index: larger than any.
_NOWHERE = 2**31 - 1


def lower_not_finite(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Return the TE definition of one of `NAMES` on floats, None for any other call."""
    data, name = call.args[0], call.op.name.removeprefix("relax.")
    shape = static_shape(data)
    if dtype_name(data) not in _FLOATS or shape is None or 0 in shape:
        return None
    if name == "sign":
        return builder.call_te(_sign, data, primfunc_name_hint=name)
    axis, keeps = call.attrs.axis, bool(call.attrs.keepdims)
    if name in ("max", "min"):
        axes = range(len(shape)) if axis is None else {int(a) % len(shape) for a in axis}
        arguments = (sorted(axes), keeps, name == "max")
        return builder.call_te(_extremum, data, *arguments, primfunc_name_hint=name)
    if axis is None:
        return None
    arguments = (int(axis) % len(shape), keeps, name == "argmax", dtype_name(call))
    return builder.call_te(_place_of_extremum, data, *arguments, primfunc_name_hint=name)


def _sign(x: te.Tensor) -> te.Tensor:
    def value(*at: Any) -> Any:
        zero, one = (tirx.const(number, x.dtype) for number in (0, 1))
        # Zeros and NaN are their own sign.
        return tirx.Select(x(*at) > zero, one, tirx.Select(x(*at) < zero, -one, x(*at)))

    return te.compute(x.shape, value, name="sign")


def _extremum(x: te.Tensor, axes: list[int], keeps: bool, largest: bool) -> te.Tensor:
    operator = tirx.Max if largest else tirx.Min
    start = float("-inf") if largest else float("inf")
    reduce = te.comm_reducer(lambda a, b: operator(a, b), lambda dtype: tirx.const(start, dtype))
    steps = {axis: te.reduce_axis((0, x.shape[axis]), f"k{axis}") for axis in axes}

    def value(*at: Any) -> Any:
        return reduce(x(*_inside(at, steps, len(x.shape), keeps)), axis=list(steps.values()))

    return te.compute(_shape(x, axes, keeps), value, name="max" if largest else "min")


def _place_of_extremum(
    x: te.Tensor, axis: int, keeps: bool, largest: bool, dtype: str
) -> te.Tensor:
    def better(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
        beyond = b[1] > a[1] if largest else b[1] < a[1]
        wins = tirx.any(beyond, tirx.all(b[1] == a[1], b[0] < a[0]))
        return tirx.Select(wins, b[0], a[0]), tirx.Select(wins, b[1], a[1])

    def start(place: str, number: str) -> tuple[Any, Any]:
        worst = float("-inf") if largest else float("inf")
        return tirx.const(_NOWHERE, place), tirx.const(worst, number)

    reduce = te.comm_reducer(better, start)
    step = te.reduce_axis((0, x.shape[axis]), "k")
    shape = _shape(x, [axis], keeps)

    def found(*at: Any) -> Any:
        element = x(*_inside(at, {axis: step}, len(x.shape), keeps))
        return reduce((step.var.astype(dtype), element), axis=step)

    places, _ = te.compute(shape, found, name="found")
    return te.compute(
        shape,
        # Nothing but NaN: any place will do that exists.
        lambda *at: tirx.Select(
            places(*at) == tirx.const(_NOWHERE, dtype), tirx.const(0, dtype), places(*at)
        ),
        name="argmax" if largest else "argmin",
    )


def _shape(x: te.Tensor, axes: list[int], keeps: bool) -> list[Any]:
    sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    return sizes if keeps else [s for axis, s in enumerate(sizes) if axis not in axes]


def _inside(
    at: tuple[Any, ...], steps: dict[int, tirx.IterVar], rank: int, keeps: bool
) -> list[Any]:
    """Return where an element of the input lies, given an output and the steps of the reduction."""
    rest = iter(index for axis, index in enumerate(at) if not keeps or axis not in steps)
    return [steps[axis].var if axis in steps else next(rest) for axis in range(rank)]
