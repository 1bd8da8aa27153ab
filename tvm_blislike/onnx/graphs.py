"""Ways through a graph and through the branches inside it: the graphs that nodes have."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graph and those of the branches inside it."""
    yield graph
    for node in graph.node:
        for branch in branches(node):
            yield from all_graphs(branch)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph and of the branches inside them."""
    for inner in all_graphs(graph):
        yield from inner.node


def branches(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside a node of control flow."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def read_in(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that nodes read, or that are results of the graph or of a branch."""
    read = {name for node in all_nodes(graph) for name in node.input if name}
    return read | {value.name for inner in all_graphs(graph) for value in inner.output}


def unused_names(graph: onnx.GraphProto, stem: str) -> Iterator[str]:
    """Yield names, numbered, that no tensor of the graph or of the branches inside it has."""
    used = {name for node in all_nodes(graph) for name in (*node.input, *node.output)}
    for inner in all_graphs(graph):
        used |= {item.name for item in (*inner.input, *inner.initializer)}
    numbered = (f"{stem}_{count}" for count in itertools.count())
    return (name for name in numbered if name not in used)


def attribute(node: onnx.NodeProto, name: str) -> Any:
    """Return the value of an attribute, None when the node does not have it."""
    import onnx

    found = [item for item in node.attribute if item.name == name]
    return onnx.helper.get_attribute_value(found[0]) if found else None


def replace_nodes(graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
    """Have a graph consist of other nodes, its own among them, in place."""
    kept = [copy.deepcopy(node) for node in nodes]  # those of the graph itself end with it
    del graph.node[:]
    graph.node.extend(kept)
