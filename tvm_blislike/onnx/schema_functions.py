"""Operators that ONNX defines by a function of others: their bodies take the place of the nodes.

ONNX, IR.md: function bodies of schemas, those that depend on the types of the operands, too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.onnx.converted import known_operators
from tvm_blislike.onnx.graphs import all_nodes, branches, replace_nodes, unused_names
from tvm_blislike.onnx.operator_sets import STANDARD, opset
from tvm_blislike.onnx.rewrites.standard_attention import is_usual
from tvm_blislike.onnx.shapes import constants_in, types_of, values_of

if TYPE_CHECKING:
    import onnx
    from onnx.defs import OpSchema

    Types = Mapping[str, onnx.TypeProto]

# Its usual form is written otherwise than as its function.
_OF_TWO_FORMS = "Attention"


def without_schema_functions(
    proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], owned: bool
) -> onnx.ModelProto:
    """Return the model with the functions written out of operators that have no converter.

    Those stay that lead to an operator without a converter, or whose operands have types that ONNX
    does not infer.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    shapes : mapping of str to sequence of int
        Shape of each input.
    owned : bool
        Whether it may be changed; otherwise a model with such a node is copied.
    """
    known = known_operators()[""]
    while _has_functions(proto, known):  # bodies hold functions, too
        walk = _Walk(opset(proto), known, unused_names(proto.graph, "function"))
        found = walk.through(proto.graph, {}, types_of(proto, shapes))
        if found is None:
            return proto
        proto = proto if owned else copy.deepcopy(proto)
        owned = True
        replace_nodes(proto.graph, found)
    return proto


def _has_functions(proto: onnx.ModelProto, known: frozenset[str]) -> bool:
    version = opset(proto)
    return any(_function_of(node, version, known) for node in all_nodes(proto.graph))


@dataclass(frozen=True)
class _Walk:
    opset: int
    known: frozenset[str]
    names: Iterator[str]

    def through(
        self, graph: onnx.GraphProto, outer: Types, inferred_graph: onnx.GraphProto
    ) -> list[onnx.NodeProto] | None:
        """Return the nodes that a graph has then, None without changes."""
        types = {**outer, **_types_in(graph), **_types_in(inferred_graph)}
        typed = {tuple(node.output): node for node in inferred_graph.node}
        nodes: list[onnx.NodeProto] = []
        changed = False
        for node in graph.node:
            new = self._body_of(node, types)
            new = new or self._in_branches(node, types, typed.get(tuple(node.output), node))
            nodes += new or [node]
            changed |= new is not None
        return nodes if changed else None

    def _body_of(self, node: onnx.NodeProto, types: Types) -> list[onnx.NodeProto] | None:
        """Return the body of a node's function under names of its own, None where it stays."""
        if node.op_type == _OF_TWO_FORMS and is_usual(node, _element(node, types)):
            return None
        schema = _function_of(node, self.opset, self.known)
        body = schema and _instantiated(schema, node, self.opset, types)
        if not body or not _leads_on(body, self.opset, self.known):
            return None
        names = dict(zip(body.input, [*node.input, *[""] * len(body.input)], strict=False))
        names |= {ours: theirs for ours, theirs in _pairs(body.output, node.output) if theirs}
        settings = _settings(schema, node)
        new = [self._renamed(inner, names, settings) for inner in body.node]
        for inner in new:
            inner.name = node.name or f"{node.op_type} computing {node.output[0]}"
        return new

    def _renamed(
        self,
        node: onnx.NodeProto,
        names: dict[str, str],
        settings: Mapping[str, onnx.AttributeProto],
    ) -> onnx.NodeProto:
        """Return a node of a body with the names and attributes of the node that calls it."""
        made = copy.deepcopy(node)
        made.ClearField("attribute")
        made.attribute.extend(_resolved(node.attribute, settings))
        for graph in branches(made):
            self._rename(graph, names, settings)
        for name in node.output:
            if name:
                names.setdefault(name, next(self.names))
        made.input[:] = [names.get(name, name) for name in node.input]
        made.output[:] = [names.get(name, name) for name in node.output]
        return made

    def _rename(
        self,
        graph: onnx.GraphProto,
        outer: dict[str, str],
        settings: Mapping[str, onnx.AttributeProto],
    ) -> None:
        """Give a graph inside a body names of its own, and those of what it reads from outside."""
        names = dict(outer)
        for item in (*graph.input, *graph.initializer):
            names[item.name] = item.name = next(self.names)
        for value in graph.value_info:
            value.name = names.setdefault(value.name, next(self.names))
        nodes = [self._renamed(node, names, settings) for node in graph.node]
        replace_nodes(graph, nodes)
        for value in graph.output:
            value.name = names.get(value.name, value.name)

    def _in_branches(
        self, node: onnx.NodeProto, types: Types, typed: onnx.NodeProto
    ) -> list[onnx.NodeProto] | None:
        pairs = zip(branches(node), branches(typed), strict=True)
        found = [self.through(graph, types, inner) for graph, inner in pairs]
        if not any(found):
            return None
        changed = copy.deepcopy(node)
        for graph, nodes in zip(branches(changed), found, strict=True):
            if nodes:
                replace_nodes(graph, nodes)
        return [changed]


def _function_of(node: onnx.NodeProto, version: int, known: frozenset[str]) -> OpSchema | None:
    """Return the schema of a node without a converter whose operator is a function."""
    from onnx import defs

    if node.domain not in STANDARD or node.op_type in known - {_OF_TWO_FORMS}:
        return None
    try:
        schema = defs.get_schema(node.op_type, version, "")
    except defs.SchemaError:  # no operator of this version: whoever checks the model says so
        return None
    is_function = schema.has_function or schema.has_context_dependent_function
    return schema if is_function else None


def _instantiated(
    schema: OpSchema, node: onnx.NodeProto, version: int, types: Types
) -> onnx.FunctionProto | None:
    """Return the body for a node, the newest up to a version; None where ONNX has none for it."""
    import onnx

    bodies = [v for v in schema.all_function_opset_versions if v <= version]
    if not bodies:
        return None
    newest = max(bodies)
    if newest not in schema.context_dependent_function_opset_versions:
        body = schema.get_function_with_opset_version(newest)
    elif any(name and name not in types for name in node.input):
        return None
    else:
        operands = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        body = schema.get_context_dependent_function_with_opset_version(
            newest, node.SerializeToString(), operands
        )
    return onnx.FunctionProto.FromString(body) if body else None


def _leads_on(body: onnx.FunctionProto, version: int, known: frozenset[str]) -> bool:
    """Whether every node of a body has a converter or is a function itself."""
    return all(
        node.op_type in known or _function_of(node, version, known) for node in all_nodes(body)
    )


def _element(node: onnx.NodeProto, types: Types) -> int:
    """Return the element type of a node's first operand, 0 for an unknown one."""
    found = types.get(node.input[0])
    return found.tensor_type.elem_type if found else 0


def _settings(schema: OpSchema, node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
    """Return the attributes of a node by name, those that it leaves out as the schema has them."""
    usual = {name: item.default_value for name, item in schema.attributes.items()}
    given = {item.name: item for item in node.attribute}
    return {name: item for name, item in usual.items() if item.name} | given


def _resolved(
    attributes: Sequence[onnx.AttributeProto], settings: Mapping[str, onnx.AttributeProto]
) -> Iterator[onnx.AttributeProto]:
    """Yield the attributes of a node of a body; those that name one of the caller as that one."""
    for item in attributes:
        if not item.ref_attr_name:
            yield item
        elif item.ref_attr_name in settings:
            value = copy.deepcopy(settings[item.ref_attr_name])
            value.name = item.name
            yield value


def _pairs(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield from zip(ours, theirs, strict=False)


def _types_in(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    from onnx import helper

    values = values_of(graph)
    found = {value.name: value.type for value in values if value.type.WhichOneof("value")}
    for name, tensor in constants_in(graph).items():
        found[name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return found
