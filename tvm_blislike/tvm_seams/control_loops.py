"""`Loop` and `Scan` of ONNX as calls of Relax functions (`steps`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import relax

from tvm_blislike.tvm_seams.branches import Nodes, captured, function_of
from tvm_blislike.tvm_seams.relax_ir import constant_array, is_constant, static_shape
from tvm_blislike.tvm_seams.steps import NUMBER, Step, counted, like, number_of, recursive

if TYPE_CHECKING:
    import onnx


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
    params = like(state)
    scans = len(body.output) - 1 - len(state)
    number, go = relax.Var("number", NUMBER), relax.Var("go", relax.TensorType((), "bool"))

    def inputs(first: relax.Expr) -> Callable[[], Nodes]:
        return lambda: dict(zip(names, [number, first, *params], strict=True))

    if most is not None and is_constant(most) and _is_true(begins) and goes_on(body):

        def results(found: list[relax.Expr]) -> relax.Expr:
            kept = [_of_type(value, old) for value, old in zip(found[1:], params, strict=False)]
            raised = [relax.op.expand_dims(value, 0) for value in found[1 + len(params) :]]
            return relax.Tuple([*kept, *raised])

        always = inputs(relax.const(True, "bool"))
        function = function_of(importer, body, "step", [number, *params], inner, always, results)
        step = Step(function, state, outside, [0] * scans, [False] * scans)
        return counted(builder, step, int(constant_array(most).item()))
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
    return recursive(builder, function, most, [begin, *state], outside)


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
    number = relax.Var("number", NUMBER)
    params, given = like(state), like(sequences)
    results_of_step = body.output[len(state) :]

    def element(sequence: relax.Expr, axis: int, backwards: int) -> relax.Expr:
        place = relax.op.subtract(number_of(steps - 1), number) if backwards else number
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
    step = Step(function, state, [*sequences, *outside], found_axes, [*map(bool, backwards)])
    return counted(builder, step, steps)


def _of_type(value: relax.Expr, old: relax.Var) -> relax.Expr:
    """Return the state behind a step, which must have the shape and type of that before it."""
    builder = relax.BlockBuilder()
    new = builder.normalize(value).ty
    if not tvm_ffi.structural_equal(new, old.ty):
        raise ValueError(f"a step turns {old.ty} into {new}: its state changes shape or type")
    return value


def _is_true(value: relax.Expr | None) -> bool:
    return value is None or (is_constant(value) and bool(constant_array(value).item()))


def goes_on(body: onnx.GraphProto) -> bool:
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


def _axes(settings: Mapping[str, Any], name: str, ranks: Sequence[int]) -> list[int]:
    given = settings.get(name) or [0] * len(ranks)
    return [axis % rank for axis, rank in zip(given, ranks, strict=True)]
