"""The layers of an ONNX graph as workloads, and the names by which engines know them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from tvm_blislike.model.workload import Workload
from tvm_blislike.onnx.shapes import constants_of, inferred, shapes_in, values_of
from tvm_blislike.operators import Graph, workload_of_node

# What engines fuse into the kernel of the layer before, which then may get the name of the last.
_FUSED = {
    *("Add", "BatchNormalization", "Clip", "Elu", "HardSigmoid", "HardSwish", "Identity"),
    *("LeakyRelu", "Mul", "PRelu", "Relu", "Sigmoid", "Sum", "Tanh"),
}
Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class GraphLayer:
    """A convolution or product.

    Parameters
    ----------
    workload : Workload
        What is computed.
    names : tuple of str
        Names of its node and result, and of the nodes behind it that may be fused with it.
    """

    workload: Workload
    names: tuple[str, ...]


def layers_of(model: onnx.ModelProto, inputs: Shapes) -> list[GraphLayer]:
    """Return the 2-D convolutions and the products of matrices with constant B, in order.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    inputs : mapping of str to sequence of int
        Shapes of its inputs.
    """
    graph = typed_graph(model, inputs)
    readers = defaultdict(list)
    for node in model.graph.node:
        for name in node.input:
            readers[name].append(node)
    found = ((node, workload_of_node(node, graph)) for node in model.graph.node)
    return [GraphLayer(w, tuple(_names(node, readers))) for node, w in found if w is not None]


def typed_graph(model: onnx.ModelProto, inputs: Shapes) -> Graph:
    """Return what ONNX infers of the tensors of a model from the shapes of its inputs."""
    constants = constants_of(model)
    graph = inferred(model, inputs, constants)
    codes = {value.name: value.type.tensor_type.elem_type for value in values_of(graph)}
    codes.update((name, tensor.data_type) for name, tensor in constants.items())
    dtypes = {name: str(tensor_dtype_to_np_dtype(code)) for name, code in codes.items() if code}
    return Graph(shapes_in(graph, constants), dtypes, constants)


def matched(
    layers: Sequence[GraphLayer], kernels: Iterable[tuple[Sequence[str], float]]
) -> dict[str, float]:
    """Return the mean time of each workload, by its text.

    Parameters
    ----------
    layers : sequence of GraphLayer
        Of the model.
    kernels : iterable of (sequence of str, float)
        Names and times of what an engine ran. A name that several layers share, such as that of a
        sum fused with one of the convolutions before it, goes to the last of them that has no
        kernel of its own.
    """
    owners = defaultdict(list)
    for place, layer in enumerate(layers):
        for name in layer.names:
            owners[name].append(place)
    taken: dict[int, float] = {}
    unclear = []
    for names, time in kernels:
        known = [owners[name] for name in names if name in owners]
        sure = [places[0] for places in known if len(places) == 1]
        if sure:
            taken[sure[0]] = taken.get(sure[0], 0.0) + time
        elif known:
            unclear.append((known[0], time))
    for places, time in unclear:
        free = [place for place in places if place not in taken]
        if free:
            taken[free[-1]] = time
    return _means(layers, taken)


def _means(layers: Sequence[GraphLayer], taken: Mapping[int, float]) -> dict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    count: Counter[str] = Counter()
    for place, time in taken.items():
        total[str(layers[place].workload)] += time
        count[str(layers[place].workload)] += 1
    return {workload: total[workload] / count[workload] for workload in total}


def _names(node: onnx.NodeProto, readers: Mapping[str, list[onnx.NodeProto]]) -> Iterator[str]:
    yield from (node.name, *node.output)
    after = readers.get(node.output[0], [])
    if len(after) == 1 and after[0].op_type in _FUSED:
        yield from _names(after[0], readers)
