"""From a seed to a model with inputs, expected outputs and what they may differ by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import control
import elementwise
import indexing
import linear
import moves
import numpy as np
import onnx
import pooling
import quantized
import reductions
from engines import model_of, value_info
from graphs import Graph, Tensor
from onnx import helper, numpy_helper

_OPSETS = (8, 9, 11, 12, 13, 13, 15, 16, 17, 18, 19, 20, 21, 22, 23)
# How often a room's nodes are drawn.
_ROOMS = (
    (elementwise, 30), (linear, 30), (moves, 26), (pooling, 12), (reductions, 10), (indexing, 8),
    (quantized, 5), (control, 1),
)  # fmt: skip
_MOST_NODES = 8
_MOST_TRIES = 60
# Of the twins' distance, which is a sample of what noise does, and of the largest value.
_NOISE_FACTOR = 12.0
# Some functions of fp64 have constants of single precision in TVM.
_LEAST = {"float64": 1e-7, "float32": 2e-6, "float16": 2e-3}


@dataclass(frozen=True)
class Case:
    """A model and what it should compute.

    Parameters
    ----------
    seed : int
        What it was made from.
    graph : Graph
        With the value of each tensor.
    outputs : tuple of Tensor
        The outputs of the model.
    """

    seed: int
    graph: Graph
    outputs: tuple[Tensor, ...]

    @property
    def inputs(self) -> dict[str, np.ndarray]:
        return {t.name: t.value for t in self.graph.inputs}

    @property
    def model(self) -> onnx.ModelProto:
        return model(self.graph, self.graph.nodes, self.graph.inputs, self.outputs)

    @property
    def tolerances(self) -> list[float]:
        return [tolerance(t) for t in self.outputs]


def case(seed: int) -> Case:
    """Return the case of a seed: a graph of one to eight nodes or groups of nodes."""
    rng = np.random.default_rng(seed)
    kind = rng.random()
    float_type = "float64" if kind < 0.04 else "float16" if kind < 0.07 else "float32"
    opset = int(rng.choice(_OPSETS))
    graph = Graph(rng, opset, float_type, empty=bool(rng.random() < 0.03))
    wanted = graph.integer(1, _MOST_NODES)
    for _ in range(_MOST_TRIES):
        if len(_computing(graph)) >= wanted:
            break
        with graph.attempt():
            _draw(graph)(graph)
    outputs = _outputs(graph)
    _drop_unread(graph, outputs)
    return Case(seed, graph, outputs)


def _draw(graph: Graph):
    """Return a random function that adds nodes."""
    rooms, weights = zip(*_ROOMS, strict=True)
    room = rooms[graph.rng.choice(len(rooms), p=np.array(weights) / sum(weights))]
    nodes = list(room.NODES)
    frequency = np.array([room.NODES[n] for n in nodes], float)
    return nodes[graph.rng.choice(len(nodes), p=frequency / frequency.sum())]


def _computing(graph: Graph) -> list[onnx.NodeProto]:
    return [node for node in graph.nodes if node.op_type != "Constant"]


def _outputs(graph: Graph) -> tuple[Tensor, ...]:
    """Return what nobody reads, and now and then something that is read as well."""
    read = read_by(graph.nodes)
    made = {name for node in _computing(graph) for name in node.output}
    computed = [t for t in graph.tensors if t.name in made]
    return tuple(t for t in computed if t.name not in read or graph.chance(0.1))


def _drop_unread(graph: Graph, outputs: tuple[Tensor, ...]) -> None:
    """Remove the inputs and constants that no node reads."""
    read = read_by(graph.nodes) | {t.name: None for t in outputs}
    graph.inputs[:] = [t for t in graph.inputs if t.name in read]
    graph.constants[:] = [t for t in graph.constants if t.name in read]


def model(
    graph: Graph,
    nodes: list[onnx.NodeProto],
    inputs: list[Tensor],
    outputs: tuple[Tensor, ...],
) -> onnx.ModelProto:
    """Return a model of some nodes of a graph; inputs and outputs are tensors of it."""
    read = read_by(nodes)
    fed = {t.name for t in inputs}
    weights = [t for t in graph.constants if t.name in read and t.name not in fed]
    proto = helper.make_graph(
        nodes,
        "random",
        [value_info(t.name, t.value) for t in inputs],
        [value_info(t.name, t.value) for t in outputs],
        [numpy_helper.from_array(t.value, t.name) for t in weights],
    )
    return model_of(proto, graph.opset)


def read_by(nodes: Iterable[onnx.NodeProto]) -> dict[str, None]:
    """Return the tensors that nodes and the branches inside them read, in order."""
    read = {}
    for node in nodes:
        read |= dict.fromkeys(name for name in node.input if name)
        for branch in (a.g for a in node.attribute if a.HasField("g")):
            made = {name for inner in branch.node for name in inner.output}
            read |= {name: None for name in read_by(branch.node) if name not in made}
    return read


def tolerance(tensor: Tensor) -> float:
    """Return the absolute error that honest rounding may lead to; 0 where nothing rounds."""
    value = tensor.value
    if value.dtype.kind != "f" or tensor.exact or not value.size:
        return 0.0
    apart = np.abs(value.astype("f8") - tensor.twin.astype("f8")).max()
    largest = np.abs(value).max()
    return float(_NOISE_FACTOR * apart + _LEAST[tensor.dtype] * largest)
