"""Nodes that TVM's importer writes so that infinities become NaN get others around them.

ReduceLogSumExp subtracts the largest element, and inf - inf is no number: where that element is
infinite, 1 or -1 is subtracted instead. ThresholdedRelu multiplies what is below the threshold by
0, and -inf * 0 is no number: of an infinite element it is what Relu makes of it.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.operators import all_nodes, branches

if TYPE_CHECKING:
    import onnx

_OPERATORS = ("ReduceLogSumExp", "ThresholdedRelu")
_STANDARD = ("", "ai.onnx")
# From this version on the axes of ReduceMax, too, are an operand and no attribute.
_AXES_ARE_OPERANDS = 18


def keep_infinities(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with such nodes written out, itself where it has none.

    Parameters
    ----------
    proto : onnx.ModelProto
        Left as it is.
    """
    if not any(_is_ours(node) for node in all_nodes(proto.graph)):
        return proto
    result = copy.deepcopy(proto)
    version = max(item.version for item in proto.opset_import if item.domain in _STANDARD)
    _write_out(result.graph, version)
    return result


def _is_ours(node: onnx.NodeProto) -> bool:
    return node.domain in _STANDARD and node.op_type in _OPERATORS


def _write_out(graph: onnx.GraphProto, version: int) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for branch in branches(node):
            _write_out(branch, version)
        if not _is_ours(node):
            nodes.append(node)
        elif node.op_type == "ThresholdedRelu":
            nodes += _thresholded(node)
        else:
            nodes += _log_sum_exp(graph, node, version)
    nodes = [copy.deepcopy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)


def _thresholded(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    part = _Parts(node)
    (x,), (y,) = node.input, node.output
    inner = copy.deepcopy(node)
    inner.output[0] = part.name("finite")
    return [
        inner,
        part.node("IsInf", [x], "is_infinite"),
        part.node("Relu", [x], "infinite"),
        part.node("Where", [part.name(n) for n in ("is_infinite", "infinite", "finite")], y),
    ]


def _log_sum_exp(
    graph: onnx.GraphProto, node: onnx.NodeProto, version: int
) -> list[onnx.NodeProto]:
    from onnx import helper, numpy_helper

    part = _Parts(node)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    x, *operands = node.input
    keeps = attributes.pop("keepdims", 1)
    sum_attributes = dict(attributes)
    sum_operands = operands
    if version < _AXES_ARE_OPERANDS and "axes" in attributes:
        axes = np.array(sum_attributes.pop("axes"), "int64")
        graph.initializer.append(numpy_helper.from_array(axes, part.name("axes")))
        sum_operands = [part.name("axes")]
    largest, shift, total = (part.name(n) for n in ("largest", "shift", "total"))
    shifted = [
        part.node("ReduceMax", [x, *operands], "largest", keepdims=1, **attributes),
        part.node("IsInf", [largest], "is_infinite"),
        part.node("Sign", [largest], "sign"),
        part.node("Where", [part.name("is_infinite"), part.name("sign"), largest], "shift"),
        part.node("Sub", [x, shift], "shifted"),
        part.node("Exp", [part.name("shifted")], "powers"),
        part.node(
            "ReduceSum", [part.name("powers"), *sum_operands], "sum", keepdims=1, **sum_attributes
        ),
        part.node("Log", [part.name("sum")], "logarithm"),
    ]
    logarithm = part.name("logarithm")
    if keeps:
        return [*shifted, part.node("Add", [logarithm, shift], node.output[0])]
    # The largest of one element takes its axes away.
    return [
        *shifted,
        part.node("Add", [logarithm, shift], "total"),
        part.node("ReduceMax", [total, *operands], node.output[0], keepdims=0, **attributes),
    ]


class _Parts:
    """Makes the nodes that stand for one, named after it."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self.whole = node

    def name(self, part: str) -> str:
        """Return the name of a tensor between the parts."""
        return f"{self.whole.output[0]}/{self.whole.op_type}/{part}"

    def node(
        self, operator: str, operands: list[str], result: str, **attributes: object
    ) -> onnx.NodeProto:
        """Return a node whose result is that of the whole, or a tensor between the parts."""
        from onnx import helper

        named = result if result in self.whole.output else self.name(result)
        name = self.whole.name and f"{self.whole.name}/{operator}"
        return helper.make_node(operator, operands, [named], name=name, **attributes)
