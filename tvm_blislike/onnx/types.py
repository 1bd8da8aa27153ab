"""Data types of ONNX, and the nodes that make tensors of those that cannot be computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.onnx.unsupported import all_nodes, describe

if TYPE_CHECKING:
    import onnx

# TVM drops casts to the types of 8 bits and less, or cannot store what they give.
_COMPUTED = frozenset(
    """
    BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT16 BFLOAT16 FLOAT DOUBLE
    """.split()
)
# Attributes that name the type of a result.
_TYPES = frozenset(["to", "dtype", "output_dtype"])


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
        _require(tensor.data_type, f"constant {tensor.name!r}")
    for node in all_nodes(proto.graph):
        for number in _types(node):
            _require(number, describe(node))


def _types(node: onnx.NodeProto) -> Iterator[int]:
    """Yield the element types that the attributes of a node name."""
    for attribute in node.attribute:
        if attribute.name in _TYPES and attribute.i:
            yield attribute.i
        elif attribute.HasField("t"):
            yield attribute.t.data_type


def _require(number: int, subject: str) -> None:
    if not is_computed(number):
        raise UnsupportedOperatorError(
            f"unsupported {subject}: its data type is {type_name(number)}",
            f"computed are {', '.join(sorted(_COMPUTED))}",
        )
