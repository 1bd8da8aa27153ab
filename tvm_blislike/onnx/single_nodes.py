"""Nodes of an ONNX graph as models of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tvm_blislike.onnx.graphs import branches
from tvm_blislike.onnx.shapes import complete, distinct, values_of

if TYPE_CHECKING:
    import onnx

# Elements of a constant that stays one: settings. Weights are passed in, so that none is folded.
_MOST_OF_A_SETTING = 1 << 10


def single_nodes(
    proto: onnx.ModelProto, types: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]
) -> Iterator[tuple[onnx.NodeProto, onnx.ModelProto]]:
    """Yield each node with a model of that node alone, where its operands are known.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    types : onnx.GraphProto
        Its graph as shape inference leaves it.
    constants : mapping of str to onnx.TensorProto
        Its constants.
    """
    import onnx

    known = {value.name: _type(value) for value in values_of(types)}
    known |= {name: (t.data_type, tuple(t.dims)) for name, t in constants.items()}
    for node in proto.graph.node:
        names = distinct(node.input)
        within = any(branches(node))  # what these read is not among the operands
        if node.op_type == "Constant" or within or any(known.get(name) is None for name in names):
            continue
        kept = [n for n in names if n in constants and math.prod(known[n][1]) <= _MOST_OF_A_SETTING]
        ends = [onnx.helper.make_tensor_value_info(n, *known[n]) for n in names if n not in kept]
        results = [onnx.ValueInfoProto(name=name) for name in distinct(node.output)]
        alone = onnx.helper.make_graph([node], "node", ends, results)
        for name in kept:
            alone.initializer.add().CopyFrom(constants[name])
            alone.initializer[-1].name = name
        yield (
            node,
            onnx.ModelProto(
                ir_version=max(proto.ir_version, 4), opset_import=proto.opset_import, graph=alone
            ),
        )


def _type(value: onnx.ValueInfoProto) -> tuple[int, tuple[int, ...]] | None:
    tensor = value.type.tensor_type
    shape = complete(tensor)
    return (tensor.elem_type, shape) if tensor.elem_type and shape is not None else None
