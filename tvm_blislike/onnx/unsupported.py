"""Nodes and data types that TVM's ONNX importer cannot take, or would compute otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.graphs import all_graphs, all_nodes, attribute
from tvm_blislike.onnx.operator_sets import opset
from tvm_blislike.onnx.settings import setting_of_run_time
from tvm_blislike.onnx.shapes import constants_in

if TYPE_CHECKING:
    import numpy as np
    import onnx

# TVM drops casts to the types of 8 bits and less, or cannot store what they give.
_COMPUTED = frozenset(
    """
    BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT16 BFLOAT16 FLOAT DOUBLE
    """.split()
)
# Attributes that name the type of a result.
_TYPES = frozenset(["to", "dtype", "output_dtype"])


def check_readings(proto: onnx.ModelProto) -> None:
    """Raise UnsupportedOperatorError for a node that TVM's importer would misread in silence."""
    faults = {
        "BatchNormalization": _trains,
        "Expand": _shape_comes_at_run_time,
        "NonMaxSuppression": _leaves_an_unknown_number,
        "PRelu": _slopes_belong_to_axis_1,
        "RoiAlign": _takes_the_largest,
        "SequenceInsert": _counts_from_the_back,
        "SpaceToDepth": _puts_columns_first,
    }
    for node in all_nodes(proto.graph):
        fault = faults.get(node.op_type)
        if fault and (reason := fault(proto, node)):
            raise UnsupportedOperatorError(
                f"unsupported {describe(node)}: {reason}",
                "TVM's ONNX importer would ignore that and compute something else",
            )


def is_computed(number: int) -> bool:
    """Return whether there is code for an element type, a number of `onnx.TensorProto`."""
    return type_name(number) in _COMPUTED


def type_name(number: int) -> str:
    """Return ONNX's name of an element type."""
    import onnx

    known = number in onnx.TensorProto.DataType.values()
    return onnx.TensorProto.DataType.Name(number) if known else f"number {number}"


def check_types(proto: onnx.ModelProto) -> None:
    """Raise UnsupportedOperatorError for what has a data type that cannot be computed.

    Constants and results of nodes are looked at; all other types follow from them and the inputs.
    """
    for tensor in proto.graph.initializer:
        _require_computed(tensor.data_type, f"constant {tensor.name!r}")
    for node in all_nodes(proto.graph):
        for number in _named_types(node):
            _require_computed(number, describe(node))


def why_unknown(proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    """Return which setting of a node is known at run time only, in words; None for no setting."""
    return setting_of_run_time(node, constants_everywhere(proto))


def constants_everywhere(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of the graph and of the branches inside it, by name."""
    graphs = all_graphs(proto.graph)
    return {name: value for graph in graphs for name, value in constants_in(graph).items()}


def describe(node: onnx.NodeProto) -> str:
    """Return the operator and the node's name, or the outputs of a node without one."""
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    name = repr(node.name) if node.name else f"computing {', '.join(map(repr, node.output))}"
    return f"{operator} (node {name})"


def _named_types(node: onnx.NodeProto) -> Iterator[int]:
    """Yield the element types that the attributes of a node name."""
    for item in node.attribute:
        if item.name in _TYPES and item.i:
            yield item.i
        elif item.HasField("t"):
            yield item.t.data_type


def _require_computed(number: int, subject: str) -> None:
    if not is_computed(number):
        raise UnsupportedOperatorError(
            f"unsupported {subject}: its data type is {type_name(number)}",
            f"computed are {', '.join(sorted(_COMPUTED))}",
        )


def _leaves_an_unknown_number(proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    """TVM counts on as many boxes as there may be, and checks that when it runs."""
    readers = (other for other in all_nodes(proto.graph) if node.output[0] in other.input)
    reader = next(readers, None)
    if reader is None:
        return None
    return f"how many boxes it leaves tells only running it, and {describe(reader)} reads them"


def _trains(proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    trains = attribute(node, "training_mode")
    return "training_mode is set; export it for inference" if trains else None


def _slopes_belong_to_axis_1(proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    version = opset(proto)
    slopes = [item.dims for item in proto.graph.initializer if item.name == node.input[1]]
    per_channel = bool(slopes) and list(slopes[0]) not in ([], [1])
    return f"slopes per channel in opset {version}" if version < 7 and per_channel else None


def _shape_comes_at_run_time(proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    unknown = why_unknown(proto, node)
    return f"{unknown}, and a 1 in it keeps sizes" if unknown else None


def _counts_from_the_back(proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    """For ONNX -1 is the place before the last tensor, for the importer that behind it."""
    position = _constant_value(proto, node, 2)
    return "its position is negative" if position is not None and position.min() < 0 else None


def _constant_value(proto: onnx.ModelProto, node: onnx.NodeProto, place: int) -> np.ndarray | None:
    """Return the value of an operand, None where it is left out or no constant."""
    from onnx import numpy_helper

    name = node.input[place] if place < len(node.input) else ""
    tensor = constants_everywhere(proto).get(name)
    return None if tensor is None else numpy_helper.to_array(tensor)


def _takes_the_largest(_proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    return "its mode is max" if attribute(node, "mode") == b"max" else None


def _puts_columns_first(_proto: onnx.ModelProto, node: onnx.NodeProto) -> str | None:
    return "its mode is CRD" if attribute(node, "mode") == b"CRD" else None
