"""Graphs inside ONNX nodes as Relax functions of their own.

TVM's importer emits most of a branch into the function around its `If`, where it is computed
whichever branch is taken, and outside dataflow blocks, which passes leave as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tvm_blislike.tvm_seams.relax_ir import is_constant

if TYPE_CHECKING:
    import onnx

Nodes = dict[str, Any]


def called(importer: Any, graph: onnx.GraphProto, name: str) -> relax.Expr:
    """Return a call of a new function that computes a graph of an importer at work.

    Parameters
    ----------
    importer : ONNXGraphImporter
        Its nodes are the tensors that the graph can read.
    graph : onnx.GraphProto
        Without inputs of its own.
    name : str
        What to call the function; the builder makes it unique.

    Returns
    -------
    relax.Expr
        Its results: a tensor, or a tuple of several.
    """
    builder, outer = importer.bb, importer._nodes
    inner, operands = _captured(builder, outer, graph)
    params = [value for value in inner.values() if isinstance(value, relax.Var)]
    with builder.function(name, params=params, private=True):
        importer._nodes = inner
        try:
            gvar = builder.emit_func_output(_computed(importer, graph))
        except BaseException:
            builder._end_block()  # else the builder warns of it to stderr
            raise
        finally:
            importer._nodes = outer
    return relax.Call(gvar, operands)


def with_dataflow(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with dataflow blocks around what stands beside calls of branches."""
    return relax.transform.ConvertToDataflow(min_size=1)(mod)


def _captured(
    builder: relax.BlockBuilder, outer: Nodes, graph: onnx.GraphProto
) -> tuple[Nodes, list[relax.Expr]]:
    """Return what a graph reads from outside, as parameters or constants, and the arguments."""
    inner: Nodes = {}
    operands = []
    for name in dict.fromkeys(free_names(graph)):
        value = outer[name]
        if is_constant(value) or isinstance(value, relax.ShapeExpr):
            inner[name] = value
            continue
        operand = value if isinstance(value, relax.Var) else builder.emit(value)
        outer[name] = operand  # computed once
        inner[name] = relax.Var(name, operand.ty)
        operands.append(operand)
    return inner, operands


def _computed(importer: Any, graph: onnx.GraphProto) -> relax.Expr:
    """Emit the nodes of a graph and return its results."""
    for tensor in graph.initializer:
        importer._nodes[tensor.name] = relax.const(importer._parse_array(tensor))
    if any(node.op_type == "If" for node in graph.node):
        importer._construct_nodes(graph)
        return _results(importer, graph)
    with importer.bb.dataflow():
        importer._construct_nodes(graph)
        return importer.bb.emit_output(_results(importer, graph))


def _results(importer: Any, graph: onnx.GraphProto) -> relax.Expr:
    found = [importer._nodes[value.name] for value in graph.output]
    return found[0] if len(found) == 1 else relax.Tuple(found)


def free_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the tensors that a graph, or one inside it, reads from outside."""
    own = {item.name for item in (*graph.input, *graph.initializer)}
    for node in graph.node:
        inner = [name for each in _graphs(node) for name in free_names(each)]
        yield from (name for name in (*node.input, *inner) if name and name not in own)
        own |= set(node.output)
    yield from (value.name for value in graph.output if value.name not in own)


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
