"""From a model that disagrees to the nodes of it that do.

Each tensor's value is known, so any of them can be an input instead of being computed.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
from cases import Case, model, read_by, tolerance
from graphs import Tensor
from verdicts import Verdict

Try = Callable[[onnx.ModelProto, list[Tensor], tuple[Tensor, ...]], Verdict]


def minimized(case: Case, kind: str, attempt: Try) -> tuple[onnx.ModelProto, list[Tensor], Verdict]:
    """Return the smallest part of a case found that has a verdict of this kind.

    Parameters
    ----------
    case : Case
        A case with that verdict.
    kind : str
        The verdict's kind.
    attempt : callable
        Gives the verdict of a model with these inputs and outputs.

    Returns
    -------
    tuple
        The model, its inputs, and its verdict.
    """
    nodes = [node for node in case.graph.nodes if node.op_type != "Constant"]
    search = _Search(case, kind, attempt)
    search.take(case.graph.nodes, case.outputs)
    for output in case.outputs:
        if len(case.outputs) > 1 and search.take(_above(nodes, {output.name}), (output,)):
            break
    shrunk = True
    while shrunk:
        current = [n for n in search.nodes if n.op_type != "Constant"]
        shrunk = (
            any(search.without(current, node) for node in current) if len(current) > 1 else False
        )
    return search.model, search.inputs, search.verdict


class _Search:
    """The smallest part so far."""

    def __init__(self, case: Case, kind: str, attempt: Try) -> None:
        self._case, self._kind, self._attempt = case, kind, attempt
        self._tensors = {t.name: t for t in case.graph.tensors}
        self._constants = {t.name for t in case.graph.constants}
        self._makers = {
            name: n for n in case.graph.nodes if n.op_type == "Constant" for name in n.output
        }
        self.nodes: list[onnx.NodeProto] = []

    def take(self, nodes: list[onnx.NodeProto], outputs: tuple[Tensor, ...]) -> bool:
        """Try a part; make it the smallest so far when it has the verdict, too."""
        read = read_by(nodes)
        made = {name for node in nodes for name in node.output}
        makers = [self._makers[n] for n in read if n in self._makers and n not in made]
        made |= {name for node in makers for name in node.output}
        inputs = [self._tensors[n] for n in read if n not in made and n not in self._constants]
        proto = model(self._case.graph, [*makers, *nodes], inputs, outputs)
        verdict = self._attempt(proto, inputs, outputs)
        if verdict.kind != self._kind:
            return False
        self.nodes, self.outputs = nodes, outputs
        self.model, self.inputs, self.verdict = proto, inputs, verdict
        return True

    def without(self, nodes: list[onnx.NodeProto], node: onnx.NodeProto) -> bool:
        """Try to do without a node: fed to its readers, or dropped with all behind it."""
        rest = [n for n in nodes if n is not node]
        named = {t.name for t in self.outputs}
        if not named & set(node.output):
            return self.take(_above(rest, named), self.outputs)
        read = read_by(rest)
        ends = [
            self._tensors[n] for r in rest for n in r.output if n not in read and n in self._tensors
        ]
        return any(self.take(_above(rest, {end.name}), (end,)) for end in ends)


def _above(nodes: list[onnx.NodeProto], names: set[str]) -> list[onnx.NodeProto]:
    """Return the nodes that these tensors need."""
    needed, kept = set(names), []
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.append(node)
            needed |= read_by([node]).keys()
    return kept[::-1]


def tolerances(outputs: tuple[Tensor, ...]) -> list[float]:
    """Return what each output may differ by."""
    return [tolerance(t) for t in outputs]
