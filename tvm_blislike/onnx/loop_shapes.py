"""Shapes inside and behind a `Loop`, of which ONNX infers types only.

It reckons with states that change their shape. Ours keep it, as the importer makes sure
(`control_loops`): so a step is inferred with the shapes that the state begins with, and where they
come out otherwise nothing is said of that state. Results of each step are as many as it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm_blislike.onnx.graphs import all_nodes

if TYPE_CHECKING:
    import onnx

LOOP = "Loop"
# The number of a step, or of the most, and the condition stand before the state.
STATE = 2


def begins_of(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> tuple[int | None, bool] | None:
    """Return the most steps of a `Loop`, None without a limit, and whether the first one begins.

    None where one of the two is known only when it runs. `constants` are tensors whose values are
    known.
    """
    from onnx import numpy_helper

    most, begins = node.input[:STATE]
    if any(name and name not in constants for name in (most, begins)):
        return None
    limit = max(int(numpy_helper.to_array(constants[most]).item()), 0) if most else None
    return limit, not begins or bool(numpy_helper.to_array(constants[begins]).item())


def steps_of(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> int | None:
    """Return how many steps a `Loop` takes whose condition does not change, None where it may.

    Parameters
    ----------
    node : onnx.NodeProto
        The loop.
    constants : mapping of str to onnx.TensorProto
        Tensors whose values are known.
    """
    from tvm_blislike.tvm_seams.control_loops import goes_on

    known = begins_of(node, constants)
    if known is None or known[0] is None or not goes_on(body_of(node)):
        return None
    limit, begins = known
    return limit if begins else 0


def body_of(node: onnx.NodeProto) -> onnx.GraphProto:
    """Return the graph of a step."""
    from onnx import helper

    return helper.get_node_attr_value(node, "body")


class LoopShapes:
    """Tells ONNX's inference the shapes inside and behind the loops of a graph.

    Parameters
    ----------
    graph : onnx.GraphProto
        What is inferred; its loops are changed in place.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph = graph
        self._loops = [node for node in graph.node if node.op_type == LOOP]
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._ended: set[str] = set()
        # By the results of a loop and the place in its state: inputs of the graph that stand
        # for the state in a step, as ONNX takes the step's own for without a shape.
        self._begun: dict[tuple[tuple[str, ...], int], onnx.ValueInfoProto] = {}
        for node in self._loops:
            for value in body_of(node).output:  # what a model declares of them is not believed
                value.type.tensor_type.ClearField("shape")

    def told(self, types: onnx.GraphProto) -> bool:
        """Add what follows from the types inferred so far; whether there was anything."""
        from onnx import helper

        known = {v.name: v.type for v in (*types.value_info, *types.input, *types.output)}
        known |= {
            name: helper.make_tensor_type_proto(t.data_type, t.dims)
            for name, t in self._constants.items()
        }
        typed = {tuple(node.output): node for node in types.node}
        return any([self._tell(node, typed[tuple(node.output)], known) for node in self._loops])

    def _tell(
        self, node: onnx.NodeProto, typed: onnx.NodeProto, known: Mapping[str, onnx.TypeProto]
    ) -> bool:
        """Add what follows for the step of a loop, or once that is inferred behind it."""
        body, inferred = body_of(node), body_of(typed)
        return (
            self._begin(node, body, known)
            or self._give_up(node, body, inferred)
            or self._end(node, body, inferred, known)
        )

    def _begin(
        self, node: onnx.NodeProto, body: onnx.GraphProto, known: Mapping[str, onnx.TypeProto]
    ) -> bool:
        """Give the state of a step the shapes that it begins with."""
        changed = False
        for place, (name, value) in enumerate(
            zip(node.input[STATE:], body.input[STATE:], strict=True)
        ):
            key, type_ = (tuple(node.output), place), known.get(name)
            if key not in self._begun and _is_complete(type_):
                value.type.CopyFrom(type_)
                within = f"{value.name} of {node.output}"
                self._begun[key] = self._graph.input.add(name=within, type=type_)
                read_instead(body, value.name, within)
                changed = True
        return changed

    def _give_up(
        self, node: onnx.NodeProto, body: onnx.GraphProto, inferred: onnx.GraphProto
    ) -> bool:
        """Take back the shapes of the state that a step changes."""
        changed = False
        for place, (old, new) in enumerate(
            zip(body.input[STATE:], inferred.output[1:], strict=False)
        ):
            if _differ(old.type, new.type):
                for value in (old, self._begun[tuple(node.output), place]):
                    value.type.tensor_type.ClearField("shape")
                changed = True
        return changed

    def _end(
        self,
        node: onnx.NodeProto,
        body: onnx.GraphProto,
        inferred: onnx.GraphProto,
        known: Mapping[str, onnx.TypeProto],
    ) -> bool:
        """Give the results of a loop the shapes that follow from those of a step."""
        state = [value.type for value in body.input[STATE:]]
        steps = steps_of(node, self._constants)
        scans = [value.type for value in inferred.output[1 + len(state) :]]
        raised = [] if steps is None else [_raised(type_, steps) for type_ in scans]
        changed = False
        for name, type_ in zip(node.output, [*state, *raised], strict=False):
            told = name in self._ended or _sizes(type_) == _sizes(known.get(name))
            if name and not told and _is_complete(type_):
                self._declare(name, type_)
                self._ended.add(name)
                changed = True
        return changed

    def _declare(self, name: str, type_: onnx.TypeProto) -> None:
        values = (*self._graph.value_info, *self._graph.output)
        found = next((value for value in values if value.name == name), None)
        found = self._graph.value_info.add(name=name) if found is None else found
        found.type.CopyFrom(type_)


def read_instead(graph: onnx.GraphProto, old: str, new: str) -> None:
    """Have the nodes of a graph, and of those inside it, read another tensor, in place."""
    for node in all_nodes(graph):
        node.input[:] = [new if name == old else name for name in node.input]


def _sizes(type_: onnx.TypeProto | None) -> list[int | None] | None:
    """Return the sizes of a type, None for one that is not known, or for an unknown rank."""
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return None
    dims = type_.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]


def _is_complete(type_: onnx.TypeProto | None) -> bool:
    sizes = _sizes(type_)
    return sizes is not None and None not in sizes


def _differ(old: onnx.TypeProto, new: onnx.TypeProto) -> bool:
    """Whether two shapes cannot be the same, as far as both are known."""
    one, other = _sizes(old), _sizes(new)
    if one is None or other is None:
        return False
    if len(one) != len(other):
        return True
    return any(a != b for a, b in zip(one, other, strict=True) if None not in (a, b))


def _raised(type_: onnx.TypeProto, steps: int) -> onnx.TypeProto | None:
    """Return the type of the results of all steps, None where that of one is not known."""
    import onnx

    if not _is_complete(type_):
        return None
    raised = onnx.TypeProto()
    raised.tensor_type.elem_type = type_.tensor_type.elem_type
    raised.tensor_type.shape.dim.add().dim_value = steps
    raised.tensor_type.shape.dim.extend(type_.tensor_type.shape.dim)
    return raised
