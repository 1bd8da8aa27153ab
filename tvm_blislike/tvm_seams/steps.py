"""Steps of a loop as functions: halves of halves where they are counted, else recursion.

2k known steps are k steps, twice. So functions call each other no deeper than the logarithm of the
count, and the results of all steps are put together in as many rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import relax

if TYPE_CHECKING:
    from tvm.ir import GlobalVar

NUMBER = relax.TensorType((), "int64")
# Steps of each call of a function that calls itself: their stack is TVM's, and bounded.
_BLOCK = 64


@dataclass(frozen=True)
class Step:
    """A function of one step: (number, *state, *outside) -> (*state, *results of the step).

    `axes` are those along which the results of all steps are put together, `backwards` says which
    of them from the last step to the first.
    """

    function: GlobalVar
    state: Sequence[relax.Expr]
    outside: Sequence[relax.Expr]
    axes: Sequence[int]
    backwards: Sequence[bool]


def counted(builder: relax.BlockBuilder, step: Step, count: int) -> relax.Expr:
    """Return the results of so many steps."""
    if count < 1:
        if step.axes:
            raise ValueError(f"it takes {count} steps and keeps results of each")
        return _results(builder, relax.Tuple(list(step.state)))
    functions = {1: step.function}
    operands = [number_of(0), *step.state, *step.outside]
    return _results(builder, relax.Call(_halves(builder, step, count, functions), operands))


def _halves(
    builder: relax.BlockBuilder, step: Step, count: int, functions: dict[int, GlobalVar]
) -> GlobalVar:
    """Return the function of so many steps, made of two of half as many; all are remembered."""
    if count in functions:
        return functions[count]
    sizes = count - count // 2, count // 2
    first, second = (_halves(builder, step, size, functions) for size in sizes)
    number = relax.Var("number", NUMBER)
    state, outside = like(step.state), like(step.outside)
    with builder.function(f"steps_{count}", params=[number, *state, *outside], private=True):
        with builder.dataflow():
            one = builder.emit(relax.Call(first, [number, *state, *outside]))
            reached = [builder.emit(relax.TupleGetItem(one, i)) for i in range(len(state))]
            later = builder.emit(relax.op.add(number, number_of(sizes[0])))
            two = builder.emit(relax.Call(second, [later, *reached, *outside]))
            ends = [relax.TupleGetItem(two, i) for i in range(len(state))]
            joined = [
                _joined(one, two, len(state) + place, axis, backwards)
                for place, (axis, backwards) in enumerate(
                    zip(step.axes, step.backwards, strict=True)
                )
            ]
            result = builder.emit_output(relax.Tuple([*ends, *joined]))
        functions[count] = builder.emit_func_output(result)
    return functions[count]


def _joined(one: relax.Expr, two: relax.Expr, place: int, axis: int, backwards: bool) -> relax.Expr:
    parts = [relax.TupleGetItem(part, place) for part in ((two, one) if backwards else (one, two))]
    return relax.op.concat(parts, axis)


def recursive(
    builder: relax.BlockBuilder,
    step: GlobalVar,
    most: relax.Expr | None,
    state: Sequence[relax.Expr],
    outside: Sequence[relax.Expr],
) -> relax.Expr:
    """Return the state when its first says that the loop ends, or after the most steps."""
    limits = [] if most is None else [builder.emit(relax.op.reshape(most, ()))]
    guarded = _guarded(builder, step, state, limits, outside)
    several = Step(guarded, state, [*limits, *outside], [], [])
    block = _halves(builder, several, _BLOCK, {1: guarded})
    number, params, others = relax.Var("number", NUMBER), like(state), like(several.outside)
    function_params = [number, *params, *others]
    returned = relax.TupleType([param.ty for param in params])
    # It calls itself: an empty function of its type stands for it while it is made.
    empty = relax.Function.create_empty(function_params, returned, is_pure=True)
    itself = builder.add_func(empty, "loop")
    with builder.function("loop_body", params=function_params, private=True):
        once = builder.emit(relax.Call(block, function_params))
        reached = [builder.emit(relax.TupleGetItem(once, i)) for i in range(len(params))]
        later = builder.emit(relax.op.add(number, number_of(_BLOCK)))
        again = relax.Call(itself, [later, *reached, *others])
        go = _goes(builder, later, reached[0], others[: len(limits)])
        made = builder.emit_func_output(builder.emit(relax.If(go, again, relax.Tuple(reached))))
    builder.update_func(itself, builder.get()[made])
    found = builder.emit(relax.Call(itself, [number_of(0), *state, *limits, *outside]))
    # The first says whether to go on, and is no result.
    results = [relax.TupleGetItem(found, i) for i in range(1, len(params))]
    return _results(builder, relax.Tuple(results))


def _guarded(
    builder: relax.BlockBuilder,
    step: GlobalVar,
    state: Sequence[relax.Expr],
    limits: Sequence[relax.Expr],
    outside: Sequence[relax.Expr],
) -> GlobalVar:
    """Return the function of one step that leaves the state as it is where the loop has ended."""
    number, params = relax.Var("number", NUMBER), like(state)
    limit, others = like(limits), like(outside)
    function_params = [number, *params, *limit, *others]
    with builder.function("guarded_step", params=function_params, private=True):
        go = _goes(builder, number, params[0], limit)
        once = relax.Call(step, [number, *params, *others])
        choice = builder.emit(relax.If(go, once, relax.Tuple(params)))
        return builder.emit_func_output(choice)


def _goes(
    builder: relax.BlockBuilder, number: relax.Expr, go: relax.Expr, limit: Sequence[relax.Expr]
) -> relax.Expr:
    if limit:
        go = relax.op.logical_and(go, relax.op.less(number, limit[0]))
    return builder.emit(go)


def _results(builder: relax.BlockBuilder, made: relax.Expr) -> relax.Expr:
    """Return what the importer takes for the results of a node: one as such, not in a tuple."""
    found = builder.emit(made)
    single = len(found.ty.fields) == 1
    return builder.emit(relax.TupleGetItem(found, 0)) if single else found


def like(values: Sequence[relax.Expr]) -> list[relax.Var]:
    """Return parameters of the types of these."""
    return [relax.Var(f"value_{place}", value.ty) for place, value in enumerate(values)]


def number_of(value: int) -> relax.Expr:
    """Return the number of a step as a constant."""
    return relax.const(value, "int64")
