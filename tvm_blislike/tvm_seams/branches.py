"""Graphs inside ONNX nodes as Relax functions of their own.

TVM's importer emits most of a branch into the function around its `If`, where it is computed
whichever branch is taken, and outside dataflow blocks, which passes leave as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tvm_blislike.tvm_seams.relax_ir import is_constant

if TYPE_CHECKING:
    import onnx
    from tvm.ir import GlobalVar

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
    inner, operands = captured(importer, graph)

    def results(found: list[relax.Expr]) -> relax.Expr:
        return found[0] if len(found) == 1 else relax.Tuple(found)

    return relax.Call(function_of(importer, graph, name, [], inner, dict, results), operands)


def function_of(
    importer: Any,
    graph: onnx.GraphProto,
    name: str,
    params: Sequence[relax.Var],
    inner: Nodes,
    inputs: Callable[[], Nodes],
    results: Callable[[list[relax.Expr]], relax.Expr],
) -> GlobalVar:
    """Return a new function that computes a graph of an importer at work.

    Parameters
    ----------
    importer : ONNXGraphImporter
        At work.
    graph : onnx.GraphProto
        The graph.
    name : str
        What to call the function; the builder makes it unique.
    params : sequence of relax.Var
        Its first parameters; those of `inner` follow.
    inner : dict
        What the graph reads from outside, see `captured`.
    inputs : callable
        Emits, in the function, what the inputs of the graph are, by name.
    results : callable
        Emits what the function returns, given the results of the graph.
    """
    builder, outer = importer.bb, importer._nodes
    outside = [value for value in inner.values() if isinstance(value, relax.Var)]
    with builder.function(name, params=[*params, *outside], private=True):
        try:
            if any(node.op_type == "If" for node in graph.node):
                importer._nodes = {**inner, **inputs()}
                result = results(_computed(importer, graph))
            else:
                with builder.dataflow():
                    importer._nodes = {**inner, **inputs()}
                    result = builder.emit_output(results(_computed(importer, graph)))
            return builder.emit_func_output(result)
        except BaseException:
            builder._end_block()  # else the builder warns of it to stderr
            raise
        finally:
            importer._nodes = outer


def with_dataflow(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with dataflow blocks around what stands beside calls of branches."""
    return relax.transform.ConvertToDataflow(min_size=1)(mod)


def captured(importer: Any, graph: onnx.GraphProto) -> tuple[Nodes, list[relax.Expr]]:
    """Return what a graph reads from outside, as parameters or constants, and the arguments."""
    inner: Nodes = {}
    operands = []
    for name in dict.fromkeys(free_names(graph)):
        value = importer._nodes[name]
        if is_constant(value) or isinstance(value, relax.ShapeExpr):
            inner[name] = value
            continue
        operand = value if isinstance(value, relax.Var) else importer.bb.emit(value)
        importer._nodes[name] = operand  # computed once
        inner[name] = relax.Var(name, operand.ty)
        operands.append(operand)
    return inner, operands


def _computed(importer: Any, graph: onnx.GraphProto) -> list[relax.Expr]:
    """Emit the nodes of a graph and return its results."""
    for tensor in graph.initializer:
        importer._nodes[tensor.name] = relax.const(importer._parse_array(tensor))
    importer._construct_nodes(graph)
    return [importer._nodes[value.name] for value in graph.output]


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
