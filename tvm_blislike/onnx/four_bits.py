"""Constants of 4 bits that are dequantized: the same integers in 8 bits.

TVM's importer has no type of 4 bits; what a dequantization makes of integers is the same whatever
they are stored in.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.onnx.graphs import all_graphs, all_nodes

if TYPE_CHECKING:
    import onnx

_READER = "DequantizeLinear"


def in_eight_bits(proto: onnx.ModelProto, owned: bool) -> onnx.ModelProto:
    """Return the model with the constants that nothing but dequantizations read in 8 bits.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    owned : bool
        Whether it may be changed; otherwise a model with such constants is copied.
    """
    from onnx import TensorProto, numpy_helper

    wider = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
    tensors = [t for g in all_graphs(proto.graph) for t in g.initializer if t.data_type in wider]
    if not tensors or not {t.name for t in tensors}.isdisjoint(_read_otherwise(proto)):
        return proto
    result = proto if owned else copy.deepcopy(proto)
    for graph in all_graphs(result.graph):
        for tensor in graph.initializer:
            dtype = wider.get(tensor.data_type)
            if dtype is not None:
                array = numpy_helper.to_array(tensor).astype(dtype)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return result


def _read_otherwise(proto: onnx.ModelProto) -> set[str]:
    """Return the tensors that another node than a dequantization reads, or that are results."""
    read = {value.name for graph in all_graphs(proto.graph) for value in graph.output}
    for node in all_nodes(proto.graph):
        if node.op_type != _READER:
            read.update(node.input)
    return read
