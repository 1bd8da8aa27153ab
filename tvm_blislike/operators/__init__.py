"""One class per kind of operator: all that is to be known of it but how it is scheduled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_blislike.operators.convolution import Convolution
from tvm_blislike.operators.matrix_product import MatrixProduct
from tvm_blislike.operators.operator import Graph, Operator, described
from tvm_blislike.operators.volume_convolution import VolumeConvolution
from tvm_blislike.tvm_seams import op_name

if TYPE_CHECKING:
    import onnx
    from tvm import relax

    from tvm_blislike.model.workload import Workload

__all__ = [
    "Graph",
    "Operator",
    "described",
    "operator_in",
    "operator_of",
    "register_operator",
    "workload_of",
    "workload_of_node",
]

_OPERATORS: dict[str, Operator] = {}


def register_operator(operator: Operator) -> None:
    """Add a kind of operator, or replace the one of the same kind."""
    _OPERATORS[operator.workload.kind] = operator


register_operator(Convolution())
register_operator(MatrixProduct())
register_operator(VolumeConvolution())


def operator_of(workload: Workload) -> Operator:
    """Return the operator of a workload's kind."""
    return _OPERATORS[workload.kind]


def operator_in(call: relax.Expr) -> Operator | None:
    """Return the operator that a Relax call is, with a workload or without; None for any other."""
    name = op_name(call)
    return next((o for o in _OPERATORS.values() if name in o.calls), None) if name else None


def workload_of(call: relax.Expr) -> Workload | None:
    """Return what a call computes, None for what is no operator of ours or has no workload."""
    operator = operator_in(call)
    return None if operator is None or operator.why_not(call) else operator.of_call(call)


def workload_of_node(node: onnx.NodeProto, graph: Graph) -> Workload | None:
    """Return what an ONNX node computes, None for what has no workload."""
    operator = next((o for o in _OPERATORS.values() if node.op_type in o.nodes), None)
    return None if operator is None else operator.of_node(node, graph)
