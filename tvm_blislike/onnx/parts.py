"""Graphs inside the nodes of an ONNX model, as models of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.onnx.folding import MOST_ELEMENTS
from tvm_blislike.onnx.graphs import branches, read_in
from tvm_blislike.onnx.shapes import constants_of, distinct, light, untyped, values_of
from tvm_blislike.tvm_seams.branches import free_names

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Part:
    """A graph inside a node, and the model of it alone.

    What the graph reads from outside are inputs of the model, or constants; large constants have
    no values there.
    """

    graph: onnx.GraphProto
    model: onnx.ModelProto
    outside: frozenset[str]

    @classmethod
    def of(cls, graph: onnx.GraphProto, around: onnx.ModelProto, types: onnx.GraphProto) -> Part:
        """Return the part of a graph without inputs.

        Parameters
        ----------
        graph : onnx.GraphProto
            The graph.
        around : onnx.ModelProto
            The model of the graph around it.
        types : onnx.GraphProto
            The graph around it as shape inference leaves it.
        """
        import onnx

        model = onnx.ModelProto(ir_version=around.ir_version, opset_import=around.opset_import)
        model.graph.node.extend(_read_nodes(graph))
        model.graph.output.extend(untyped(value.name) for value in graph.output)
        model.graph.initializer.extend(light(t, t.name, MOST_ELEMENTS) for t in graph.initializer)
        outside = distinct(free_names(graph))
        values = {value.name: value for value in values_of(types)}
        constants = constants_of(around)
        for name in outside:
            if name in constants:
                model.graph.initializer.append(light(constants[name], name, MOST_ELEMENTS))
            else:
                model.graph.input.append(values.get(name, untyped(name)))
        return cls(graph, model, frozenset(outside))

    def put_back(self, types: onnx.GraphProto) -> None:
        """Change the graph to what has become of its model, whose types are given."""
        graph, new = self.graph, self.model.graph
        known = self.outside | {tensor.name for tensor in graph.initializer}
        graph.initializer.extend(t for t in new.initializer if t.name not in known)
        del graph.node[:], graph.value_info[:], graph.output[:]
        graph.node.extend(new.node)
        graph.output.extend(types.output or new.output)


def read_inside(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that the graphs inside a node read from outside."""
    return {name for graph in branches(node) for name in free_names(graph)}


def made_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the tensors that a graph makes or has as constants, without those inside its nodes."""
    yield from (tensor.name for tensor in graph.initializer)
    yield from (name for node in graph.node for name in node.output if name)


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give tensors of a graph other names, in place, inside its nodes, too."""
    names = {old: new for old, new in names.items() if old not in {v.name for v in graph.input}}
    for item in (*graph.initializer, *graph.output):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for inner in branches(node):
            rename(inner, names)


def _read_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of a graph that lead to its results."""
    read = {value.name for value in graph.output}
    found = []
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            read |= {*node.input, *(name for inner in branches(node) for name in read_in(inner))}
            found.append(node)
    return found[::-1]
