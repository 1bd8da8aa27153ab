"""Branches of `If`: one that sizes or constants decide for is put in the place of its node.

Exporters write choices that follow from sizes, such as whether an axis is 1, as `If`. Inside a
branch that is left to run time the same is done, and shape arithmetic is computed ahead. So are the
steps of loops (`loops`): what they make may decide a choice, and a branch may hold a loop.

A branch whose sizes contradict could run nowhere. The model compiles without it; where it is taken
nevertheless, an error says what does not fit (`impossible`).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_blislike.errors import ModelError
from tvm_blislike.onnx.contradictions import contradiction
from tvm_blislike.onnx.folding import replace_by_constants, settled
from tvm_blislike.onnx.graphs import all_graphs, attribute, replace_nodes, unused_names
from tvm_blislike.onnx.impossible import impossible
from tvm_blislike.onnx.loop_shapes import LOOP
from tvm_blislike.onnx.loops import plain_loops
from tvm_blislike.onnx.parts import Part, made_in, read_inside, rename
from tvm_blislike.onnx.shapes import complete, constants_in, constants_of, shapes_in, types_of
from tvm_blislike.onnx.unsupported import describe

if TYPE_CHECKING:
    import onnx

Sizes = Mapping[str, Sequence[int]]
_CHOICE = "If"
_THEN, _ELSE = "then_branch", "else_branch"


def folded(
    proto: onnx.ModelProto, shapes: Sizes, owned: bool
) -> tuple[onnx.ModelProto, onnx.GraphProto | None]:
    """Return the model with what follows from its sizes and constants computed ahead.

    Parameters
    ----------
    proto : onnx.ModelProto
        The model.
    shapes : mapping of str to sequence of int
        Shape of each input.
    owned : bool
        Whether it may be changed; otherwise a model that has anything to compute is copied.

    Returns
    -------
    model : onnx.ModelProto
        The model.
    types : onnx.GraphProto or None
        What ONNX has inferred of it (`shapes.inferred`); None where it was not asked, or cannot.

    Raises
    ------
    ModelError
        Neither branch of an `If` can be computed at these sizes.
    """
    if not any(node.op_type in (_CHOICE, LOOP) for node in proto.graph.node):
        values, types = settled(proto, shapes)
        if values:
            proto = proto if owned else copy.deepcopy(proto)
            replace_by_constants(proto, values)
        return proto, types
    proto = proto if owned else copy.deepcopy(proto)
    made = Counter(name for graph in all_graphs(proto.graph) for name in made_in(graph))
    walk = _Walk(unused_names(proto.graph, "settled"), made)
    return proto, walk.through(proto, shapes)


@dataclass(frozen=True)
class _Branch:
    """A branch, the types in it, and why it cannot be computed, if so."""

    name: str
    part: Part
    types: onnx.GraphProto
    fault: str | None


@dataclass(frozen=True)
class _Walk:
    """Goes through a model and the branches inside it.

    `names` are free ones. `made` counts how many graphs make a tensor of a name: of branches that
    exclude each other several may.
    """

    names: Iterator[str]
    made: Mapping[str, int]

    def through(self, model: onnx.ModelProto, shapes: Sizes) -> onnx.GraphProto | None:
        """Change a model in place; return what was inferred of it, None where it was not."""
        done: set[tuple[str, ...]] = set()
        while True:
            values, types = settled(model, shapes)
            replace_by_constants(model, values)
            if self._decide(model.graph) or plain_loops(model, self.names):
                continue
            left = [node for node in _choices(model.graph) if tuple(node.output) not in done]
            if not left:
                return types
            types = types_of(model, shapes)
            known = shapes_in(types, constants_of(model)).keys()
            # What one makes may be what the branches of another read.
            ready = [node for node in left if known >= set(read_inside(node))] or left[:1]
            for node in ready:
                self._inside(node, model, types)
                done.add(tuple(node.output))

    def _decide(self, graph: onnx.GraphProto) -> bool:
        """Put branches in the place of nodes whose condition is known; whether there were any."""
        constants = constants_in(graph)
        decided = [n.op_type == _CHOICE and n.input[0] in constants for n in graph.node]
        if not any(decided):
            return False
        nodes: list[onnx.NodeProto] = []
        for node, is_decided in zip(graph.node, decided, strict=True):
            if is_decided:
                taken = attribute(node, _THEN if _holds(constants[node.input[0]]) else _ELSE)
                nodes += self._written_out(taken, node)
                graph.initializer.extend(taken.initializer)
            else:
                nodes.append(node)
        replace_nodes(graph, nodes)
        return True

    def _written_out(
        self, taken: onnx.GraphProto, node: onnx.NodeProto
    ) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of the branch that is taken, which may change, and of its results."""
        from onnx import helper

        several = [name for name in made_in(taken) if self.made[name] > 1]
        rename(taken, {name: next(self.names) for name in several})
        yield from taken.node
        for inner, outer in zip(taken.output, node.output, strict=True):
            if outer:
                yield helper.make_node("Identity", [inner.name], [outer], node.name)

    def _inside(self, node: onnx.NodeProto, model: onnx.ModelProto, types: onnx.GraphProto) -> None:
        """Do the same in the branches of a node, in place."""
        branches = [self._branch(node, name, model, types) for name in (_THEN, _ELSE)]
        if all(branch.fault for branch in branches):
            faults = "; ".join(str(branch.fault) for branch in branches)
            raise ModelError(
                f"neither branch of {describe(node)} can be computed at these sizes: {faults}"
            )
        for mine, other in zip(branches, reversed(branches), strict=True):
            results = _results_like(other, mine) if mine.fault else None
            if results is None:
                mine.part.put_back(mine.types)
            else:
                _replace(mine, results, node)

    def _branch(
        self, node: onnx.NodeProto, name: str, model: onnx.ModelProto, types: onnx.GraphProto
    ) -> _Branch:
        part = Part.of(attribute(node, name), model, types)
        try:
            self.through(part.model, {})
        except ModelError as error:
            return _Branch(name, part, part.model.graph, error.message)
        inner = types_of(part.model, {})
        return _Branch(name, part, inner, contradiction(part.model, inner))


def _choices(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == _CHOICE]


def _holds(condition: onnx.TensorProto) -> bool:
    from onnx import numpy_helper

    return bool(numpy_helper.to_array(condition).all())


def _results_like(model: _Branch, branch: _Branch) -> list[onnx.ValueInfoProto] | None:
    """Return the results of a branch with types of the other's, None where these are not known."""
    from onnx import ValueInfoProto

    types = [value.type for value in model.types.output]
    if not all(t.tensor_type.elem_type and complete(t.tensor_type) is not None for t in types):
        return None
    names = [value.name for value in branch.part.graph.output]
    return [ValueInfoProto(name=n, type=type_) for n, type_ in zip(names, types, strict=True)]


def _replace(branch: _Branch, results: Sequence[onnx.ValueInfoProto], node: onnx.NodeProto) -> None:
    """Have a branch raise an error, in place."""
    which = branch.name.removesuffix("_branch")
    message = f"the {which} branch of {describe(node)} cannot be computed at these sizes: "
    message += str(branch.fault)
    graph = branch.part.graph
    del graph.node[:], graph.initializer[:], graph.value_info[:], graph.output[:]
    graph.node.extend(impossible(value, node.input[0], message) for value in results)
    graph.output.extend(results)
