"""Which node TVM cannot compile: looked for only when compiling a whole model has failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.onnx.operator_sets import opset
from tvm_blislike.onnx.shapes import constants_of, distinct, inferred
from tvm_blislike.onnx.single_nodes import single_nodes

if TYPE_CHECKING:
    import onnx
    import tvm


@dataclass(frozen=True)
class Fault:
    """A node that TVM alone cannot compile, without any pass of this package, and its error."""

    node: onnx.NodeProto
    error: Exception


def find_fault(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], target: tvm.target.Target
) -> Fault | None:
    """Return the first node that TVM's own pipeline cannot compile as a model of its own.

    Parameters
    ----------
    proto : onnx.ModelProto
        A model that TVM's importer takes.
    shapes : mapping of str to sequence of int
        Shape of each input.
    target : tvm.target.Target
        What to compile for.

    Returns
    -------
    Fault or None
        None when each node compiles, or cannot be taken out of the graph.
    """
    tried = set()
    for node, model in _models(proto, shapes):
        form = _form(model)
        if form not in tried:
            tried.add(form)
            error = _error_of(model, target)
            if error is not None:
                return Fault(node, error)
    return None


def _models(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> Iterator[tuple[onnx.NodeProto, onnx.ModelProto]]:
    """Yield each node with a model of that node alone, where its operands are known."""
    constants = constants_of(proto)
    try:
        types = inferred(proto, shapes, constants)
    except Exception:  # an inconsistent model
        return
    yield from single_nodes(proto, types, constants)


def _form(model: onnx.ModelProto) -> bytes:
    """Return the same for two nodes that differ in names only."""
    import onnx

    form = onnx.ModelProto()
    form.CopyFrom(model)
    (node,) = form.graph.node
    numbers = {name: str(i) for i, name in enumerate(distinct((*node.input, *node.output)))}
    node.name = ""
    for names in (node.input, node.output):
        names[:] = [numbers.get(name, "") for name in names]
    for value in (*form.graph.input, *form.graph.output, *form.graph.initializer):
        value.name = numbers[value.name]
    return form.SerializeToString(deterministic=True)


def _error_of(model: onnx.ModelProto, target: tvm.target.Target) -> Exception | None:
    import tvm

    from tvm_blislike.onnx.converters import CONVERTERS
    from tvm_blislike.tvm_seams.importer import import_graph

    try:
        tvm.compile(import_graph(model.graph, opset(model), {}, CONVERTERS), target)
    except Exception as error:
        return error
    return None
