"""Element types that TVM 0.27 has no, or wrong, arithmetic for: refused by the node and tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tvm_blislike.errors import UnsupportedOperatorError
from tvm_blislike.operators import all_graphs, describe

if TYPE_CHECKING:
    import onnx

_COMPUTED = frozenset(
    """
    UNDEFINED FLOAT DOUBLE FLOAT16 BFLOAT16 BOOL
    INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64
    """.split()
)
# Attributes that name the type of a node's result.
_OF_RESULT = frozenset(["to", "dtype", "output_dtype"])


def check_element_types(proto: onnx.ModelProto) -> None:
    """Raise UnsupportedOperatorError for the first node with a tensor of a type that TVM lacks.

    Among them are strings, complex numbers, integers of 2 and 4 bits, floating point numbers of 4
    and 8: some of them TVM stores, but it converts NaN and rounds otherwise than ONNX says.
    """
    types: dict[str, str] = {}
    for graph in all_graphs(proto.graph):
        types.update(_declared(graph))
        for node in graph.node:
            for kind in _made(node):
                types.update(dict.fromkeys(node.output, kind))
            for name in (*node.input, *node.output):
                if types.get(name, "UNDEFINED") not in _COMPUTED:
                    raise UnsupportedOperatorError(
                        f"unsupported {describe(node)}: its tensor {name!r} is of type "
                        f"{types[name].lower()}",
                        "TVM computes with bool, integers of 8 to 64 bits, and floating point "
                        "numbers of 16 to 64 bits",
                    )


def _declared(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """Yield the names and types of the tensors that a graph declares."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name, _name(value.type.tensor_type.elem_type)
    for tensor in graph.initializer:
        yield tensor.name, _name(tensor.data_type)


def _made(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the type of a node's results where its attributes tell."""
    for attribute in node.attribute:
        if attribute.name in _OF_RESULT and attribute.i:
            yield _name(attribute.i)
        elif attribute.name == "value" and attribute.HasField("t"):
            yield _name(attribute.t.data_type)
        elif attribute.name in ("value_string", "value_strings"):
            yield "STRING"


def _name(number: int) -> str:
    from onnx import TensorProto

    known = number in TensorProto.DataType.values()
    return str(TensorProto.DataType.Name(number)) if known else f"type {number}"
