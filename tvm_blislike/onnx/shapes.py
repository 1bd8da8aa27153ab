"""Shapes of the tensors of an ONNX graph, as ONNX infers them from those of its inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tvm_blislike.onnx.loop_shapes import LoopShapes
from tvm_blislike.onnx.stand_ins import stand_ins

if TYPE_CHECKING:
    import onnx

# Elements of a constant whose values can be somebody's shape, axes or pads; others are weights.
_MOST_OF_A_SHAPE = 1 << 10


def constants_of(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of a model, of nodes too, by name."""
    return constants_in(model.graph)


def constants_in(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of a graph, of nodes too, without those of branches, by name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return found


def shapes_of(
    model: onnx.ModelProto,
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, onnx.TensorProto],
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a graph, by name, completely known ones only.

    Parameters
    ----------
    model : onnx.ModelProto
        Left as it is. Shapes that it declares for anything but its inputs are not believed.
    inputs : mapping of str to sequence of int
        Shapes of its inputs; those without keep the declared one.
    constants : mapping of str to onnx.TensorProto
        Tensors whose values are known, whatever yields them in the graph.

    Raises
    ------
    onnx.shape_inference.InferenceError
        Or another error of ONNX, when the model is inconsistent.
    """
    return shapes_in(inferred(model, inputs, constants), constants)


def shapes_in(
    graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]
) -> dict[str, tuple[int, ...]]:
    """Return the completely known shapes of a graph of `inferred`, and those of the constants."""
    found = {value.name: complete(value.type.tensor_type) for value in values_of(graph)}
    found.update((name, tuple(tensor.dims)) for name, tensor in constants.items())
    return {name: shape for name, shape in found.items() if shape is not None}


def values_of(graph: onnx.GraphProto) -> tuple[onnx.ValueInfoProto, ...]:
    """Return what a graph says of its tensors: of those inside, its inputs and its results."""
    return (*graph.value_info, *graph.input, *graph.output)


def inferred(
    model: onnx.ModelProto,
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, onnx.TensorProto],
) -> onnx.GraphProto:
    """Return the graph with the types that ONNX infers, its branches too, without weights.

    The parameters are those of `shapes_of`. Nodes that yield constants are not in it.
    """
    from onnx import shape_inference

    shell = _shell(model, inputs, constants)
    loops = LoopShapes(shell.graph)
    types = shape_inference.infer_shapes(shell, data_prop=True).graph
    while loops.told(types):
        types = shape_inference.infer_shapes(shell, data_prop=True).graph
    return types


def types_of(model: onnx.ModelProto, inputs: Mapping[str, Sequence[int]]) -> onnx.GraphProto:
    """Return what `inferred` does with the model's own constants, no types where ONNX cannot."""
    import onnx

    try:
        return inferred(model, inputs, constants_of(model))
    except Exception:  # an inconsistent model: the importer says more
        return onnx.GraphProto()


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names once each, without the empty ones of operands that are left out."""
    return [name for name in dict.fromkeys(names) if name]


def untyped(name: str) -> onnx.ValueInfoProto:
    """Return an input or output of a graph whose type is not told."""
    from onnx import TypeProto, helper

    return helper.make_value_info(name, TypeProto())


def _shell(
    model: onnx.ModelProto,
    inputs: Mapping[str, Sequence[int]],
    constants: Mapping[str, onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a copy whose inputs have these shapes, and whose weights have no values.

    They would be copied, and the shape is all that matters of them.
    """
    import onnx

    # Before version 4 constants were inputs as well, and others would be ignored.
    shell = onnx.ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import)
    graph = shell.graph
    graph.node.extend(
        known
        for node in model.graph.node
        if not constants.keys() >= set(distinct(node.output))
        for known in stand_ins(node)
    )
    graph.input.extend(value for value in model.graph.input if value.name not in constants)
    graph.output.extend(untyped(value.name) for value in model.graph.output)
    graph.initializer.extend(light(t, name, _MOST_OF_A_SHAPE) for name, t in constants.items())
    for value in graph.input:
        if value.name in inputs:
            shape = value.type.tensor_type.shape
            shape.CopyFrom(onnx.TensorShapeProto())
            for size in inputs[value.name]:
                shape.dim.add().dim_value = size
    return shell


def light(tensor: onnx.TensorProto, name: str, most: int) -> onnx.TensorProto:
    """Return a constant under a name, one of more elements than `most` without its values."""
    import onnx

    named = onnx.TensorProto(dims=tensor.dims, data_type=tensor.data_type)
    if math.prod(tensor.dims) <= most:
        named.CopyFrom(tensor)
    named.name = name
    return named


def complete(type_: onnx.TypeProto.Tensor) -> tuple[int, ...] | None:
    """Return the shape of a tensor, None when a size or the rank is unknown."""
    if not type_.HasField("shape"):
        return None
    dims = type_.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None
