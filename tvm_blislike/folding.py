"""Computes ahead what an ONNX graph computes from constants and from the shapes of its tensors.

Exporters write shapes that may vary as arithmetic: `Shape`, `Gather`, `Concat`, then `Reshape`.
Once the shapes of the inputs are known all of that is constant, but TVM's importer folds a part of
it only, and cannot take what a shape of unknown value leads to. ONNX's own shape inference and
reference implementation give the values here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.operators import all_nodes

if TYPE_CHECKING:
    import onnx

# Elements of a tensor that is worth keeping as a constant: the grids of detectors have some 10,000.
# Larger ones are weights, and slow to compute with ONNX's reference implementation.
_MOST_ELEMENTS = 1 << 20
# Elements of a constant whose values can be somebody's shape, axes or pads.
_MOST_OF_A_SHAPE = 1 << 10
# Not the same each time, or read as they are by what comes later, such as quantized weights.
_KEPT = frozenset(
    """
    Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike
    DequantizeLinear QuantizeLinear DynamicQuantizeLinear
    """.split()
)
# Read nothing of their input but its shape.
_OF_SHAPES = frozenset(["Shape", "Size"])

Values = dict[str, np.ndarray]
Sizes = Mapping[str, tuple[int, ...]]


def settled(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> Values:
    """Return the tensors whose values follow from constants and from the shapes of the inputs.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    shapes : mapping of str to sequence of int
        Shape of each input.

    Returns
    -------
    dict of str to numpy.ndarray
        By name, without those that the model holds as constants.
    """
    tensors = _tensors(proto)
    known = _small(tensors)
    given = set(known)
    if not any(_foldable(node, known) for node in proto.graph.node):
        return {}
    count = -1
    while len(known) != count:  # what is known now may settle further shapes
        count = len(known)
        _evaluate(proto, _sizes(proto, tensors, shapes, known), known)
    return {name: value for name, value in known.items() if name not in given}


def replace_by_constants(proto: onnx.ModelProto, values: Values) -> None:
    """Make constants of tensors, in place, and drop the nodes that computed them."""
    from onnx import numpy_helper

    graph = proto.graph
    kept = [node for node in graph.node if not values.keys() >= set(_distinct(node.output))]
    del graph.node[:]
    graph.node.extend(kept)
    read = {name for node in all_nodes(graph) for name in node.input} | set(_results(graph))
    for name in sorted(read & values.keys()):
        graph.initializer.append(numpy_helper.from_array(values[name], name))


def _results(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the outputs of a graph and of the branches in it, which may be tensors of the graph."""
    yield from (value.name for value in graph.output)
    for node in all_nodes(graph):
        for attribute in node.attribute:
            for branch in (attribute.g, *attribute.graphs):
                yield from (value.name for value in branch.output)


def _tensors(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of a model by name."""
    found = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant":
            found.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    return found


def _small(tensors: Mapping[str, onnx.TensorProto]) -> Values:
    """Return the values of those that are no large weights."""
    small = {name: t for name, t in tensors.items() if math.prod(t.dims) <= _MOST_ELEMENTS}
    values = {name: _array(tensor) for name, tensor in small.items()}
    return {name: value for name, value in values.items() if value is not None}


def _array(tensor: onnx.TensorProto) -> np.ndarray | None:
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(tensor)
    except Exception:  # broken, or stored in a file that nobody has read: the importer says more
        return None


def _foldable(node: onnx.NodeProto, known: Values) -> bool:
    """Whether a node, not computed yet, may be computed ahead."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _KEPT or _has_branches(node):
        return False
    if known.keys() >= set(_distinct(node.output)):
        return False
    if node.op_type in _OF_SHAPES or node.op_type == "Constant":
        return True
    return bool(node.input) and all(name in known for name in _distinct(node.input))


def _has_branches(node: onnx.NodeProto) -> bool:
    return any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)


def _evaluate(proto: onnx.ModelProto, sizes: Sizes, known: Values) -> None:
    """Add what can be computed from `known` and the shapes, in the order of the graph."""
    for node in proto.graph.node:
        results = [math.prod(sizes.get(name, ())) for name in node.output]
        if not _foldable(node, known) or max(results, default=0) > _MOST_ELEMENTS:
            continue
        if node.op_type not in _OF_SHAPES:
            known |= _computed(proto, node, known)
        elif node.input[0] in sizes:
            operand = np.broadcast_to(np.float32(0), sizes[node.input[0]])  # takes no memory
            known |= _computed(proto, node, {node.input[0]: operand})


def _computed(proto: onnx.ModelProto, node: onnx.NodeProto, operands: Values) -> Values:
    """Return the outputs of a node, none when ONNX's reference cannot compute them."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    inputs, outputs = _distinct(node.input), _distinct(node.output)
    ends = [list(map(_untyped, names)) for names in (inputs, outputs)]
    graph = helper.make_graph([node], "node", *ends)
    model = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    try:
        results = ReferenceEvaluator(model).run(None, {name: operands[name] for name in inputs})
    except Exception:  # its own gaps and faults of the model alike: the importer says more
        return {}
    computed = {name: np.asarray(result) for name, result in zip(outputs, results, strict=True)}
    numbers = all(a.dtype.kind in "fiub" and a.size <= _MOST_ELEMENTS for a in computed.values())
    return computed if numbers else {}


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names once each, without the empty ones of operands that are left out."""
    return [name for name in dict.fromkeys(names) if name]


def _untyped(name: str) -> onnx.ValueInfoProto:
    from onnx import TypeProto, helper

    return helper.make_value_info(name, TypeProto())


def _sizes(
    proto: onnx.ModelProto,
    tensors: Mapping[str, onnx.TensorProto],
    shapes: Mapping[str, Sequence[int]],
    known: Values,
) -> Sizes:
    """Return the shapes of tensors that ONNX infers, completely known ones only."""
    from onnx import helper, shape_inference

    constants = {name: (t.data_type, tuple(t.dims)) for name, t in tensors.items()}
    for name, value in known.items():
        constants[name] = helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
    try:
        inferred = shape_inference.infer_shapes(
            _shell(proto, shapes, constants, known), data_prop=True
        ).graph
    except Exception:  # an inconsistent model: the importer says more
        return {}
    values = [*inferred.input, *inferred.value_info, *inferred.output]
    found = {value.name: _complete(value.type.tensor_type) for value in values}
    found.update((name, dims) for name, (_, dims) in constants.items())
    return {name: size for name, size in found.items() if size is not None}


def _shell(
    proto: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]],
    constants: Mapping[str, tuple[int, tuple[int, ...]]],
    known: Values,
) -> onnx.ModelProto:
    """Return the model with the shapes of its inputs and, of its constants, what shapes need.

    Weights become inputs, of which the shape is all that matters: their values would be copied.
    """
    from onnx import helper, numpy_helper

    graph = proto.graph
    typed = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    shown = {name: value for name, value in known.items() if value.size <= _MOST_OF_A_SHAPE}
    inputs = {name: (typed[name], shape) for name, shape in shapes.items()}
    inputs |= {name: what for name, what in constants.items() if name not in shown}
    shell = helper.make_graph(
        [node for node in graph.node if not constants.keys() >= set(_distinct(node.output))],
        "shell",
        [helper.make_tensor_value_info(name, *what) for name, what in inputs.items()],
        [_untyped(value.name) for value in graph.output],
        [numpy_helper.from_array(value, name) for name, value in shown.items()],
    )
    return helper.make_model(shell, opset_imports=proto.opset_import, ir_version=proto.ir_version)


def _complete(type_: onnx.TypeProto.Tensor) -> tuple[int, ...] | None:
    """Return the shape of a tensor, None when a size or the rank is unknown."""
    if not type_.HasField("shape"):
        return None
    dims = type_.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None
