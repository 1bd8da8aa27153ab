"""`Loop`s that end when a number of their own says so, and weights in their state.

Exporters of TensorFlow write a loop over time as one without a limit, which counts its steps in its
state and compares them with a length. Where the numbers that its condition is computed from are
constants, in the state too, the condition is computed step by step until it ends. Weights are state
as well, which no step changes: it reads them from outside instead, as the constants that they are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tvm_blislike.onnx.folding import ARITHMETIC, MOST_ELEMENTS
from tvm_blislike.onnx.graphs import all_graphs, branches
from tvm_blislike.onnx.loop_shapes import LOOP, STATE, begins_of, body_of, read_instead, steps_of
from tvm_blislike.onnx.operator_sets import STANDARD
from tvm_blislike.onnx.shapes import constants_in, constants_of, distinct, light, untyped

if TYPE_CHECKING:
    import onnx

    Tensors = Mapping[str, onnx.TensorProto]

# Steps of a loop without a limit: lengths of sequences. Each is computed by ONNX's reference
# implementation, in some hundred microseconds.
_MOST_STEPS = 1 << 12


def plain_loops(model: onnx.ModelProto, names: Iterator[str]) -> bool:
    """Write the loops of a model as the importer takes them, in place; whether that changed any.

    What they hand on as it is are no states any more, and their steps are counted where these
    follow from constants.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, whose shape arithmetic is folded. Loops inside its nodes are left as they are.
    names : iterator of str
        Names that no tensor has.
    """
    graph, constants = model.graph, _small(constants_of(model))
    loops = [place for place, node in enumerate(graph.node) if node.op_type == LOOP]
    kept = {place: _kept(body_of(graph.node[place])) for place in loops}
    counts = {place: _steps(model, graph.node[place], constants) for place in loops}
    if not any(kept.values()) and all(count is None for count in counts.values()):
        return False
    nodes = [copy.deepcopy(node) for node in graph.node]  # those of the graph itself end
    del graph.node[:]
    for place, node in enumerate(nodes):
        if (count := counts.get(place)) is not None:
            graph.initializer.append(_counted(node, count, names))
        results = _without_state(node, kept.get(place, []))
        graph.node.extend([node, *results] if node.output else results)
    return True


def _small(tensors: Tensors) -> Tensors:
    """Return those that are no weights: of a branch's constants these alone have values."""
    return {name: t for name, t in tensors.items() if math.prod(t.dims) <= MOST_ELEMENTS}


def _kept(body: onnx.GraphProto) -> list[int]:
    """Return the places in the state of what every step hands on as it gets it, and no more."""
    results = [value.name for graph in all_graphs(body) for value in graph.output]
    pairs = enumerate(zip(body.input[STATE:], body.output[1:], strict=False))
    return [
        place
        for place, (old, new) in pairs
        if old.name == new.name and results.count(old.name) == 1
    ]


def _without_state(node: onnx.NodeProto, places: list[int]) -> list[onnx.NodeProto]:
    """Have a loop read from outside what it keeps, in place; return nodes for its results."""
    from onnx import helper

    made = []
    for place in reversed(places):
        body, outside = body_of(node), node.input[STATE + place]
        read_instead(body, body.input[STATE + place].name, outside)
        if node.output[place]:
            made.append(helper.make_node("Identity", [outside], [node.output[place]], node.name))
        del node.input[STATE + place], node.output[place]
        del body.input[STATE + place], body.output[1 + place]
    return made


def _steps(proto: onnx.ModelProto, node: onnx.NodeProto, constants: Tensors) -> int | None:
    """Return how many steps a loop takes, None where that is no news, or known when it runs."""
    known = begins_of(node, constants)
    if known is None or steps_of(node, constants) is not None:
        return None
    limit, begins = known
    if not begins or limit == 0:
        return 0
    if not (condition := _Condition.of(proto, node, constants)):
        return None
    beyond = _MOST_STEPS + 1
    count = condition.steps(beyond if limit is None else min(limit, beyond))
    return None if count == beyond != limit else count


class _Condition:
    """What the condition of a loop is computed from, all of it known."""

    def __init__(
        self, model: onnx.ModelProto, names: tuple[str, str], state: dict[str, np.ndarray]
    ) -> None:
        from onnx.reference import ReferenceEvaluator

        self._evaluator = ReferenceEvaluator(model)
        self._names = names
        self._state = state

    @classmethod
    def of(
        cls, proto: onnx.ModelProto, node: onnx.NodeProto, constants: Tensors
    ) -> _Condition | None:
        """Return the condition of a loop, None when something in it is known when it runs."""
        from onnx import helper, numpy_helper

        body = body_of(node)
        number, before, *state = (value.name for value in body.input)
        nexts = dict(zip(state, (value.name for value in body.output[1:]), strict=False))
        begins = dict(zip(state, node.input[STATE:], strict=True))
        inner = constants_in(body)
        nodes, read = _needed(body, nexts)
        used = [name for name in state if name in read]
        outside = read - {number, before, *state} - inner.keys()
        known = {begins[name] for name in used} | outside
        if not known <= constants.keys() or not all(map(_is_arithmetic, nodes)):
            return None
        graph = helper.make_graph(
            nodes,
            "condition",
            [untyped(name) for name in (number, before, *used)],
            [untyped(name) for name in (body.output[0].name, *(nexts[name] for name in used))],
            [*(light(constants[name], name, MOST_ELEMENTS) for name in outside), *body.initializer],
        )
        model = helper.make_model(
            graph, opset_imports=proto.opset_import, ir_version=proto.ir_version
        )
        values = {name: numpy_helper.to_array(constants[begins[name]]) for name in used}
        return cls(model, (number, before), values)

    def steps(self, most: int) -> int | None:
        """Return how many steps pass until it is false, up to a number; None for no result."""
        number, before = self._names
        state, count, goes = self._state, 0, True
        while goes and count < most:
            inputs = {number: np.array(count), before: np.array(True), **state}
            try:
                going, *new = self._evaluator.run(None, inputs)
            except Exception:  # gaps of ONNX's reference: the loop stays as it is
                return None
            state, count, goes = dict(zip(state, new, strict=True)), count + 1, bool(going)
        return count


def _needed(
    body: onnx.GraphProto, nexts: Mapping[str, str]
) -> tuple[list[onnx.NodeProto], set[str]]:
    """Return the nodes of a step that its condition follows from, and all that these read.

    `nexts` says which result of a step becomes the state of a name.
    """
    makers = {name: node for node in body.node for name in node.output}
    open_, read, nodes = [body.output[0].name], set(), set()
    while open_:
        name = open_.pop()
        if name in read:
            continue
        read.add(name)
        if name in nexts:
            open_.append(nexts[name])
        elif name in makers:
            nodes.add(makers[name].output[0])
            open_ += distinct(makers[name].input)
    return [node for node in body.node if node.output[0] in nodes], read - makers.keys()


def _is_arithmetic(node: onnx.NodeProto) -> bool:
    is_known = node.domain in STANDARD and node.op_type in ARITHMETIC
    return is_known and not any(branches(node))


def _counted(node: onnx.NodeProto, count: int, names: Iterator[str]) -> onnx.TensorProto:
    """Write a loop of so many steps, in place, none of which ends it; return their number."""
    from onnx import helper, numpy_helper

    body, goes = body_of(node), next(names)
    body.node.append(helper.make_node("Identity", [body.input[1].name], [goes], node.name))
    body.output[0].name = goes
    steps = numpy_helper.from_array(np.array(count), next(names))
    node.input[:STATE] = [steps.name, ""]
    return steps
