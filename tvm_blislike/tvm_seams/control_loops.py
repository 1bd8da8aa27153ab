"""Loops of ONNX as Relax functions: halves of halves where the steps are counted, else recursion.

A loop of 2k known steps is one of k steps, twice. So functions call each other no deeper than the
logarithm of the count, and the results of all steps are put together in as many rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import relax

from tvm_blislike.tvm_seams.branches import Nodes, captured, function_of
from tvm_blislike.tvm_seams.relax_ir import constant_array, is_constant, static_shape

if TYPE_CHECKING:
    import onnx
    from tvm.ir import GlobalVar

_NUMBER = relax.TensorType((), "int64")
# Steps of each call of a function that calls itself: their stack is TVM's, and bounded.
_BLOCK = 64


@dataclass(frozen=True)
class _Step:
    """A function of one step: (number, *state, *outside) -> (*state, *results of the step).

    `axes` are those along which the results of all steps are put together, `backwards` says which
    of them from the last step to the first.
    """

    function: GlobalVar
    state: Sequence[relax.Expr]
    outside: Sequence[relax.Expr]
    axes: Sequence[int]
    backwards: Sequence[bool]


def loop(importer: Any, operands: Sequence[Any], settings: Mapping[str, Any]) -> relax.Expr:
    """Convert `Loop` to a call; ONNX, Loop-11 and later.

    Parameters
    ----------
    importer : ONNXGraphImporter
        At work.
    operands : sequence of relax.Expr or None
        The most steps, whether to begin, and the state.
    settings : mapping
        Attributes: `body`.

    Raises
    ------
    ValueError
        State of changing shape, or results of each step where the steps are not counted.
    """
    body, builder = settings["body"], importer.bb
    most, begins, *state = operands
    inner, outside = captured(importer, body)
    names = [value.name for value in body.input]
    params = _like(state)
    scans = len(body.output) - 1 - len(state)
    number, go = relax.Var("number", _NUMBER), relax.Var("go", relax.TensorType((), "bool"))

    def inputs(first: relax.Expr) -> Callable[[], Nodes]:
        return lambda: dict(zip(names, [number, first, *params], strict=True))

    if most is not None and is_constant(most) and _is_true(begins) and _goes_on(body):

        def results(found: list[relax.Expr]) -> relax.Expr:
            kept = [_of_type(value, old) for value, old in zip(found[1:], params, strict=False)]
            raised = [relax.op.expand_dims(value, 0) for value in found[1 + len(params) :]]
            return relax.Tuple([*kept, *raised])

        always = inputs(relax.const(True, "bool"))
        function = function_of(importer, body, "step", [number, *params], inner, always, results)
        step = _Step(function, state, outside, [0] * scans, [False] * scans)
        return _counted(builder, step, int(constant_array(most).item()))
    if scans:
        raise ValueError("it keeps results of each step, and only running it tells how many")

    def state_of(found: list[relax.Expr]) -> relax.Expr:
        olds = [go, *params]
        return relax.Tuple([_of_type(v, old) for v, old in zip(found, olds, strict=True)])

    first = [number, go, *params]
    function = function_of(importer, body, "step", first, inner, inputs(go), state_of)
    begin = relax.const(True, "bool")
    if begins is not None:
        begin = builder.emit(relax.op.reshape(begins, ()))
    return _recursive(builder, function, most, [begin, *state], outside)


def scan(importer: Any, operands: Sequence[Any], settings: Mapping[str, Any]) -> relax.Expr:
    """Convert `Scan` to a call; ONNX, Scan-9 and later. See `loop`."""
    if importer.opset < 9:
        raise ValueError("before opset 9 it is over a batch of sequences")
    body, builder = settings["body"], importer.bb
    count = settings["num_scan_inputs"]
    state, sequences = list(operands[:-count]), [*map(builder.emit, operands[-count:])]
    axes = _axes(settings, "scan_input_axes", [len(static_shape(x)) for x in sequences])
    from_end = settings.get("scan_input_directions") or [0] * count
    steps = static_shape(sequences[0])[axes[0]]
    inner, outside = captured(importer, body)
    number = relax.Var("number", _NUMBER)
    params, given = _like(state), _like(sequences)
    results_of_step = body.output[len(state) :]

    def element(sequence: relax.Expr, axis: int, backwards: int) -> relax.Expr:
        place = relax.op.subtract(_number(steps - 1), number) if backwards else number
        return builder.emit(relax.op.take(sequence, place, axis))

    def inputs() -> Nodes:
        parts = map(element, given, axes, from_end)
        return dict(zip((value.name for value in body.input), [*params, *parts], strict=True))

    def results(found: list[relax.Expr]) -> relax.Expr:
        kept = [_of_type(value, old) for value, old in zip(found, params, strict=False)]
        made = [builder.normalize(value) for value in found[len(params) :]]
        found_axes.extend(_axes(settings, "scan_output_axes", [v.ty.ndim + 1 for v in made]))
        raised = [relax.op.expand_dims(v, a) for v, a in zip(made, found_axes, strict=True)]
        return relax.Tuple([*kept, *raised])

    found_axes: list[int] = []
    all_params = [number, *params, *given]
    function = function_of(importer, body, "step", all_params, inner, inputs, results)
    backwards = settings.get("scan_output_directions") or [0] * len(results_of_step)
    step = _Step(function, state, [*sequences, *outside], found_axes, [*map(bool, backwards)])
    return _counted(builder, step, steps)


def _counted(builder: relax.BlockBuilder, step: _Step, count: int) -> relax.Expr:
    """Return the results of so many steps."""
    if count < 1:
        if step.axes:
            raise ValueError(f"it takes {count} steps and keeps results of each")
        return _results(builder, relax.Tuple(list(step.state)))
    functions = {1: step.function}
    operands = [_number(0), *step.state, *step.outside]
    return _results(builder, relax.Call(_halves(builder, step, count, functions), operands))


def _halves(
    builder: relax.BlockBuilder, step: _Step, count: int, functions: dict[int, GlobalVar]
) -> GlobalVar:
    """Return the function of so many steps, made of two of half as many; all are remembered."""
    if count in functions:
        return functions[count]
    sizes = count - count // 2, count // 2
    first, second = (_halves(builder, step, size, functions) for size in sizes)
    number = relax.Var("number", _NUMBER)
    state, outside = _like(step.state), _like(step.outside)
    with builder.function(f"steps_{count}", params=[number, *state, *outside], private=True):
        with builder.dataflow():
            one = builder.emit(relax.Call(first, [number, *state, *outside]))
            reached = [builder.emit(relax.TupleGetItem(one, i)) for i in range(len(state))]
            later = builder.emit(relax.op.add(number, _number(sizes[0])))
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


def _recursive(
    builder: relax.BlockBuilder,
    step: GlobalVar,
    most: relax.Expr | None,
    state: Sequence[relax.Expr],
    outside: Sequence[relax.Expr],
) -> relax.Expr:
    """Return the state when its first says that the loop ends, or after the most steps."""
    limits = [] if most is None else [builder.emit(relax.op.reshape(most, ()))]
    guarded = _guarded(builder, step, state, limits, outside)
    several = _Step(guarded, state, [*limits, *outside], [], [])
    block = _halves(builder, several, _BLOCK, {1: guarded})
    number, params, others = relax.Var("number", _NUMBER), _like(state), _like(several.outside)
    function_params = [number, *params, *others]
    returned = relax.TupleType([param.ty for param in params])
    # It calls itself: an empty function of its type stands for it while it is made.
    empty = relax.Function.create_empty(function_params, returned, is_pure=True)
    itself = builder.add_func(empty, "loop")
    with builder.function("loop_body", params=function_params, private=True):
        once = builder.emit(relax.Call(block, function_params))
        reached = [builder.emit(relax.TupleGetItem(once, i)) for i in range(len(params))]
        later = builder.emit(relax.op.add(number, _number(_BLOCK)))
        again = relax.Call(itself, [later, *reached, *others])
        go = _goes(builder, later, reached[0], others[: len(limits)])
        made = builder.emit_func_output(builder.emit(relax.If(go, again, relax.Tuple(reached))))
    builder.update_func(itself, builder.get()[made])
    found = builder.emit(relax.Call(itself, [_number(0), *state, *limits, *outside]))
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
    number, params = relax.Var("number", _NUMBER), _like(state)
    limit, others = _like(limits), _like(outside)
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


def _like(values: Sequence[relax.Expr]) -> list[relax.Var]:
    return [relax.Var(f"value_{place}", value.ty) for place, value in enumerate(values)]


def _of_type(value: relax.Expr, old: relax.Var) -> relax.Expr:
    """Return the state behind a step, which must have the shape and type of that before it."""
    builder = relax.BlockBuilder()
    new = builder.normalize(value).ty
    if not tvm_ffi.structural_equal(new, old.ty):
        raise ValueError(f"a step turns {old.ty} into {new}: its state changes shape or type")
    return value


def _is_true(value: relax.Expr | None) -> bool:
    return value is None or (is_constant(value) and bool(constant_array(value).item()))


def _goes_on(body: onnx.GraphProto) -> bool:
    """Whether a loop's body hands on the condition as it gets it, or a constant that is true."""
    makers = {name: each for each in body.node for name in each.output}
    name = body.output[0].name
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    if name == body.input[1].name:
        return True
    tensors = [tensor for tensor in body.initializer if tensor.name == name]
    if name in makers and makers[name].op_type == "Constant":
        tensors = [item.t for item in makers[name].attribute if item.name == "value"]
    return any(_holds(tensor) for tensor in tensors)


def _holds(tensor: onnx.TensorProto) -> bool:
    from onnx import numpy_helper

    return bool(numpy_helper.to_array(tensor).all())


def _number(value: int) -> relax.Expr:
    return relax.const(value, "int64")


def _axes(settings: Mapping[str, Any], name: str, ranks: Sequence[int]) -> list[int]:
    given = settings.get(name) or [0] * len(ranks)
    return [axis % rank for axis, rank in zip(given, ranks, strict=True)]
