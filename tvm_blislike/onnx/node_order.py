"""Nodes in an order in which they can be computed, whatever order they were written in.

ONNX asks for that order, and engines sort without a word, so that converters write others: the one
to fp16 that ONNX Runtime has puts the casts of a model's inputs behind all nodes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from tvm_blislike.errors import ModelError
from tvm_blislike.onnx.graphs import all_graphs, all_nodes, branches, replace_nodes

if TYPE_CHECKING:
    import onnx


def in_order(proto: onnx.ModelProto, owned: bool) -> onnx.ModelProto:
    """Return the model with each node behind those that it reads; itself where that is so.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    owned : bool
        It may be changed.

    Raises
    ------
    ModelError
        When nodes wait for each other.
    """
    if all(_is_ordered(graph) for graph in all_graphs(proto.graph)):
        return proto
    result = proto if owned else copy.deepcopy(proto)
    for graph in all_graphs(result.graph):
        if not _is_ordered(graph):
            replace_nodes(graph, [graph.node[place] for place in _order(graph.node)])
    return result


def _is_ordered(graph: onnx.GraphProto) -> bool:
    left = {name for node in graph.node for name in node.output}
    for node in graph.node:
        if not left.isdisjoint(_read(node)):
            return False
        left.difference_update(node.output)
    return True


def _read(node: onnx.NodeProto) -> set[str]:
    """Return the tensors that a node reads, and those that its branches read from outside."""
    inner = list(branches(node))
    nodes = [each for branch in inner for each in all_nodes(branch)]
    read = {name for each in (node, *nodes) for name in each.input if name}
    return read | {value.name for branch in inner for value in branch.output}


def _order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Return the places of nodes in an order to compute, as near to their own as there is."""
    makers = {name: place for place, node in enumerate(nodes) for name in node.output if name}
    sorter = TopologicalSorter(
        {i: {makers[name] for name in _read(node) & makers.keys()} for i, node in enumerate(nodes)}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        names = [nodes[place].name or nodes[place].op_type for place in error.args[1]]
        raise ModelError(f"nodes wait for each other: {', '.join(names)}") from error
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for place in sorter.get_ready():
            heappush(ready, place)
        order.append(heappop(ready))
        sorter.done(order[-1])
    return order
