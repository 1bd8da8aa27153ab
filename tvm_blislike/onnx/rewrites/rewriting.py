"""Applies the rewritings to a model, to the branches of its nodes, too."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.onnx.graphs import all_nodes, branches, read_in, replace_nodes, unused_names
from tvm_blislike.onnx.operator_sets import opset
from tvm_blislike.onnx.rewrites import REWRITES
from tvm_blislike.onnx.rewrites.site import Site, Tensor
from tvm_blislike.onnx.shapes import constants_in, constants_of, inferred

if TYPE_CHECKING:
    import onnx


def rewritten(
    proto: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]],
    owned: bool,
    types: onnx.GraphProto | None = None,
) -> onnx.ModelProto:
    """Return the model with what TVM's importer would misread written otherwise.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model, whose shape arithmetic is folded.
    shapes : mapping of str to sequence of int
        Shape of each input.
    owned : bool
        Whether it may be changed; otherwise a model that needs it is copied.
    types : onnx.GraphProto, optional
        What was inferred of it already (`shapes.inferred`).

    Raises
    ------
    UnsupportedOperatorError
        Naming a node that cannot be written otherwise, and why.
    """
    if not any(node.op_type in REWRITES for node in all_nodes(proto.graph)):
        return proto
    walk = _Walk(opset(proto), unused_names(proto.graph, "rewritten"), read_in(proto.graph))
    found = walk.through(proto.graph, _Scope({}, {}), types or _types(proto, shapes))
    if found is None:
        return proto
    result = proto if owned else copy.deepcopy(proto)
    _put(result.graph, *found)
    return result


def _types(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.GraphProto:
    """Return the graph with the types that ONNX infers, one without any when it cannot."""
    import onnx

    try:
        return inferred(proto, shapes, constants_of(proto))
    except Exception:  # an inconsistent model: whoever needs a shape says that it is not known
        return onnx.GraphProto()


@dataclass(frozen=True)
class _Scope:
    """What is known of the tensors that a graph can read."""

    constants: Mapping[str, onnx.TensorProto]
    tensors: Mapping[str, Tensor]

    def within(self, graph: onnx.GraphProto, types: onnx.GraphProto) -> _Scope:
        """Return the scope inside a graph."""
        return _Scope(
            {**self.constants, **constants_in(graph)}, {**self.tensors, **_tensors(types)}
        )


@dataclass(frozen=True)
class _Walk:
    opset: int
    names: Iterator[str]
    read: Set[str]

    def through(
        self, graph: onnx.GraphProto, outer: _Scope, types: onnx.GraphProto
    ) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]] | None:
        """Return the nodes that a graph has then and its further constants, None without changes.

        `types` is the graph as shape inference leaves it.
        """
        scope = outer.within(graph, types)
        typed = {tuple(node.output): node for node in types.node}
        nodes: list[onnx.NodeProto] = []
        constants: list[onnx.TensorProto] = []
        changed = False
        for node in graph.node:
            site = Site(node, self.opset, scope.tensors, scope.constants, self.names, self.read)
            new = self._at(site, scope, typed.get(tuple(node.output), node))
            nodes += [node] if new is None else new
            constants += site.initializers
            changed |= new is not None
        return (nodes, constants) if changed else None

    def _at(self, site: Site, scope: _Scope, typed: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        """Return what takes the place of a node, None when it stays."""
        rewrite = REWRITES.get(site.node.op_type)
        results = rewrite(site) if rewrite else None
        if results is None:
            return self._in_branches(site.node, scope, typed)
        for theirs, ours in zip(site.node.output, results, strict=False):
            if theirs:
                _name_result(site, ours, theirs)
        return site.nodes

    def _in_branches(
        self, node: onnx.NodeProto, scope: _Scope, typed: onnx.NodeProto
    ) -> list[onnx.NodeProto] | None:
        pairs = zip(branches(node), branches(typed), strict=True)
        found = [self.through(graph, scope, types) for graph, types in pairs]
        if not any(found):
            return None
        changed = copy.deepcopy(node)
        for graph, new in zip(branches(changed), found, strict=True):
            if new:
                _put(graph, *new)
        return [changed]


def _name_result(site: Site, ours: str, theirs: str) -> None:
    """Let the node that computes `ours` compute `theirs`, by a node of its own if need be."""
    for node in site.nodes:
        if list(node.output) == [ours] and not any(ours in other.input for other in site.nodes):
            node.output[0] = theirs
            return
    site.add("Identity", ours)
    site.nodes[-1].output[0] = theirs


def _put(
    graph: onnx.GraphProto, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]
) -> None:
    replace_nodes(graph, nodes)
    graph.initializer.extend(constants)


def _tensors(types: onnx.GraphProto) -> dict[str, Tensor]:
    from onnx import helper

    from tvm_blislike.onnx.shapes import complete, values_of

    found = {}
    for value in values_of(types):
        type_ = value.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(type_.elem_type) if type_.elem_type else None
        found[value.name] = Tensor(complete(type_), dtype)
    for tensor in types.initializer:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        found[tensor.name] = Tensor(tuple(tensor.dims), dtype)
    return found
