"""Computes ahead what an ONNX graph computes from constants and from the shapes of its tensors.

Exporters write shapes that may vary as arithmetic: `Shape`, `Gather`, `Concat`, then `Reshape`.
Once the shapes of the inputs are known all of that is constant, but TVM's importer folds a part of
it only, and cannot take what a shape of unknown value leads to. ONNX's own shape inference and
reference implementation give the values here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.onnx.graphs import branches, read_in
from tvm_blislike.onnx.operator_sets import STANDARD
from tvm_blislike.onnx.settings import dequantized_settings
from tvm_blislike.onnx.shapes import constants_of, distinct, inferred, shapes_in, untyped

if TYPE_CHECKING:
    import onnx

# Elements of a tensor that is worth keeping as a constant: the grids of detectors have some 10,000.
# Larger ones are weights, and slow to compute with ONNX's reference implementation.
MOST_ELEMENTS = 1 << 20
# What shapes, axes, indices and grids are computed with. Others are left to the compiler: ONNX's
# reference implementation gets some attributes of the larger operators wrong, and random numbers
# and quantized weights have to stay.
ARITHMETIC = frozenset(
    """
    Abs Add And ArgMax ArgMin Cast CastLike Ceil Clip Compress Concat Constant ConstantOfShape Cos
    CumSum Div Equal Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater
    GreaterOrEqual Identity Less LessOrEqual Log MatMul Max Min Mod Mul Neg NonZero Not OneHot Or
    Pow Range Reciprocal ReduceMax ReduceMin ReduceProd ReduceSum Reshape Round ScatterElements
    ScatterND Shape Sign Sin Size Slice Split Sqrt Squeeze Sub Sum Tile TopK Transpose Trilu
    Unsqueeze Where Xor
    """.split()
)
# Read nothing of their input but its shape.
_OF_SHAPES = frozenset(["Shape", "Size"])

Values = dict[str, np.ndarray]
Sizes = Mapping[str, Sequence[int]]
Tensors = Mapping[str, "onnx.TensorProto"]


def settled(proto: onnx.ModelProto, shapes: Sizes) -> tuple[Values, onnx.GraphProto | None]:
    """Return the tensors whose values follow from constants and from the shapes of the inputs.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    shapes : mapping of str to sequence of int
        Shape of each input.

    Returns
    -------
    values : dict of str to numpy.ndarray
        By name, without those that the model holds as constants.
    types : onnx.GraphProto or None
        What ONNX has inferred for that (`shapes.inferred`); None where it was not asked, or cannot.
    """
    constants = constants_of(proto)
    read = {name for node in proto.graph.node if _is_arithmetic(node) for name in node.input}
    known = _small({name: tensor for name, tensor in constants.items() if name in read})
    given = set(known)
    steps = dequantized_settings(proto.graph, constants)
    known |= steps
    if not any(_foldable(node, known) for node in proto.graph.node):
        return steps, None
    count, types = -1, None
    sizes: Sizes = {}
    results = {name for node in proto.graph.node for name in distinct(node.output)}
    # What is known now may settle further shapes.
    while len(known) != count and not sizes.keys() >= results:
        count = len(known)
        types, sizes = _inferred(proto, shapes, constants, known)
        _evaluate(proto, sizes, known)
    return {name: value for name, value in known.items() if name not in given}, types


def replace_by_constants(proto: onnx.ModelProto, values: Values) -> None:
    """Make constants of tensors, in place, and drop the nodes that computed them."""
    from onnx import numpy_helper

    graph = proto.graph
    kept = [node for node in graph.node if not values.keys() >= set(distinct(node.output))]
    del graph.node[:]
    graph.node.extend(kept)
    read = read_in(graph)
    for name in sorted(read & values.keys()):
        graph.initializer.append(numpy_helper.from_array(values[name], name))


def _small(tensors: Tensors) -> Values:
    """Return the values of those that are no large weights."""
    small = {name: t for name, t in tensors.items() if math.prod(t.dims) <= MOST_ELEMENTS}
    values = {name: _array(tensor) for name, tensor in small.items()}
    return {name: value for name, value in values.items() if value is not None}


def _array(tensor: onnx.TensorProto) -> np.ndarray | None:
    from onnx import numpy_helper

    try:
        return numpy_helper.to_array(tensor)
    except Exception:  # broken, or stored in a file that nobody has read: the importer says more
        return None


def _is_arithmetic(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD and node.op_type in ARITHMETIC


def _foldable(node: onnx.NodeProto, known: Values) -> bool:
    """Whether a node, not computed yet, may be computed ahead."""
    if not _is_arithmetic(node) or any(branches(node)):
        return False
    if known.keys() >= set(distinct(node.output)) or _has_unordered_axes(node):
        return False
    if node.op_type in _OF_SHAPES or node.op_type == "Constant":
        return True
    return bool(node.input) and all(name in known for name in distinct(node.input))


def _has_unordered_axes(node: onnx.NodeProto) -> bool:
    """Whether it is an `Unsqueeze` that ONNX's reference would get wrong."""
    axes = [list(item.ints) for item in node.attribute if item.name == "axes"]
    return node.op_type == "Unsqueeze" and any(found != sorted(found) for found in axes)


def _evaluate(proto: onnx.ModelProto, sizes: Sizes, known: Values) -> None:
    """Add what can be computed from `known` and the shapes, in the order of the graph."""
    for node in proto.graph.node:
        results = [math.prod(sizes.get(name, ())) for name in node.output]
        if not _foldable(node, known) or max(results, default=0) > MOST_ELEMENTS:
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

    inputs, outputs = distinct(node.input), distinct(node.output)
    ends = [list(map(untyped, names)) for names in (inputs, outputs)]
    graph = helper.make_graph([node], "node", *ends)
    model = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    try:
        results = ReferenceEvaluator(model).run(None, {name: operands[name] for name in inputs})
    except Exception:  # its own gaps and faults of the model alike: the importer says more
        return {}
    computed = {name: np.asarray(result) for name, result in zip(outputs, results, strict=True)}
    numbers = all(a.dtype.kind in "fiub" and a.size <= MOST_ELEMENTS for a in computed.values())
    return computed if numbers else {}


def _inferred(
    proto: onnx.ModelProto, shapes: Sizes, constants: Tensors, known: Values
) -> tuple[onnx.GraphProto | None, Sizes]:
    """Return what ONNX infers with what is known by now, and all shapes; none when it cannot."""
    from onnx import numpy_helper

    computed = known.keys() - constants.keys()
    tensors = {name: numpy_helper.from_array(known[name], name) for name in computed}
    try:
        types = inferred(proto, shapes, {**constants, **tensors})
        return types, shapes_in(types, {**constants, **tensors})
    except Exception:  # an inconsistent model: the importer says more
        return None, {}
